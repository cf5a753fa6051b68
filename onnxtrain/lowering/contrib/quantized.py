"""Operators on quantized values: what goes in stands for floats, and what comes out is quantized again.

Those whose output is quantized carry no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import OperatorError
from onnxtrain.lowering import levels, windows
from onnxtrain.lowering.contrib.domains import microsoft
from onnxtrain.lowering.registry import Array, Ints, StandIn, StraightThrough


@microsoft("QuantizeLinear", folds=True)
def quantize_linear(
    x: Array, y_scale: Array, y_zero_point: Array | None = None, *, axis: int = 1
) -> Array | StraightThrough:
    dtype = np.dtype(np.uint8 if y_zero_point is None else y_zero_point.dtype)
    return levels.quantize(x, y_scale, y_zero_point, dtype, axis=axis)


@microsoft("DequantizeLinear", folds=True)
def dequantize_linear(
    x: Array, x_scale: Array, x_zero_point: Array | None = None, *, axis: int = 1, stand_in: StandIn
) -> Array:
    return levels.dequantize(x, x_scale, x_zero_point, axis=axis, stand_in=stand_in).astype(x_scale.dtype)


def _between(
    function: Callable[..., Any],
    quantized: tuple[tuple[Array, Array, Array | None], ...],
    y_scale: Array,
    y_zero_point: Array | None,
) -> Array:
    """The function of what values with their scales and zero points stand for, quantized."""
    y = function(*(levels.dequantize(x, scale.reshape(()), zero_point) for x, scale, zero_point in quantized))
    zero_point = None if y_zero_point is None else y_zero_point.reshape(())
    return levels.rounded(y / y_scale.reshape(()), zero_point, np.dtype(quantized[0][0].dtype))


@microsoft("QLinearAdd")
def q_linear_add(
    a: Array,
    a_scale: Array,
    a_zero_point: Array | None,
    b: Array,
    b_scale: Array,
    b_zero_point: Array | None,
    c_scale: Array,
    c_zero_point: Array | None = None,
) -> Array:
    return _between(jnp.add, ((a, a_scale, a_zero_point), (b, b_scale, b_zero_point)), c_scale, c_zero_point)


@microsoft("QLinearMul")
def q_linear_mul(
    a: Array,
    a_scale: Array,
    a_zero_point: Array | None,
    b: Array,
    b_scale: Array,
    b_zero_point: Array | None,
    c_scale: Array,
    c_zero_point: Array | None = None,
) -> Array:
    return _between(jnp.multiply, ((a, a_scale, a_zero_point), (b, b_scale, b_zero_point)), c_scale, c_zero_point)


@microsoft("QLinearConcat")
def q_linear_concat(y_scale: Array, y_zero_point: Array, *inputs: Array, axis: int) -> Array:
    """Inputs are in groups of three: values, scale and zero point."""
    if len(inputs) % 3:
        raise OperatorError(f"{len(inputs)} inputs are no groups of values, scale and zero point.")
    groups = tuple(zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True))
    return _between(lambda *values: jnp.concatenate(values, axis), groups, y_scale, y_zero_point)


@microsoft("QLinearLeakyRelu")
def q_linear_leaky_relu(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    alpha: float = 0.01,
) -> Array:
    return _between(lambda x: jnp.where(x < 0, alpha * x, x), ((x, x_scale, x_zero_point),), y_scale, y_zero_point)


@microsoft("QLinearSigmoid")
def q_linear_sigmoid(
    x: Array, x_scale: Array, x_zero_point: Array | None, y_scale: Array, y_zero_point: Array | None = None
) -> Array:
    return _between(jax.nn.sigmoid, ((x, x_scale, x_zero_point),), y_scale, y_zero_point)


@microsoft("QLinearSoftmax")
def q_linear_softmax(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array,
    *,
    axis: int = -1,
    opset: int,
) -> Array:
    """Before opset 13 the softmax is over all axes from `axis` on."""
    axes = (axis % x.ndim,) if opset >= 13 else tuple(range(axis % x.ndim, x.ndim))
    return _between(lambda x: jax.nn.softmax(x, axes), ((x, x_scale, x_zero_point),), y_scale, y_zero_point)


@microsoft("QLinearGlobalAveragePool")
def q_linear_global_average_pool(
    x: Array, x_scale: Array, x_zero_point: Array, y_scale: Array, y_zero_point: Array, *, channels_last: bool = False
) -> Array:
    axes = tuple(range(1, x.ndim - 1) if channels_last else range(2, x.ndim))
    return _between(lambda x: x.mean(axes, keepdims=True), ((x, x_scale, x_zero_point),), y_scale, y_zero_point)


@microsoft("QLinearAveragePool")
def q_linear_average_pool(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    channels_last: bool = False,
    count_include_pad: bool = False,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    sizes = x.shape[1:-1] if channels_last else x.shape[2:]
    axes = windows.place(sizes, kernel_shape, strides, pads, None, auto_pad)

    def pool(x: Array) -> Array:
        images = jnp.moveaxis(x, -1, 1) if channels_last else x
        y = windows.average(images, axes, ceil_mode, count_include_pad)
        return jnp.moveaxis(y, 1, -1) if channels_last else y

    return _between(pool, ((x, x_scale, x_zero_point),), y_scale, y_zero_point)
