"""Quantization to small integers and floats, back from them, and products computed in them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onnxtrain import dtypes
from onnxtrain.lowering import windows
from onnxtrain.lowering.registry import Array, DType, Ints, StandIn, StraightThrough, op
from onnxtrain.lowering.static import is_static, namespace, wide_dtype

_PRECISIONS = frozenset(np.dtype(dtype) for dtype in (np.float16, jnp.bfloat16, np.float32, np.float64))


@op("QuantizeLinear", folds=True)
def quantize_linear(
    x: Array,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: DType | None = None,
    precision: DType | None = None,
    saturate: bool = True,
) -> Array | StraightThrough:
    """The gradient of a DequantizeLinear that reads the result passes straight through: 1 in range, 0 outside."""
    dtype = np.dtype(output_dtype or np.uint8) if y_zero_point is None else np.dtype(y_zero_point.dtype)
    precision = _precision(y_scale, precision)
    zero_point = y_zero_point if y_zero_point is None else _spread(y_zero_point, x, axis, block_size)
    y = x.astype(precision) / _spread(y_scale, x, axis, block_size).astype(precision)
    return _straight_through(y, _quantized(y, zero_point, dtype, saturate), zero_point)


def _straight_through(y: Array, quantized: Array, zero_point: Array | None) -> Array | StraightThrough:
    """Quantized values with what they are the rounded values of, where they are not cut off as well."""
    if is_static(quantized):
        return quantized
    quantized = lax.stop_gradient(quantized)
    y = y.astype(wide_dtype(y.dtype))
    moved = y if zero_point is None else y + zero_point.astype(y.dtype)
    lowest, highest = _limits(np.dtype(quantized.dtype))
    nearest = moved if dtypes.is_float(quantized.dtype) else jnp.rint(moved)
    return StraightThrough(quantized, jnp.where((nearest >= lowest) & (nearest <= highest), y, 0))


def _limits(dtype: np.dtype) -> tuple[float, float]:
    limits = jnp.finfo(dtype) if dtypes.is_float(dtype) else jnp.iinfo(dtype)
    return float(limits.min), float(limits.max)


def _precision(scale: Array, asked: np.dtype | None) -> np.dtype:
    """The type of the division: the scale's, unless that is no type to compute in."""
    return asked or (np.dtype(scale.dtype) if np.dtype(scale.dtype) in _PRECISIONS else np.dtype(np.float32))


def _spread(values: Array, x: Array, axis: int, block_size: int) -> Array:
    """A scale or zero point of the whole array, of each index of the axis, or of each block, shaped to go with x."""
    if values.size == 1:
        return values.reshape(())
    if values.ndim == 1:
        return values.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    length = x.shape[axis]
    spread = namespace(values).repeat(values, block_size or -(-length // values.shape[axis]), axis)
    return spread[tuple(slice(size) for size in x.shape)]


def _quantized(y: Array, zero_point: Array | None, dtype: np.dtype, saturate: bool = True) -> Array:
    """Scaled values in a quantized type: rounded to the nearest or to even, and moved by the zero point."""
    xnp = namespace(y, zero_point)
    y = y.astype(wide_dtype(y.dtype))
    if dtypes.is_float(dtype):
        y = y if zero_point is None else y + zero_point.astype(y.dtype)
        return (xnp.clip(y, *_limits(dtype)) if saturate else y).astype(dtype)
    y = xnp.rint(y)
    if zero_point is not None:
        y = y + zero_point.astype(y.dtype)
    # in two steps, because not every backend converts floats to integers of less than a byte
    return xnp.clip(y, *_limits(dtype)).astype(np.int32).astype(dtype)


@op("DequantizeLinear", folds=True)
def dequantize_linear(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: DType | None = None,
    stand_in: StandIn,
) -> Array:
    wide = wide_dtype(x_scale.dtype)
    centred = x.astype(wide)
    if x_zero_point is not None:
        centred = centred - _spread(x_zero_point, x, axis, block_size).astype(wide)
    if stand_in is not None:
        centred = _with_gradient_of(centred, stand_in.astype(wide))
    y = centred * _spread(x_scale, x, axis, block_size).astype(wide)
    return y.astype(output_dtype or x_scale.dtype)


@jax.custom_jvp
def _with_gradient_of(value: Array, stand_in: Array) -> Array:
    """The value, which is differentiated as if it were the other one."""
    return value


@_with_gradient_of.defjvp
def _with_gradient_of_jvp(values: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return _with_gradient_of(*values), tangents[1]


@op("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Array) -> tuple[Array | StraightThrough, Array, Array]:
    """An input of zeros has scale 0 and stays zero."""
    lowest, highest = jnp.minimum(jnp.min(x), 0), jnp.maximum(jnp.max(x), 0)
    scale = (highest - lowest) / 255
    safe = jnp.where(scale == 0, 1, scale)
    zero_point = _quantized(-lowest / safe, None, np.dtype(np.uint8))
    y = x / safe
    return _straight_through(y, _quantized(y, zero_point, np.dtype(np.uint8)), zero_point), scale, zero_point


@op("QLinearMatMul")
def q_linear_mat_mul(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    """Scales and zero points of A may be one for each row, those of B one for each column."""
    kind = np.dtype(np.float32 if dtypes.is_float(a.dtype) or dtypes.is_float(b.dtype) else np.int32)
    product = jnp.matmul(_centred(a, _by_row(a_zero_point), kind), _centred(b, b_zero_point, kind))
    return _requantized(product, _by_row(a_scale), b_scale, y_scale, y_zero_point)


def _by_row(values: Array) -> Array:
    return values[:, None] if values.ndim == 1 and values.size > 1 else values


def _centred(x: Array, zero_point: Array, dtype: np.dtype) -> Array:
    return jnp.asarray(x).astype(dtype) - zero_point.astype(dtype)


def _requantized(y: Array, left: Array, right: Array, scale: Array, zero_point: Array) -> Array:
    """A product of quantized values, with the scales of both sides, in the type and scale of the result."""
    left, right, scale = (values.astype(np.float32) for values in (left, right, scale))
    return _quantized(y.astype(np.float32) * (left * right / scale), zero_point, np.dtype(zero_point.dtype))


@op("QLinearConv")
def q_linear_conv(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array,
    w_scale: Array,
    w_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    b: Array | None = None,
    *,
    auto_pad: str,
    dilations: Ints | None = None,
    group: int,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    axes = windows.place(x.shape[2:], kernel_shape or w.shape[2:], strides, pads, dilations, auto_pad)
    kernels = _centred(w, _spread(w_zero_point, w, 0, 0), np.dtype(np.int32))
    y = windows.convolve(_centred(x, x_zero_point.reshape(()), np.dtype(np.int32)), kernels, axes, group)
    if b is not None:
        y = y + _spread(b, y, 1, 0)
    return _requantized(
        y, x_scale.reshape(()), _spread(w_scale, y, 1, 0), y_scale.reshape(()), y_zero_point.reshape(())
    )
