"""Matrix products with quantized matrices. Gradients reach the floats as if nothing had been rounded."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import UnsupportedError
from onnxtrain.lowering import levels
from onnxtrain.lowering.contrib.domains import microsoft
from onnxtrain.lowering.registry import Array, StandIns, StraightThrough, StraightThroughWanted


@microsoft("MatMulIntegerToFloat")
def mat_mul_integer_to_float(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
    *,
    stand_ins: StandIns,
) -> Array:
    """The scale and the zero point of B may be one for each column."""
    product = levels.multiplied(jnp.matmul, (a, a_zero_point, stand_ins[0]), (b, b_zero_point, stand_ins[1]))
    y = levels.as_floats(product, np.dtype(a_scale.dtype)) * (a_scale * b_scale)
    return y if bias is None else y + bias


@microsoft("QGemm")
def q_gemm(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    c: Array | None = None,
    y_scale: Array | None = None,
    y_zero_point: Array | None = None,
    *,
    alpha: float = 1.0,
    transA: bool = False,
    transB: bool = False,
    stand_ins: StandIns,
) -> Array | StraightThrough:
    """C is in the scale of the product of integers. Without a scale for Y the result is a float."""

    def multiply(a: Array, b: Array) -> Array:
        return jnp.matmul(a.T if transA else a, b.T if transB else b)

    columns = b_zero_point.reshape(-1, 1) if transB else b_zero_point.reshape(-1)
    product = levels.multiplied(multiply, (a, a_zero_point.reshape(()), stand_ins[0]), (b, columns, stand_ins[3]))
    if c is not None:
        product = replace(product, value=product.value + c)
    y = levels.as_floats(product, np.dtype(a_scale.dtype)) * (alpha * a_scale.reshape(()) * b_scale.reshape(-1))
    if y_scale is None:
        return y
    zero_point = None if y_zero_point is None else y_zero_point.reshape(())
    return levels.quantize(y, y_scale.reshape(()), zero_point, np.dtype(a.dtype))


@microsoft("DynamicQuantizeMatMul")
def dynamic_quantize_mat_mul(
    a: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
    *,
    straight_through: StraightThroughWanted,
) -> Array:
    y = quantized_dynamically(a, b, b_scale, b_zero_point, straight_through)
    return y if bias is None else y + bias


def quantized_dynamically(
    a: Array, b: Array, b_scale: Array, b_zero_point: Array | None, straight_through: bool
) -> Array:
    """The product of A, quantized by its own range, and a quantized B.

    Straight through, it has the gradient of the product of floats; otherwise that of the scale of A alone.
    """
    quantized, scale, zero_point = levels.quantize_dynamically(a)
    quantized = quantized.value if isinstance(quantized, StraightThrough) else quantized
    product = levels.multiplied(jnp.matmul, (quantized, zero_point, None), (b, b_zero_point, None)).value
    y = product.astype(a.dtype) * (scale * b_scale)
    if not straight_through:
        return y
    weights = levels.dequantize(b, b_scale, b_zero_point, axis=b.ndim - 1)
    return levels.with_gradient_of(y, jnp.matmul(a, weights))


@microsoft("MatMulNBits", ignores={"accuracy_level"})
def mat_mul_n_bits(
    a: Array,
    b: Array,
    scales: Array,
    zero_points: Array | None = None,
    g_idx: Array | None = None,
    bias: Array | None = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Array:
    """Zero points that are floats are not packed; absent ones are the middle of the range.

    Unsupported: weights in a layout of the machine's own (weight_prepacked).
    """
    if weight_prepacked:
        raise UnsupportedError("Attribute weight_prepacked must be 0.")
    blocks = -(-K // block_size)
    columns = _unpacked(b.reshape(N, blocks, -1), bits, block_size).reshape(N, -1)[:, :K]
    group = np.arange(K) // block_size if g_idx is None else g_idx
    middle = jnp.full((N, blocks), 1 << (bits - 1), scales.dtype)
    centres = middle if zero_points is None else _zero_points(zero_points, N, blocks, bits)
    scales = scales.reshape(N, blocks)
    weights = columns.astype(scales.dtype) - jnp.take(centres.astype(scales.dtype), group, 1, mode="clip")
    y = jnp.matmul(a, (weights * jnp.take(scales, group, 1, mode="clip")).T)
    return y if bias is None else y + bias


# What four bits stand for in the two formats of bitsandbytes: small floats, and quantiles of a normal distribution.
_FP4 = [0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4]
_NF4 = [
    *(-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
    *(-0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1),
]
_LEVELS = {0: [*_FP4, *(-level for level in _FP4)], 1: _NF4}


@microsoft("MatMulBnb4", ignores={"training_mode"})
def mat_mul_bnb4(
    a: Array, b: Array, absmax: Array, *, K: int, N: int, block_size: int, quant_type: int, transB: bool = True
) -> Array:
    """The first of two weights in a byte stands in its high bits.

    Unsupported: weights that are not transposed (transB), which onnxruntime's training had.
    """
    if not transB:
        raise UnsupportedError("Attribute transB must be 1.")
    levels_of_type = np.asarray(_LEVELS[quant_type], a.dtype)
    codes = jnp.stack([jnp.asarray(b) >> 4, jnp.asarray(b) & 15], -1).reshape(-1)[: N * K]
    sizes = jnp.repeat(jnp.asarray(absmax), block_size)[: N * K]
    weights = (jnp.take(levels_of_type, codes, mode="clip") * sizes.astype(a.dtype)).reshape(N, K)
    return jnp.matmul(a, weights.T)


@microsoft("GatherBlockQuantized")
def gather_block_quantized(
    data: Array,
    indices: Array,
    scales: Array,
    zero_points: Array | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Array:
    """Bytes hold several numbers each, above the middle of their range; an index out of range gives zeros.

    Unsupported: blocks along the axis that is gathered from.
    """
    gather_axis, quantize_axis = gather_axis % data.ndim, quantize_axis % data.ndim
    if gather_axis == quantize_axis:
        raise UnsupportedError("Attributes gather_axis and quantize_axis must differ.")
    if data.dtype == np.uint8:
        data = _unpacked(data, bits, data.shape[-1] * 8 // bits)
        middle = jnp.full(scales.shape, 1 << (bits - 1), np.uint8)
        zero_points = middle if zero_points is None else _unpacked(zero_points, bits, scales.shape[-1])
    length = data.shape[gather_axis]
    start = jnp.where(indices < 0, indices + length, indices)
    data, scales = (jnp.take(values, start, gather_axis, mode="clip") for values in (data, scales))
    if zero_points is not None:
        zero_points = jnp.take(zero_points, start, gather_axis, mode="clip")
    axis = quantize_axis if quantize_axis < gather_axis else quantize_axis + indices.ndim - 1
    y = levels.dequantize(data, scales, zero_points, axis=axis, block_size=block_size)
    inside = ((start >= 0) & (start < length)).reshape(*indices.shape, *(1,) * (data.ndim - indices.ndim - gather_axis))
    return jnp.where(inside, y, 0).astype(scales.dtype)


def _zero_points(zero_points: Array, rows: int, blocks: int, bits: int) -> Array:
    if zero_points.dtype != np.uint8:
        return zero_points.reshape(rows, blocks)
    return _unpacked(zero_points.reshape(rows, -1), bits, blocks)


def _unpacked(packed: Array, bits: int, count: int) -> Array:
    """Numbers of so many bits from the bytes of the last axis, the lowest bits first."""
    digits = jnp.unpackbits(jnp.asarray(packed), axis=-1, bitorder="little")
    digits = digits[..., : count * bits].reshape(*packed.shape[:-1], count, bits)
    return jnp.sum(digits << np.arange(bits, dtype=np.uint8), -1, dtype=jnp.uint8)
