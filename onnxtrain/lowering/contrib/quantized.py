"""Operators on quantized values: what goes in stands for floats, and what comes out is quantized again.

Their gradients are those of the floats, straight through both ends.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import OperatorError
from onnxtrain.lowering import levels, windows
from onnxtrain.lowering.contrib.domains import microsoft
from onnxtrain.lowering.registry import Array, Ints, StandIns, StraightThrough


@microsoft("QuantizeLinear", folds=True)
def quantize_linear(
    x: Array, y_scale: Array, y_zero_point: Array | None = None, *, axis: int = 1
) -> Array | StraightThrough:
    dtype = np.dtype(np.uint8 if y_zero_point is None else y_zero_point.dtype)
    return levels.quantize(x, y_scale, y_zero_point, dtype, axis=axis)


@microsoft("DequantizeLinear", folds=True)
def dequantize_linear(
    x: Array, x_scale: Array, x_zero_point: Array | None = None, *, axis: int = 1, stand_ins: StandIns
) -> Array:
    return levels.dequantize(x, x_scale, x_zero_point, axis=axis, stand_in=stand_ins[0]).astype(x_scale.dtype)


def _real(x: Array, scale: Array, zero_point: Array | None, stand_in: Array | None) -> Array:
    return levels.dequantize(x, scale.reshape(()), zero_point, stand_in=stand_in)


def _quantized(y: Array, scale: Array, zero_point: Array | None, like: Array) -> Array | StraightThrough:
    zero_point = None if zero_point is None else zero_point.reshape(())
    return levels.quantize(y, scale.reshape(()), zero_point, np.dtype(like.dtype))


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
    *,
    stand_ins: StandIns,
) -> Array | StraightThrough:
    total = _real(a, a_scale, a_zero_point, stand_ins[0]) + _real(b, b_scale, b_zero_point, stand_ins[3])
    return _quantized(total, c_scale, c_zero_point, a)


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
    *,
    stand_ins: StandIns,
) -> Array | StraightThrough:
    product = _real(a, a_scale, a_zero_point, stand_ins[0]) * _real(b, b_scale, b_zero_point, stand_ins[3])
    return _quantized(product, c_scale, c_zero_point, a)


@microsoft("QLinearConcat")
def q_linear_concat(
    y_scale: Array, y_zero_point: Array, *inputs: Array, axis: int, stand_ins: StandIns
) -> Array | StraightThrough:
    """Inputs are in groups of three: values, scale and zero point."""
    if len(inputs) % 3:
        raise OperatorError(f"{len(inputs)} inputs are no groups of values, scale and zero point.")
    groups = zip(inputs[::3], inputs[1::3], inputs[2::3], stand_ins[2::3], strict=True)
    joined = jnp.concatenate([_real(*group) for group in groups], axis)
    return _quantized(joined, y_scale, y_zero_point, inputs[0])


@microsoft("QLinearLeakyRelu")
def q_linear_leaky_relu(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    alpha: float = 0.01,
    stand_ins: StandIns,
) -> Array | StraightThrough:
    real = _real(x, x_scale, x_zero_point, stand_ins[0])
    return _quantized(jnp.where(real < 0, alpha * real, real), y_scale, y_zero_point, x)


@microsoft("QLinearSigmoid")
def q_linear_sigmoid(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    stand_ins: StandIns,
) -> Array | StraightThrough:
    real = _real(x, x_scale, x_zero_point, stand_ins[0])
    return _quantized(jax.nn.sigmoid(real), y_scale, y_zero_point, x)


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
    stand_ins: StandIns,
) -> Array | StraightThrough:
    """Before opset 13 the softmax is over all axes from `axis` on."""
    axes = (axis % x.ndim,) if opset >= 13 else tuple(range(axis % x.ndim, x.ndim))
    real = _real(x, x_scale, x_zero_point, stand_ins[0])
    return _quantized(jax.nn.softmax(real, axes), y_scale, y_zero_point, x)


@microsoft("QLinearGlobalAveragePool")
def q_linear_global_average_pool(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    *,
    channels_last: bool = False,
    stand_ins: StandIns,
) -> Array | StraightThrough:
    axes = tuple(range(1, x.ndim - 1) if channels_last else range(2, x.ndim))
    real = _real(x, x_scale, x_zero_point, stand_ins[0])
    return _quantized(real.mean(axes, keepdims=True), y_scale, y_zero_point, x)


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
    stand_ins: StandIns,
) -> Array | StraightThrough:
    real = _real(x, x_scale, x_zero_point, stand_ins[0])
    images = jnp.moveaxis(real, -1, 1) if channels_last else real
    axes = windows.place(images.shape[2:], kernel_shape, strides, pads, None, auto_pad)
    y = windows.average(images, axes, ceil_mode, count_include_pad)
    return _quantized(jnp.moveaxis(y, 1, -1) if channels_last else y, y_scale, y_zero_point, x)


@microsoft("QLinearWhere")
def q_linear_where(
    condition: Array,
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    y: Array,
    y_scale: Array,
    y_zero_point: Array,
    z_scale: Array,
    z_zero_point: Array,
    *,
    stand_ins: StandIns,
) -> Array | StraightThrough:
    real_x, real_y = _real(x, x_scale, x_zero_point, stand_ins[1]), _real(y, y_scale, y_zero_point, stand_ins[4])
    return _quantized(jnp.where(condition, real_x, real_y), z_scale, z_zero_point, x)


@microsoft("QLinearConv")
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
    auto_pad: str = "NOTSET",
    channels_last: bool = False,
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
    stand_ins: StandIns,
) -> Array | StraightThrough:
    """The kernels have their channels in front wherever the images have theirs."""
    values, stand_in = x, stand_ins[0]
    if channels_last:
        values = jnp.moveaxis(jnp.asarray(x), -1, 1)
        stand_in = None if stand_in is None else jnp.moveaxis(stand_in, -1, 1)
    axes = windows.place(values.shape[2:], kernel_shape or w.shape[2:], strides, pads, dilations, auto_pad)
    images = (values, x_zero_point.reshape(()), stand_in)
    kernels = (w, levels.spread(w_zero_point, w, 0, 0), stand_ins[3])
    y = levels.as_floats(levels.convolved(images, kernels, b, None if b is None else stand_ins[8], axes, group))
    y = jnp.moveaxis(y, 1, -1) if channels_last else y
    w_scale = levels.spread(w_scale, y, -1 if channels_last else 1, 0)
    return levels.requantized(y, x_scale.reshape(()), w_scale, y_scale.reshape(()), y_zero_point.reshape(()))


@microsoft("NhwcMaxPool", carries=True)
def nhwc_max_pool(
    x: Array,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    dilations: Ints | None = None,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    axes = windows.place(x.shape[1:-1], kernel_shape, strides, pads, dilations, auto_pad)
    return jnp.moveaxis(windows.maximum(jnp.moveaxis(jnp.asarray(x), -1, 1), axes, ceil_mode), 1, -1)
