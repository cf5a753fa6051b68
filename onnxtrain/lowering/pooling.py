"""Pooling over windows and over whole images, and the inverse of max pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onnxtrain.lowering import windows
from onnxtrain.lowering.registry import Array, Ints, OutputCount, op
from onnxtrain.lowering.static import widened


@op("MaxPool")
def max_pool(
    x: Array,
    *,
    auto_pad: str,
    ceil_mode: bool = False,
    dilations: Ints | None = None,
    kernel_shape: Ints,
    pads: Ints | None = None,
    storage_order: int = 0,
    strides: Ints | None = None,
    outputs: OutputCount,
) -> Array | tuple[Array, Array]:
    """The gradient goes to the first maximum of a window. Indices of column-major order count so within one image."""
    axes = windows.place(x.shape[2:], kernel_shape, strides, pads, dilations, auto_pad)
    x = jnp.asarray(x)
    y = _max_of_windows(x, axes, ceil_mode)
    return (y, _indices_of_maxima(x, axes, ceil_mode, storage_order)) if outputs > 1 else y


def _max_of_windows(x: Array, axes: Sequence[windows.Axis], ceil_mode: bool) -> Array:
    lowest = _lowest(x.dtype)
    if windows.few(axes) or any(axis.dilation > 1 for axis in axes):
        (y,) = windows.fold(lambda a, b: (_first_maximum(*a, *b),), (x,), (lowest,), axes, ceil_mode)
        return y
    return lax.reduce_window(x, lowest, lax.max, *_window_arguments(axes, ceil_mode))


def _lowest(dtype: np.dtype) -> Any:
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else np.iinfo(dtype).min


def _window_arguments(axes: Sequence[windows.Axis], ceil_mode: bool) -> tuple[Any, ...]:
    """Window, strides and padding of `lax.reduce_window`, with batch and channels in front."""
    padding = [(before, max(after, 0)) for before, after in (windows.padding(axis, ceil_mode) for axis in axes)]
    return (
        (1, 1, *(axis.kernel for axis in axes)),
        (1, 1, *(axis.stride for axis in axes)),
        [(0, 0), (0, 0), *padding],
    )


@jax.custom_jvp
def _first_maximum(earlier: Array, later: Array) -> Array:
    return jnp.maximum(earlier, later)


@_first_maximum.defjvp
def _first_maximum_jvp(values: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    # jnp.maximum would share the gradient between equal elements
    earlier, later = values
    return _first_maximum(earlier, later), jnp.where(earlier >= later, *tangents)


def _indices_of_maxima(x: Array, axes: Sequence[windows.Axis], ceil_mode: bool, storage_order: int) -> Array:
    sizes = x.shape[2:]
    image = np.arange(np.prod(sizes)).reshape(sizes, order="F" if storage_order else "C")
    planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * len(sizes)) * image.size
    positions = jnp.broadcast_to(jnp.asarray(image), x.shape)

    def first(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        keep = a[0] >= b[0]
        return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])

    arrays = (lax.stop_gradient(x), positions)
    _, found = windows.fold(first, arrays, (_lowest(x.dtype), -1), axes, ceil_mode)
    return found + planes


@op("AveragePool")
def average_pool(
    x: Array,
    *,
    auto_pad: str,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    dilations: Ints | None = None,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Elements beyond the padding, where a window overhangs in ceil mode, never count."""
    axes = windows.place(x.shape[2:], kernel_shape, strides, pads, dilations, auto_pad)
    wide = widened(x)
    total = _sum_of_windows(wide, axes, ceil_mode)
    return (total / _counts(axes, ceil_mode, count_include_pad).astype(wide.dtype)).astype(x.dtype)


def _sum_of_windows(x: Array, axes: Sequence[windows.Axis], ceil_mode: bool) -> Array:
    if windows.few(axes):
        (total,) = windows.fold(lambda a, b: (a[0] + b[0],), (x,), (0,), axes, ceil_mode)
        return total
    dilations = (1, 1, *(axis.dilation for axis in axes))
    return lax.reduce_window(x, 0.0, lax.add, *_window_arguments(axes, ceil_mode), window_dilation=dilations)


def _counts(axes: Sequence[windows.Axis], ceil_mode: bool, count_include_pad: bool) -> np.ndarray:
    """How many elements each window averages."""
    counts = np.ones((), np.int64)
    for axis in axes:
        before, after = (axis.before, axis.after) if count_include_pad else (0, 0)
        positions = axis.positions(ceil_mode)
        inside = (positions >= -before) & (positions < axis.size + after)
        counts = np.multiply.outer(counts, inside.sum(axis=1))
    return counts


@op("LpPool")
def lp_pool(
    x: Array,
    *,
    auto_pad: str,
    ceil_mode: bool = False,
    dilations: Ints | None = None,
    kernel_shape: Ints,
    p: float,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    axes = windows.place(x.shape[2:], kernel_shape, strides, pads, dilations, auto_pad)
    total = _sum_of_windows(_powers(widened(x), p), axes, ceil_mode)
    return _root(total, p).astype(x.dtype)


def _powers(x: Array, p: float) -> Array:
    return jnp.square(x) if p == 2 else jnp.abs(x) ** float(p)


def _root(total: Array, p: float) -> Array:
    """The p-th root, with gradient 0 at 0."""
    positive = total > 0
    safe = jnp.where(positive, total, 1)
    return jnp.where(positive, jnp.sqrt(safe) if p == 2 else safe ** (1 / p), 0)


@op("GlobalAveragePool")
def global_average_pool(x: Array) -> Array:
    return widened(x).mean(_spatial(x), keepdims=True).astype(x.dtype)


@op("GlobalMaxPool")
def global_max_pool(x: Array) -> Array:
    """The gradient goes to the first maximum."""
    flat = jnp.reshape(x, (*x.shape[:2], -1))
    first = lax.stop_gradient(flat).argmax(axis=-1, keepdims=True)
    return jnp.take_along_axis(flat, first, axis=-1).reshape(*x.shape[:2], *(1,) * (x.ndim - 2))


@op("GlobalLpPool")
def global_lp_pool(x: Array, *, p: float) -> Array:
    return _root(_powers(widened(x), p).sum(_spatial(x), keepdims=True), p).astype(x.dtype)


def _spatial(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))
