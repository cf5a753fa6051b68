"""Convolution and its relatives, in any number of spatial dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onnxtrain.errors import OperatorError
from onnxtrain.lowering import levels, sampling, static, windows
from onnxtrain.lowering.registry import Array, Ints, StandIns, StraightThrough, op
from onnxtrain.lowering.static import widened


@op("Conv")
def conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str,
    dilations: Ints | None = None,
    group: int,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    _check_kernel(w, kernel_shape)
    axes = windows.place(x.shape[2:], w.shape[2:], strides, pads, dilations, auto_pad)
    return _biased(windows.convolve(x, w, axes, group), b)


def _check_kernel(w: Array, kernel_shape: Sequence[int] | None) -> None:
    if kernel_shape and tuple(kernel_shape) != w.shape[2:]:
        raise OperatorError(f"kernel_shape {list(kernel_shape)} is not the shape of the kernels {list(w.shape[2:])}.")


def _biased(y: Array, b: Array | None) -> Array:
    return y if b is None else y + b.reshape(-1, *(1,) * (y.ndim - 2))


@op("ConvInteger")
def conv_integer(
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    *,
    auto_pad: str,
    dilations: Ints | None = None,
    group: int,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
    stand_ins: StandIns,
) -> StraightThrough:
    """Padding is the zero point of x. The zero point of w may be one number for each output channel."""
    _check_kernel(w, kernel_shape)
    axes = windows.place(x.shape[2:], w.shape[2:], strides, pads, dilations, auto_pad)
    images, kernels = (
        (values, None if zero_point is None else levels.spread(zero_point, values, 0, 0), stand_in)
        for values, zero_point, stand_in in zip((x, w), (x_zero_point, w_zero_point), stand_ins, strict=False)
    )
    return levels.multiplied(lambda x, w: windows.convolve(x, w, axes, group), images, kernels)


@op("ConvTranspose")
def conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str,
    dilations: Ints | None = None,
    group: int,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """An output_shape may name batch and channels too. What lies beyond every window is the bias alone."""
    _check_kernel(w, kernel_shape)
    axes = windows.place(x.shape[2:], w.shape[2:], strides, pads, dilations)
    extra = output_padding or (0,) * len(axes)
    sizes = tuple(output_shape)[-len(axes) :] if output_shape else (None,) * len(axes)
    padding = [_transposed(*given, auto_pad) for given in zip(axes, extra, sizes, strict=True)]
    y = lax.conv_general_dilated(
        x,
        _flipped(w, group),
        window_strides=[1] * len(axes),
        padding=padding,
        lhs_dilation=[axis.stride for axis in axes],
        rhs_dilation=[axis.dilation for axis in axes],
        feature_group_count=group,
    )
    return _biased(y, b)


def _transposed(axis: windows.Axis, extra: int, size: int | None, auto_pad: str) -> tuple[int, int]:
    """Padding of the stretched input that gives the wanted part of the full output, of `size` when that is said."""
    full = axis.stride * (axis.size - 1) + axis.extent
    before = axis.before
    if size is None and auto_pad.startswith("SAME"):
        size = axis.size * axis.stride
    if size is not None:
        before, _ = windows.halves(max(full + extra - size, 0), auto_pad)
    elif auto_pad == "VALID":
        before, size = 0, full + extra
    else:
        size = full + extra - axis.before - axis.after
    return axis.extent - 1 - before, axis.extent - 1 + before + size - full


def _flipped(w: Array, group: int) -> Array:
    """Kernels [C, M / group, ...] as those of the convolution that does the same: [M, C / group, ...], reversed."""
    channels, features, *kernel = w.shape
    w = w.reshape(group, channels // group, features, *kernel).swapaxes(1, 2)
    return jnp.flip(w.reshape(group * features, channels // group, *kernel), range(2, w.ndim - 1))


@op("DeformConv")
def deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    b: Array | None = None,
    mask: Array | None = None,
    *,
    dilations: Ints | None = None,
    group: int,
    kernel_shape: Ints | None = None,
    offset_group: int,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """What is sampled between elements is interpolated linearly, and zero outside."""
    _check_kernel(w, kernel_shape)
    axes = windows.place(x.shape[2:], w.shape[2:], strides, pads, dilations)
    counts = tuple(axis.count() for axis in axes)
    rows, elements = x.shape[0] * offset_group, math.prod(w.shape[2:])
    coordinates = _deformed(axes, widened(offset).reshape(rows, elements, len(axes), *counts))
    images = x.reshape(rows, x.shape[1] // offset_group, *x.shape[2:])
    taps = [sampling.linear_taps(coordinates[:, :, i].reshape(rows, -1)) for i in range(len(axes))]
    columns = sampling.values(images, jnp.arange(rows), taps).reshape(rows, -1, elements, *counts)
    if mask is not None:
        columns = columns * widened(mask).reshape(rows, 1, elements, *counts)
    columns = columns.reshape(x.shape[0], group, -1, math.prod(counts))
    kernels = widened(w).reshape(group, w.shape[0] // group, -1)
    y = jnp.einsum("ngkp,gmk->ngmp", columns, kernels).reshape(x.shape[0], w.shape[0], *counts)
    return _biased(y.astype(x.dtype), b)


def _deformed(axes: Sequence[windows.Axis], offset: Array) -> Array:
    """Where each element of each window is read, [rows, elements, axes, ...windows]."""
    grids = []
    for i, axis in enumerate(axes):
        shape = [1] * (2 * len(axes))
        shape[i], shape[len(axes) + i] = axis.kernel, axis.count()
        grids.append(np.broadcast_to(axis.positions().T.reshape(shape), _window_grid(axes)))
    places = np.stack(grids).reshape(len(axes), -1, *(axis.count() for axis in axes)).swapaxes(0, 1)
    return offset + jnp.asarray(places, offset.dtype)


def _window_grid(axes: Sequence[windows.Axis]) -> tuple[int, ...]:
    return (*(axis.kernel for axis in axes), *(axis.count() for axis in axes))


@op("Col2Im")
def col2im(
    input: Array,
    image_shape: Ints,
    block_shape: Ints,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Where blocks overlap, their elements are added."""
    static.check_shape((*input.shape[:1], *image_shape))
    static.check_shape(block_shape)
    axes = windows.place(image_shape, block_shape, strides, pads, dilations)
    channels = input.shape[1] // math.prod(block_shape)
    y = jnp.asarray(input).reshape(input.shape[0], channels, *block_shape, *(axis.count() for axis in axes))
    for i, axis in enumerate(axes):
        # the axis of its elements is the third one now, that of its windows comes after all elements that are left
        y = _overlapped(jnp.moveaxis(y, 2 + len(axes) - i, -1), axis)
    return y


def _overlapped(y: Array, axis: windows.Axis) -> Array:
    """Adds up windows, with their elements on axis 2 and one after the other on the last, to an axis of the image."""
    span = (axis.count() - 1) * axis.stride + 1
    parts = []
    for element in range(axis.kernel):
        start = element * axis.dilation - axis.before
        widths = [(0, 0, 0)] * (y.ndim - 2) + [(start, axis.size - start - span, axis.stride - 1)]
        parts.append(lax.pad(y[:, :, element], jnp.zeros((), y.dtype), widths))
    return reduce(jnp.add, parts)


@op("CausalConvWithState")
def causal_conv_with_state(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
    *,
    activation: str,
) -> tuple[Array, Array]:
    """The sum is written out, element by element of the kernel: each channel has its own, and they are short."""
    length, kernel = input.shape[2], weight.shape[2]
    if past_state is None:
        past_state = jnp.zeros((*input.shape[:2], kernel - 1), input.dtype)
    padded = jnp.concatenate([past_state, input], axis=2)
    wide, weights = widened(padded), widened(weight)
    y = sum(wide[:, :, i : i + length] * weights[:, 0, i : i + 1] for i in range(kernel))
    y = _biased(y, None if bias is None else widened(bias))
    if activation not in ("none", "silu", "swish"):
        raise OperatorError(f"activation must be none, silu or swish, not {activation!r}.")
    y = y if activation == "none" else jax.nn.silu(y)
    return y.astype(input.dtype), padded[:, :, length:]
