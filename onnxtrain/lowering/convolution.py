"""Convolution and its transpose, in any number of spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from onnxtrain.errors import OperatorError
from onnxtrain.lowering import windows
from onnxtrain.lowering.registry import Array, Ints, op


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
) -> Array:
    """Padding is the zero point of x. The zero point of w may be one number for each output channel."""
    _check_kernel(w, kernel_shape)
    axes = windows.place(x.shape[2:], w.shape[2:], strides, pads, dilations, auto_pad)
    return windows.convolve(_centred(x, x_zero_point), _centred(w, w_zero_point), axes, group)


def _centred(x: Array, zero_point: Array | None) -> Array:
    x = jnp.asarray(x).astype(jnp.int32)
    if zero_point is None:
        return x
    each = zero_point.reshape(-1, *(1,) * (x.ndim - 1)) if zero_point.size > 1 else zero_point.reshape(())
    return x - each.astype(jnp.int32)


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
