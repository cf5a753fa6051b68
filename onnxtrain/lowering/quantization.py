"""Quantization to small integers and floats, back from them, and products computed in them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from onnxtrain import dtypes
from onnxtrain.lowering import levels, windows
from onnxtrain.lowering.registry import Array, DType, Ints, StandIns, StraightThrough, op


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
    """The gradient of what reads the result passes straight through: 1 in range, 0 outside."""
    dtype = np.dtype(output_dtype or np.uint8) if y_zero_point is None else np.dtype(y_zero_point.dtype)
    return levels.quantize(
        x, y_scale, y_zero_point, dtype, axis=axis, block_size=block_size, precision=precision, saturate=saturate
    )


@op("DequantizeLinear", folds=True)
def dequantize_linear(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: DType | None = None,
    stand_ins: StandIns,
) -> Array:
    y = levels.dequantize(x, x_scale, x_zero_point, axis=axis, block_size=block_size, stand_in=stand_ins[0])
    return y.astype(output_dtype or x_scale.dtype)


@op("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Array) -> tuple[Array | StraightThrough, Array, Array]:
    """An input of zeros has scale 0 and stays zero."""
    return levels.quantize_dynamically(x)


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
    *,
    stand_ins: StandIns,
) -> Array | StraightThrough:
    """Scales and zero points of A may be one for each row, those of B one for each column."""
    kind = np.dtype(np.float32 if dtypes.is_float(a.dtype) or dtypes.is_float(b.dtype) else np.int32)
    left, right = (a, _by_row(a_zero_point), stand_ins[0]), (b, b_zero_point, stand_ins[3])
    y = levels.as_floats(levels.multiplied(jnp.matmul, left, right, kind))
    return levels.requantized(y, _by_row(a_scale), b_scale, y_scale, y_zero_point)


def _by_row(values: Array) -> Array:
    return values[:, None] if values.ndim == 1 and values.size > 1 else values


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
    stand_ins: StandIns,
) -> Array | StraightThrough:
    """The bias is in the scale of the product of integers."""
    axes = windows.place(x.shape[2:], kernel_shape or w.shape[2:], strides, pads, dilations, auto_pad)
    images = (x, x_zero_point.reshape(()), stand_ins[0])
    kernels = (w, levels.spread(w_zero_point, w, 0, 0), stand_ins[3])
    y = levels.as_floats(levels.convolved(images, kernels, b, None if b is None else stand_ins[8], axes, group))
    w_scale = levels.spread(w_scale, y, 1, 0)
    return levels.requantized(y, x_scale.reshape(()), w_scale, y_scale.reshape(()), y_zero_point.reshape(()))
