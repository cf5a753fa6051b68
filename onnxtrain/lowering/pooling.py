"""Pooling over windows, over whole images and over regions, and the inverse of max pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import lax

from onnxtrain.lowering import sampling, windows
from onnxtrain.lowering.registry import Array, Ints, OutputCount, op
from onnxtrain.lowering.static import is_static, magnitude, namespace, wide_dtype, widened


@op("MaxPool", carries=True)
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
    y = windows.maximum(x, axes, ceil_mode)
    return (y, _indices_of_maxima(x, axes, ceil_mode, storage_order)) if outputs > 1 else y


def _indices_of_maxima(x: Array, axes: Sequence[windows.Axis], ceil_mode: bool, storage_order: int) -> Array:
    sizes = x.shape[2:]
    image = np.arange(np.prod(sizes)).reshape(sizes, order="F" if storage_order else "C")
    planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * len(sizes)) * image.size
    positions = jnp.broadcast_to(jnp.asarray(image), x.shape)

    def first(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        keep = a[0] >= b[0]
        return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])

    arrays = (lax.stop_gradient(x), positions)
    _, found = windows.fold(first, arrays, (windows.lowest(x.dtype), -1), axes, ceil_mode)
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
    return windows.average(x, axes, ceil_mode, count_include_pad)


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
    total = windows.total(_powers(widened(x), p), axes, ceil_mode)
    return _root(total, p).astype(x.dtype)


def _powers(x: Array, p: float) -> Array:
    return jnp.square(x) if p == 2 else magnitude(x) ** float(p)


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


@op("MaxUnpool")
def max_unpool(
    x: Array,
    i: Array,
    output_shape: Ints | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Indices count in the shape that kernel, strides and pads give; an output_shape adds zeros behind, or cuts."""
    strides, pads = strides or (1,) * len(kernel_shape), pads or (0,) * (2 * len(kernel_shape))
    before, after = pads[: len(kernel_shape)], pads[len(kernel_shape) :]
    sizes = [
        (size - 1) * stride + kernel - head - tail
        for size, stride, kernel, head, tail in zip(x.shape[2:], strides, kernel_shape, before, after, strict=True)
    ]
    shape = (*x.shape[:2], *sizes)
    y = jnp.zeros(math.prod(shape), x.dtype).at[jnp.reshape(i, -1)].set(jnp.reshape(x, -1)).reshape(shape)
    if not output_shape:
        return y
    widths = [(0, wanted - size, 0) for wanted, size in zip(output_shape, shape, strict=True)]
    return lax.pad(y, jnp.zeros((), y.dtype), widths)


@op("MaxRoiPool")
def max_roi_pool(x: Array, rois: Array, *, pooled_shape: Ints, spatial_scale: float) -> Array:
    """Regions are rounded to whole elements; a part of one that lies outside the image is 0."""
    heights, widths = x.shape[2:]
    x, rois = jnp.asarray(x), widened(rois)
    corners = jnp.floor(rois[:, 1:] * spatial_scale + 0.5).astype(jnp.int32)
    rows = _bins(corners[:, 1], corners[:, 3], pooled_shape[0], heights)
    columns = _bins(corners[:, 0], corners[:, 2], pooled_shape[1], widths)

    def pool(region: tuple[Array, Array, Array]) -> Array:
        image, row, column = region
        across = jnp.where(column, x[image][:, :, None], -jnp.inf).max(-1)
        down = jnp.where(row[:, None], jnp.moveaxis(across, 1, -1)[:, None], -jnp.inf).max(-1)
        empty = ~(row.any(-1)[:, None] & column.any(-1))
        return jnp.where(empty, 0, down)

    return lax.map(pool, (rois[:, 0].astype(jnp.int32), rows, columns))


def _bins(start: Array, end: Array, count: int, size: int) -> Array:
    """Which elements of an axis each part of each region covers, [regions, parts, elements]."""
    # in integers, because a rounded quotient could reach into the next element
    length = jnp.maximum(end - start + 1, 1)[:, None]
    part = jnp.arange(count, dtype=jnp.int32)
    low = jnp.clip(part * length // count + start[:, None], 0, size)
    high = jnp.clip(-(-(part + 1) * length // count) + start[:, None], 0, size)
    at = jnp.arange(size, dtype=jnp.int32)
    return (at >= low[..., None]) & (at < high[..., None])


@op("RoiAlign")
def roi_align(
    x: Array,
    rois: Array,
    batch_indices: Array,
    *,
    coordinate_transformation_mode: str = "output_half_pixel",
    mode: str,
    output_height: int,
    output_width: int,
    sampling_ratio: int,
    spatial_scale: float,
) -> Array:
    """In mode max the weighted corners around each sample compete, as in ONNX's reference, and not the samples.

    Unsupported: adaptive sampling (sampling_ratio 0) of regions that are only known at run time and larger than the
    image; they are sampled as often as the image would be.
    """
    half_pixel = coordinate_transformation_mode == "half_pixel"
    corners = rois.astype(wide_dtype(rois.dtype)) * spatial_scale - (0.5 if half_pixel else 0.0)
    least = None if half_pixel else 1
    rows = _samples(corners[:, 1], corners[:, 3], least, output_height, sampling_ratio, x.shape[2])
    columns = _samples(corners[:, 0], corners[:, 2], least, output_width, sampling_ratio, x.shape[3])
    used = (rows.used[:, :, None] & columns.used[:, None]).reshape(len(batch_indices), -1, 1)
    taps = _crossed(_taps_on_map(rows.coordinates, x.shape[2]), _taps_on_map(columns.coordinates, x.shape[3]))
    found = sampling.terms(x, jnp.asarray(batch_indices), taps)
    shape = (len(batch_indices), output_height, rows.each, output_width, columns.each, x.shape[1])
    count = (rows.count * columns.count)[:, None, None, None]
    if mode == "avg":
        y = jnp.where(used, found.sum(1), 0).reshape(shape).sum((2, 4)) / jnp.maximum(count, 1)
    else:
        y = jnp.where(used, found.max(1), -jnp.inf).reshape(shape).max((2, 4), initial=-jnp.inf)
        y = jnp.where(count > 0, y, 0)
    return jnp.moveaxis(y, -1, 1).astype(x.dtype)


@dataclass(frozen=True)
class _Samples:
    """Where the regions are sampled on one axis: `each` times in each part, of which `count` [regions] are used."""

    coordinates: Array
    used: Array
    count: Array
    each: int


def _samples(start: Array, end: Array, least: int | None, parts: int, sampling_ratio: int, size: int) -> _Samples:
    xnp = namespace(start)
    part = (end - start if least is None else xnp.maximum(end - start, least)) / parts
    count = xnp.full(part.shape, sampling_ratio) if sampling_ratio > 0 else xnp.maximum(xnp.ceil(part), 0)
    each = sampling_ratio or (int(count.max(initial=0)) if is_static(count) else -(-size // parts) + 1)
    count = xnp.minimum(count, each).astype(part.dtype)
    number = np.arange(each, dtype=part.dtype)
    step = part / xnp.maximum(count, 1)
    corners = start[:, None] + np.arange(parts, dtype=part.dtype) * part[:, None]
    coordinates = corners[:, :, None] + ((number + 0.5) * step[:, None])[:, None]
    used = xnp.broadcast_to((number < count[:, None])[:, None], coordinates.shape)
    flat = (len(start), parts * each)
    return _Samples(jnp.asarray(coordinates.reshape(flat)), jnp.asarray(used.reshape(flat)), jnp.asarray(count), each)


def _taps_on_map(coordinates: Array, size: int) -> sampling.Taps:
    """The map reaches one element further than its elements on every side, with the values of its edge."""
    taps = sampling.linear_taps(jnp.clip(coordinates, 0, size - 1))
    on_map = (coordinates >= -1) & (coordinates <= size)
    return sampling.Taps(taps.indices, jnp.where(on_map[:, None], taps.weights, 0))


def _crossed(rows: sampling.Taps, columns: sampling.Taps) -> tuple[sampling.Taps, sampling.Taps]:
    """The taps of every point of the grid that rows and columns make."""
    height, width = rows.indices.shape[-1], columns.indices.shape[-1]
    down = sampling.Taps(*(jnp.repeat(values, width, -1) for values in (rows.indices, rows.weights)))
    across = sampling.Taps(*(jnp.tile(values, height) for values in (columns.indices, columns.weights)))
    return down, across
