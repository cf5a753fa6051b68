"""Matrix products and convolutions with what was fused into them, the inverse, and triangles of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from onnxtrain.errors import OperatorError, UnsupportedError
from onnxtrain.lowering import named_functions, windows
from onnxtrain.lowering.contrib.domains import microsoft
from onnxtrain.lowering.registry import Array, Floats, Int, Ints
from onnxtrain.lowering.static import namespace, widened


@microsoft("FusedMatMul")
def fused_mat_mul(
    a: Array,
    b: Array,
    *,
    alpha: float = 1.0,
    transA: bool = False,
    transB: bool = False,
    transBatchA: bool = False,
    transBatchB: bool = False,
) -> Array:
    """A vector is never transposed. `transBatchA` moves the first axis behind the other batch axes."""
    product = jnp.matmul(_transposed(a, transA, transBatchA), _transposed(b, transB, transBatchB))
    return product if alpha == 1 else product * alpha


def _transposed(x: Array, trans: bool, trans_batch: bool) -> Array:
    x = jnp.asarray(x)
    if trans_batch and x.ndim > 2:
        x = jnp.moveaxis(x, 0, -2)
    return x.swapaxes(-1, -2) if trans and x.ndim > 1 else x


@microsoft("TransposeMatMul")
def transpose_mat_mul(a: Array, b: Array, *, alpha: float = 1.0, transA: bool = False, transB: bool = False) -> Array:
    """An older name of FusedMatMul."""
    return fused_mat_mul(a, b, alpha=alpha, transA=transA, transB=transB)


@microsoft("FusedGemm")
def fused_gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool = False,
    transB: bool = False,
) -> Array:
    y = alpha * jnp.matmul(a.T if transA else a, b.T if transB else b)
    parameters = [value for value in (activation_alpha, activation_beta) if value is not None]
    return _activated(y if c is None else y + beta * c, activation, parameters)


@microsoft("FusedConv")
def fused_conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    z: Array | None = None,
    *,
    activation: str = "",
    activation_params: Floats = (),
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Z is added to the convolution, in front of the activation."""
    if kernel_shape and kernel_shape != w.shape[2:]:
        raise OperatorError(f"kernel_shape {list(kernel_shape)} is not the shape of the kernels {list(w.shape[2:])}.")
    axes = windows.place(x.shape[2:], w.shape[2:], strides, pads, dilations, auto_pad)
    y = windows.convolve(x, w, axes, group)
    for term in (None if b is None else b.reshape(-1, *(1,) * len(axes)), z):
        y = y if term is None else y + term
    return _activated(y, activation, activation_params)


def _activated(y: Any, name: str, parameters: Sequence[float]) -> Any:
    if not name:
        return y
    if name == "Clip":
        low, high = parameters
        return named_functions.clip(y, low, high)
    function, defaults = named_functions.find(name)
    return function(y, *parameters, *defaults[len(parameters) :])


@microsoft("CDist")
def distances(a: Array, b: Array, *, metric: str = "sqeuclidean") -> Array:
    """The gradient of the distance of two equal rows is 0.

    Unsupported: metrics other than "sqeuclidean" and "euclidean".
    """
    if metric not in ("sqeuclidean", "euclidean"):
        raise UnsupportedError(f"The metric must be 'sqeuclidean' or 'euclidean', not {metric!r}.")
    squares = jnp.square(a[:, None] - b[None]).sum(-1)
    if metric == "sqeuclidean":
        return squares
    apart = squares > 0
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, squares, 1)), 0)


@microsoft("Inverse")
def inverse(x: Array) -> Array:
    return jnp.linalg.inv(widened(x)).astype(x.dtype)


@microsoft("Trilu", folds=True)
def trilu(x: Array, k: Int = 0, *, upper: bool = True) -> Array:
    xnp = namespace(x)
    return (xnp.triu if upper else xnp.tril)(x, k)
