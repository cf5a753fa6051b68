"""Quantized values: from floats to small integers and floats, back again, and products of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onnxtrain import dtypes
from onnxtrain.lowering import windows
from onnxtrain.lowering.registry import Array, StraightThrough
from onnxtrain.lowering.static import is_static, namespace, wide_dtype

_INTEGER, _FLOAT = np.dtype(np.int32), np.dtype(np.float32)
_PRECISIONS = frozenset(np.dtype(dtype) for dtype in (np.float16, jnp.bfloat16, np.float32, np.float64))


def quantize(
    x: Array,
    scale: Array,
    zero_point: Array | None,
    dtype: np.dtype,
    *,
    axis: int = 1,
    block_size: int = 0,
    precision: np.dtype | None = None,
    saturate: bool = True,
) -> Array | StraightThrough:
    """Quantized values; the division is computed in `precision`, which is the scale's own unless it is given."""
    precision = _precision(scale, precision)
    zero_point = zero_point if zero_point is None else spread(zero_point, x, axis, block_size)
    y = x.astype(precision) / spread(scale, x, axis, block_size).astype(precision)
    return straight_through(y, rounded(y, zero_point, dtype, saturate), zero_point)


def dequantize(
    x: Array,
    scale: Array,
    zero_point: Array | None,
    *,
    axis: int = 1,
    block_size: int = 0,
    stand_in: Array | None = None,
) -> Array:
    """What quantized values stand for, in the wide type of the scale."""
    wide = wide_dtype(scale.dtype)
    zero_point = None if zero_point is None else spread(zero_point, x, axis, block_size)
    return centred(x, zero_point, wide, stand_in) * spread(scale, x, axis, block_size).astype(wide)


def centred(x: Array, zero_point: Array | None, dtype: np.dtype, stand_in: Array | None = None) -> Array:
    """Quantized values above their zero point, in a wider type; a float has the gradient of their stand-in."""
    above = x.astype(dtype) if zero_point is None else x.astype(dtype) - zero_point.astype(dtype)
    return above if stand_in is None else with_gradient_of(above, stand_in.astype(dtype))


def quantize_dynamically(x: Array) -> tuple[Array | StraightThrough, Array, Array]:
    """Values as uint8, with the scale and the zero point that their range, widened to have 0 in it, asks for."""
    lowest, highest = jnp.minimum(jnp.min(x), 0), jnp.maximum(jnp.max(x), 0)
    scale = (highest - lowest) / 255
    safe = jnp.where(scale == 0, 1, scale)
    zero_point = rounded(-lowest / safe, None, np.dtype(np.uint8))
    y = x / safe
    return straight_through(y, rounded(y, zero_point, np.dtype(np.uint8)), zero_point), scale, zero_point


def straight_through(y: Array, quantized: Array, zero_point: Array | None) -> Array | StraightThrough:
    """Quantized values with what they are the rounded values of, where they are not cut off as well.

    A stand-in only has to change as the values do, so the zero point is left out of it.
    """
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


def spread(values: Array, x: Array, axis: int, block_size: int) -> Array:
    """A scale or zero point of the whole array, of each index of the axis, or of each block, shaped to go with x."""
    if values.size == 1:
        return values.reshape(())
    if values.ndim == 1:
        return values.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    length = x.shape[axis]
    spread = namespace(values).repeat(values, block_size or -(-length // values.shape[axis]), axis)
    return spread[tuple(slice(size) for size in x.shape)]


def rounded(y: Array, zero_point: Array | None, dtype: np.dtype, saturate: bool = True) -> Array:
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


@jax.custom_jvp
def with_gradient_of(value: Array, stand_in: Array) -> Array:
    """The value, which is differentiated as if it were the other one."""
    return value


@with_gradient_of.defjvp
def _with_gradient_of_jvp(values: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return with_gradient_of(*values), tangents[1]


Operand = tuple[Array, Array | None, Array | None]
Axes = Sequence[windows.Axis]


def multiplied(
    multiply: Callable[[Array, Array], Array], left: Operand, right: Operand, dtype: np.dtype = _INTEGER
) -> StraightThrough:
    """A product of integers, each above its zero point; its stand-in is the product of floats.

    An operand is its values, their zero point shaped to go with them, and their stand-in.
    """
    exact = (centred(x, zero_point, dtype) for x, zero_point, _ in (left, right))
    floats = (centred(x, zero_point, _FLOAT, stand_in) for x, zero_point, stand_in in (left, right))
    return StraightThrough(multiply(*exact), multiply(*floats))


def convolved(
    images: Operand, kernels: Operand, bias: Array | None, bias_stand_in: Array | None, axes: Axes, group: int
) -> StraightThrough:
    """A convolution of integers; the bias is in the scale of the product."""
    y = multiplied(lambda x, w: windows.convolve(x, w, axes, group), images, kernels)
    if bias is None:
        return y
    floats = centred(bias, None, _FLOAT, bias_stand_in)
    return StraightThrough(y.value + spread(bias, y.value, 1, 0), y.stand_in + spread(floats, y.value, 1, 0))


def as_floats(product: StraightThrough, dtype: np.dtype = _FLOAT) -> Array:
    """A product of integers as floats that have its gradient."""
    return with_gradient_of(product.value.astype(dtype), product.stand_in.astype(dtype))


def requantized(y: Array, left: Array, right: Array, scale: Array, zero_point: Array) -> Array | StraightThrough:
    """A product of integers, as floats, with the scales of both sides: in the type and scale of the result."""
    left, right, scale = (values.astype(_FLOAT) for values in (left, right, scale))
    y = y * (left * right / scale)
    return straight_through(y, rounded(y, zero_point, np.dtype(zero_point.dtype)), zero_point)
