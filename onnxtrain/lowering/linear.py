"""Matrix products: MatMul, Gemm, Einsum, and the determinant."""

from __future__ import annotations

import jax.numpy as jnp

from onnxtrain.lowering.registry import Array, op
from onnxtrain.lowering.static import widened


@op("MatMul")
def mat_mul(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b)


@op("Gemm", ignores={"broadcast"})
def gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float,
    beta: float,
    transA: bool,
    transB: bool,
) -> Array:
    """C is broadcast in every version; before 7 an attribute had to ask for it."""
    product = _scaled(jnp.matmul(a.T if transA else a, b.T if transB else b), alpha)
    return product if c is None else product + _scaled(c, beta)


def _scaled(x: Array, factor: float) -> Array:
    if factor == 1:
        return x
    return x * jnp.asarray(factor, x.dtype)


@op("Einsum")
def einsum(*inputs: Array, equation: str) -> Array:
    return jnp.einsum(equation.replace(" ", ""), *inputs)


@op("Det")
def det(x: Array) -> Array:
    return jnp.linalg.det(widened(x)).astype(x.dtype)


@op("MatMulInteger")
def mat_mul_integer(a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None) -> Array:
    """The zero point of A may be one number for each row, that of B one for each column."""
    if a_zero_point is not None and a_zero_point.ndim == 1:
        a_zero_point = a_zero_point[:, None]
    return jnp.matmul(_centred(a, a_zero_point), _centred(b, b_zero_point))


def _centred(x: Array, zero_point: Array | None) -> Array:
    x = jnp.asarray(x).astype(jnp.int32)
    return x if zero_point is None else x - zero_point.astype(jnp.int32)
