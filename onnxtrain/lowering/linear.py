"""Matrix products: MatMul, Gemm, Einsum, and the determinant."""

from __future__ import annotations

import jax.numpy as jnp

from onnxtrain.lowering import levels
from onnxtrain.lowering.registry import Array, StandIns, StraightThrough, op
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
def mat_mul_integer(
    a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None, *, stand_ins: StandIns
) -> StraightThrough:
    """The zero point of A may be one number for each row, that of B one for each column."""
    if a_zero_point is not None and a_zero_point.ndim == 1:
        a_zero_point = a_zero_point[:, None]
    return levels.multiplied(jnp.matmul, (a, a_zero_point, stand_ins[0]), (b, b_zero_point, stand_ins[1]))
