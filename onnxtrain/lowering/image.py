"""Resizing of images, and sampling them on a grid."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import lax

from onnxtrain import dtypes
from onnxtrain.errors import OperatorError, missing_extra
from onnxtrain.lowering import sampling, static
from onnxtrain.lowering.registry import Array, Floats, Ints, Static, op
from onnxtrain.lowering.static import widened


@dataclass(frozen=True)
class _Scheme:
    """How Resize finds values between the elements; the fields are its attributes."""

    mode: str
    coordinate_transformation_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation_value: float = 0.0


@dataclass(frozen=True)
class _Extent:
    """One axis to resize: from `size` elements to `target`, the part between `start` and `end` of the input."""

    size: int
    target: int
    scale: float
    start: float = 0.0
    end: float = 1.0


@op("Upsample", since=1, carries=True)
def upsample_height_and_width(x: Array, *, mode: str, height_scale: float, width_scale: float) -> Array:
    return upsample(x, (1.0, 1.0, height_scale, width_scale), mode=mode)


@op("Upsample", since=7, carries=True)
def upsample(x: Array, scales: Floats, *, mode: str) -> Array:
    scheme = _Scheme("linear" if mode == "bilinear" else mode, "asymmetric", nearest_mode="floor")
    return _resized(x, range(x.ndim), _scaled(x.shape, scales), scheme)


@op("Resize", since=10, carries=True)
def resize_from_corner(x: Array, scales: Floats, *, mode: str) -> Array:
    """Undefined in ONNX: which element is nearest; shrinking takes the next one and growing the last one."""
    scheme = _Scheme(mode, "asymmetric", nearest_mode="by_direction")
    return _resized(x, range(x.ndim), _scaled(x.shape, scales), scheme)


@op("Resize", since=11, carries=True)
def resize(
    x: Array,
    roi: Floats = (),
    scales: Floats = (),
    sizes: Ints = (),
    *,
    antialias: bool = False,
    axes: Ints | None = None,
    coordinate_transformation_mode: str,
    cubic_coeff_a: float,
    exclude_outside: bool,
    extrapolation_value: float,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str,
    nearest_mode: str,
) -> Array:
    """Integers are rounded and saturate."""
    scheme = _Scheme(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        exclude_outside,
        antialias,
        extrapolation_value,
    )
    along = range(x.ndim) if axes is None else tuple(axis % x.ndim for axis in axes)
    lengths = [x.shape[axis] for axis in along]
    if bool(scales) == bool(sizes):
        raise OperatorError("Exactly one of scales and sizes must be given.")
    extents = _scaled(lengths, scales) if scales else _sized(lengths, sizes, keep_aspect_ratio_policy)
    if coordinate_transformation_mode == "tf_crop_and_resize":
        extents = _cropped(extents, roi, bool(scales))
    return _resized(x, along, extents, scheme)


def _scaled(lengths: Sequence[int], scales: Sequence[float]) -> list[_Extent]:
    if len(scales) != len(lengths):
        raise OperatorError(f"{len(lengths)} axes need as many scales, and {len(scales)} were given.")
    return [
        # in float32, as exporters expect: ten times 0.7 is 7 and not a little less
        _Extent(length, int(np.float32(length) * np.float32(scale)), scale)
        for length, scale in zip(lengths, scales, strict=True)
    ]


def _sized(lengths: Sequence[int], sizes: Sequence[int], policy: str) -> list[_Extent]:
    if len(sizes) != len(lengths):
        raise OperatorError(f"{len(lengths)} axes need as many sizes, and {len(sizes)} were given.")
    ratios = [size / length for size, length in zip(sizes, lengths, strict=True)]
    if policy == "stretch":
        return [_Extent(*row) for row in zip(lengths, sizes, ratios, strict=True)]
    if policy not in ("not_larger", "not_smaller"):
        raise OperatorError(f"keep_aspect_ratio_policy {policy!r} is unknown.")
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [_Extent(length, int(ratio * length + 0.5), ratio) for length in lengths]


def _cropped(extents: Sequence[_Extent], roi: Sequence[float], scaled: bool) -> list[_Extent]:
    """The extents of the region of interest; a scale refers to the region, a size is that of the output."""
    if len(roi) != 2 * len(extents):
        raise OperatorError(f"tf_crop_and_resize of {len(extents)} axes needs a roi of {2 * len(extents)} numbers.")
    cropped = []
    for extent, start, end in zip(extents, roi[: len(extents)], roi[len(extents) :], strict=True):
        target = int(extent.size * (end - start) * extent.scale) if scaled else extent.target
        cropped.append(_Extent(extent.size, target, extent.scale, start, end))
    return cropped


def _resized(x: Array, axes: Sequence[int], extents: Sequence[_Extent], scheme: _Scheme) -> Array:
    changed = [
        (axis, extent)
        for axis, extent in zip(axes, extents, strict=True)
        if (extent.size, extent.scale, extent.start, extent.end) != (extent.target, 1, 0, 1)
    ]
    if not changed:
        return x
    if scheme.mode == "nearest":
        for axis, extent in changed:
            x = _nearest(x, axis, extent, scheme)
        return x
    if scheme.mode not in ("linear", "cubic"):
        raise OperatorError(f"mode must be nearest, linear or cubic, not {scheme.mode!r}.")
    dtype = np.dtype(x.dtype)
    inexact = dtypes.is_float(dtype) or dtypes.is_complex(dtype)
    y = widened(x) if inexact else jnp.asarray(x).astype(float)
    for axis, extent in changed:
        y = _interpolated(y, axis, extent, scheme)
    return y.astype(dtype) if inexact else _saturated(y, dtype)


def _saturated(y: Array, dtype: np.dtype) -> Array:
    limits = np.iinfo(dtype)
    return jnp.clip(jnp.round(y), float(limits.min), float(limits.max)).astype(dtype)


def _nearest(x: Array, axis: int, extent: _Extent, scheme: _Scheme) -> Array:
    # in float32, whose rounding undoes that of a scale such as 2.6 where a position should be a whole number
    positions = _positions(extent, scheme.coordinate_transformation_mode, np.float32)
    chosen = np.clip(_rounded(positions, extent, scheme.nearest_mode), 0, extent.size - 1).astype(np.int64)
    factor = extent.target // max(extent.size, 1)
    xnp = static.namespace(x)
    if factor and np.array_equal(chosen, np.repeat(np.arange(extent.size), factor)):
        y = xnp.repeat(x, factor, axis)  # its gradient is a sum, that of indexing a scatter
    else:
        y = xnp.take(x, chosen, axis)
    outside = _outside(positions, extent, scheme)
    return (
        y
        if outside is None
        else xnp.where(_along(outside, axis, y), xnp.asarray(scheme.extrapolation_value, y.dtype), y)
    )


def _rounded(positions: np.ndarray, extent: _Extent, nearest_mode: str) -> np.ndarray:
    match nearest_mode:
        case "round_prefer_floor":
            return np.ceil(positions - 0.5)
        case "round_prefer_ceil":
            return np.floor(positions + 0.5)
        case "floor":
            return np.floor(positions)
        case "ceil":
            return np.ceil(positions)
        case "by_direction":
            return np.ceil(positions) if extent.scale < 1 else np.floor(positions)
    raise OperatorError(f"nearest_mode {nearest_mode!r} is unknown.")


def _interpolated(x: Array, axis: int, extent: _Extent, scheme: _Scheme) -> Array:
    positions = _positions(extent, scheme.coordinate_transformation_mode, np.float64)
    weights = jnp.asarray(_weights(positions, extent, scheme), x.dtype)
    y = jnp.tensordot(x, weights, (axis, 1), precision=lax.Precision.HIGHEST)
    y = jnp.moveaxis(y, -1, axis)
    outside = _outside(positions, extent, scheme)
    return y if outside is None else jnp.where(_along(outside, axis, y), scheme.extrapolation_value, y)


def _positions(extent: _Extent, transformation: str, dtype: type) -> np.ndarray:
    """Where each output element lies on the input axis, computed in a type."""
    size, scale = extent.size, extent.scale
    length = scale * size  # as asked for: a scale may ask for a part of an element
    at = np.arange(extent.target, dtype=dtype)
    match transformation:
        case "half_pixel":
            return (at + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            return size / 2 * (1 - extent.target / length) + (at + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (at + 0.5) / scale - 0.5 if extent.target > 1 else np.zeros_like(at)
        case "align_corners":
            return at * (size - 1) / (length - 1) if length != 1 else np.zeros_like(at)
        case "asymmetric":
            return at / scale
        case "tf_half_pixel_for_nn":
            return (at + 0.5) / scale
        case "tf_crop_and_resize":
            return _cropped_positions(at, extent)
    raise OperatorError(f"coordinate_transformation_mode {transformation!r} is unknown.")


def _cropped_positions(at: np.ndarray, extent: _Extent) -> np.ndarray:
    last = extent.size - 1
    if extent.target == 1:
        return np.full_like(at, (extent.start + extent.end) * last / 2)
    return extent.start * last + at * (extent.end - extent.start) * last / (extent.target - 1)


def _outside(positions: np.ndarray, extent: _Extent, scheme: _Scheme) -> np.ndarray | None:
    """Which output elements lie beyond the input and take the extrapolation value, if any do."""
    if scheme.coordinate_transformation_mode != "tf_crop_and_resize":
        return None
    outside = (positions < 0) | (positions > extent.size - 1)
    return outside if outside.any() else None


def _along(mask: np.ndarray, axis: int, y: Array) -> np.ndarray:
    return mask.reshape([-1 if i == axis else 1 for i in range(y.ndim)])


def _weights(positions: np.ndarray, extent: _Extent, scheme: _Scheme) -> np.ndarray:
    """The share of each input element in each output element, [target, size]."""
    shrink = min(extent.scale, 1.0) if scheme.antialias else 1.0
    reach = 1 if scheme.mode == "linear" else 2
    first = np.ceil(positions - reach / shrink)
    neighbours = first[:, None] + np.arange(int(2 * reach / shrink) + 2)
    distances = np.abs(neighbours - positions[:, None]) * shrink
    share = np.maximum(1 - distances, 0) if reach == 1 else _cubic(distances, scheme.cubic_coeff_a)
    if scheme.exclude_outside:
        share = np.where((neighbours < 0) | (neighbours >= extent.size), 0, share)
    total = share.sum(axis=1, keepdims=True)
    weights = np.zeros((extent.target, extent.size))
    columns = np.clip(neighbours, 0, extent.size - 1).astype(np.int64)
    np.add.at(weights, (np.arange(extent.target)[:, None], columns), share / np.where(total == 0, 1, total))
    return weights


def _cubic(distances: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel of cubic convolution."""
    near = ((a + 2) * distances - (a + 3)) * distances**2 + 1
    far = ((a * distances - 5 * a) * distances + 8 * a) * distances - 4 * a
    return np.where(distances <= 1, near, np.where(distances < 2, far, 0))


@op("GridSample")
def grid_sample(x: Array, grid: Array, *, align_corners: bool, mode: str, padding_mode: str) -> Array:
    """Integers are cut towards zero."""
    dtype = np.dtype(x.dtype)
    inexact = dtypes.is_float(dtype) or dtypes.is_complex(dtype)
    images = jnp.asarray(x) if inexact else jnp.asarray(x).astype(float)
    rows, sizes = x.shape[0], x.shape[2:]
    # the last number of a grid's point belongs to the first spatial axis
    points = widened(grid).reshape(rows, -1, len(sizes))[..., ::-1]
    taps = [_grid_taps(points[..., axis], size, mode, align_corners) for axis, size in enumerate(sizes)]
    fold = _folds(padding_mode, align_corners)
    y = sampling.values(images, jnp.arange(rows), taps, fold)
    return y.reshape(rows, x.shape[1], *grid.shape[1:-1]).astype(dtype)


def _grid_taps(points: Array, size: int, mode: str, align_corners: bool) -> sampling.Taps:
    at = (points + 1) / 2 * (size - 1) if align_corners else ((points + 1) * size - 1) / 2
    match mode:
        case "nearest":
            return sampling.nearest_taps(at)
        case "linear" | "bilinear":
            return sampling.linear_taps(at)
        case "cubic" | "bicubic":
            return sampling.cubic_taps(at)
    raise OperatorError(f"mode must be nearest, linear or cubic, not {mode!r}.")


def _folds(padding_mode: str, align_corners: bool) -> sampling.Fold | None:
    def clamp(indices: Array, size: int) -> Array:
        return jnp.clip(indices, 0, size - 1)

    def reflect(indices: Array, size: int) -> Array:
        # the ends lie on the outermost elements, or half an element further out
        turn = 2 * (size - 1) if align_corners else 2 * size
        there = jnp.mod(indices, max(turn, 1))
        return jnp.minimum(there, turn - there if align_corners else turn - 1 - there)

    folds = {"zeros": None, "border": clamp, "reflection": reflect}
    if padding_mode not in folds:
        raise OperatorError(f"padding_mode must be zeros, border or reflection, not {padding_mode!r}.")
    return folds[padding_mode]


@op("AffineGrid")
def affine_grid(theta: Array, size: Ints, *, align_corners: bool) -> Array:
    axes = []
    for length in size[2:]:
        edge = (length - 1) / length if not align_corners else min(length - 1, 1)
        axes.append(np.linspace(-edge, edge, length))
    # points are listed from the last axis to the first
    points = np.stack([*np.meshgrid(*axes, indexing="ij")[::-1], np.ones(size[2:])], -1)
    wide = widened(theta)
    grid = jnp.einsum("...j,nij->n...i", jnp.asarray(points, wide.dtype), wide, precision=lax.Precision.HIGHEST)
    return grid.astype(theta.dtype)


@op("ImageDecoder", host=True)
def image_decoder(encoded_stream: Static, *, pixel_format: str) -> np.ndarray:
    """What cannot be decoded gives an image of no elements."""
    if importlib.util.find_spec("PIL") is None:
        raise missing_extra("pillow", "image", "ImageDecoder")
    from PIL import Image, UnidentifiedImageError

    modes = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}
    if pixel_format not in modes:
        raise OperatorError(f"pixel_format must be RGB, BGR or Grayscale, not {pixel_format!r}.")
    try:
        image = np.asarray(Image.open(io.BytesIO(encoded_stream.tobytes())).convert(modes[pixel_format]))
    except (UnidentifiedImageError, OSError):
        return np.zeros((0, 0, 1 if pixel_format == "Grayscale" else 3), np.uint8)
    image = image.reshape(*image.shape[:2], -1)
    return image[..., ::-1] if pixel_format == "BGR" else image
