"""Shapes: asking for them, changing them, and cutting, joining, repeating, padding and rearranging what they hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import OperatorError
from onnxtrain.lowering import static
from onnxtrain.lowering.registry import Array, Int, Ints, OutputCount, Value, op
from onnxtrain.lowering.static import namespace


@op("Identity", folds=True, carries=True)
def identity(x: Value) -> Value:
    return x


@op("Shape", folds=True)
def shape(data: Array, *, start: int = 0, end: int | None = None) -> Array:
    return np.asarray(data.shape[start:end], np.int64)


@op("Size", folds=True)
def size(data: Array) -> Array:
    return np.asarray(math.prod(data.shape), np.int64)


@op("Reshape", folds=True, carries=True)
def reshape(data: Array, shape: Ints, *, allowzero: bool = False) -> Array:
    """Copied dimensions are set apart before -1 is inferred, so that an empty batch keeps its other dimensions."""
    copied = () if allowzero else tuple(i for i, length in enumerate(shape) if length == 0)
    if any(i >= data.ndim for i in copied):
        raise OperatorError(f"Shape {list(shape)} copies a dimension that {list(data.shape)} does not have.")
    target = [data.shape[i] if i in copied else length for i, length in enumerate(shape)]
    if -1 in target:
        free = math.prod(length for i, length in enumerate(data.shape) if i not in copied)
        given = math.prod(length for i, length in enumerate(shape) if i not in copied and length != -1)
        if given and free % given == 0:
            target[target.index(-1)] = free // given
    return namespace(data).reshape(data, target)


@op("Flatten", folds=True, carries=True)
def flatten(data: Array, *, axis: int) -> Array:
    kept, flattened = data.shape[:axis], data.shape[axis:]
    return namespace(data).reshape(data, (math.prod(kept), math.prod(flattened)))


@op("Squeeze", folds=True, carries=True)
def squeeze(data: Array, axes: Ints | None = None) -> Array:
    return namespace(data).squeeze(data, axis=axes)


@op("Unsqueeze", folds=True, carries=True)
def unsqueeze(data: Array, axes: Ints) -> Array:
    return namespace(data).expand_dims(data, axes)


@op("ExpandDims", domain="com.microsoft", folds=True, states_schema=True)
def expand_dims(data: Array, axis: Int) -> Array:
    """Like Unsqueeze with one axis."""
    return unsqueeze(data, (axis,))


@op("Transpose", folds=True, carries=True)
def transpose(data: Array, *, perm: Ints | None = None) -> Array:
    return namespace(data).transpose(data, perm)


@op("Concat", folds=True, carries=True)
def concat_from_second_axis(*inputs: Array, axis: int = 1) -> Array:
    """Until version 4 the axis need not be given."""
    return concat(*inputs, axis=axis)


@op("Concat", since=4, folds=True, carries=True)
def concat(*inputs: Array, axis: int) -> Array:
    return namespace(*inputs).concatenate(inputs, axis=axis)


@op("Split", folds=True, carries=True)
def split_by_input_or_attribute(
    data: Array, lengths: Ints | None = None, *, split: Ints | None = None, axis: int = 0, count: OutputCount
) -> tuple[Array, ...]:
    """Only version 1 has both an input and an attribute for the lengths."""
    return split_evenly_or_as_told(data, split if lengths is None else lengths, axis=axis, count=count)


@op("Split", since=2, folds=True, carries=True)
def split_evenly_or_as_told(
    data: Array, split: Ints | None = None, *, axis: int, num_outputs: int | None = None, count: OutputCount
) -> tuple[Array, ...]:
    """Without lengths all parts are equal, save that the last may be smaller."""
    length = data.shape[axis]
    if split is None:
        parts = num_outputs or count
        chunk = -(-length // parts)
        split = tuple(max(0, min(chunk, length - i * chunk)) for i in range(parts))
    if sum(split) != length:
        raise OperatorError(f"Parts of {list(split)} do not add up to the {length} elements of axis {axis}.")
    return tuple(namespace(data).split(data, np.cumsum(split)[:-1], axis=axis))


@op("Slice", folds=True, carries=True)
def slice_(data: Array, starts: Ints, ends: Ints, axes: Ints | None = None, steps: Ints | None = None) -> Array:
    """What lies outside the array is left out, however far outside a bound is."""
    index = [slice(None)] * data.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = i if axes is None else axes[i]
        index[axis] = _clamped(start, end, 1 if steps is None else steps[i], data.shape[axis])
    return data[tuple(index)]


def _clamped(start: int, end: int, step: int, length: int) -> slice:
    start, end = (bound + length if bound < 0 else bound for bound in (start, end))
    if step > 0:
        return slice(min(max(start, 0), length), min(max(end, 0), length), step)
    start, end = min(max(start, 0), length - 1), min(max(end, -1), length - 1)
    return slice(start, end if end >= 0 else None, step)


@op("Expand", folds=True, carries=True)
def expand(data: Array, shape: Ints) -> Array:
    """Both shapes broadcast: a dimension of the input stays where the wanted one is 1 or missing."""
    target = np.broadcast_shapes(data.shape, shape)
    static.check_shape(target)
    data = static.traced_if_large(data, math.prod(target))
    return namespace(data).broadcast_to(data, target)


@op("Tile", folds=True, carries=True)
def tile_one_axis(data: Array, tiles: Int, axis: Int) -> Array:
    """Until version 6 a tile repeats along one axis."""
    repeats = [1] * data.ndim
    repeats[axis] = tiles
    return tile(data, tuple(repeats))


@op("Tile", since=6, folds=True, carries=True)
def tile(data: Array, repeats: Ints) -> Array:
    static.check_shape((data.size, math.prod(repeats)))
    data = static.traced_if_large(data, data.size * math.prod(repeats))
    return namespace(data).tile(data, repeats)


@op("Pad", folds=True, carries=True)
def pad_by_paddings(data: Array, paddings: Ints, *, mode: str, value: float) -> Array:
    """Version 1 calls them paddings."""
    return pad(data, paddings, mode=mode, value=value)


@op("Pad", since=2, folds=True, carries=True)
def pad(
    data: Array,
    pads: Ints,
    constant_value: Array | None = None,
    axes: Ints | None = None,
    *,
    mode: str,
    value: float = 0.0,
) -> Array:
    """Negative pads crop, before any padding is done."""
    widths = _pad_widths(pads, axes, data.ndim)
    xp = namespace(data, constant_value)
    cropped = tuple(slice(max(0, -low), data.shape[i] - max(0, -high)) for i, (low, high) in enumerate(widths))
    data = data[cropped]
    widths = [(max(0, low), max(0, high)) for low, high in widths]
    static.check_shape([low + length + high for length, (low, high) in zip(data.shape, widths, strict=True)])
    if mode != "constant":
        return xp.pad(data, widths, mode=mode)
    if constant_value is None:
        constant_value = np.asarray("" if data.dtype == object else value, data.dtype)
    if static.is_static(constant_value):
        return xp.pad(data, widths, constant_values=constant_value.reshape(()))
    # lax.pad cannot be differentiated with respect to its value alone
    inside = jnp.pad(jnp.ones(data.shape, bool), widths)
    return jnp.where(inside, jnp.pad(data, widths), constant_value.reshape(()))


@op("Pad", domain="com.microsoft", folds=True, states_schema=True)
def pad_before_opset_11(data: Array, pads: Ints, value: Array | None = None, *, mode: str = "constant") -> Array:
    """What onnxruntime had before the pads of ONNX were an input."""
    return pad(data, pads, value, mode=mode)


def _pad_widths(pads: Sequence[int], axes: Sequence[int] | None, rank: int) -> list[tuple[int, int]]:
    axes = range(rank) if axes is None else axes
    if len(pads) != 2 * len(axes):
        raise OperatorError(f"{len(axes)} axes need {2 * len(axes)} pads, and there are {len(pads)}.")
    widths = [(0, 0)] * rank
    for axis, low, high in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        widths[axis] = (low, high)
    return widths


@op("CenterCropPad", folds=True, carries=True)
def center_crop_pad(data: Array, shape: Ints, *, axes: Ints | None = None) -> Array:
    """An odd pixel is cropped from, or padded on, the far side."""
    axes = tuple(range(data.ndim)) if axes is None else axes
    index = [slice(None)] * data.ndim
    widths = [(0, 0)] * data.ndim
    for axis, wanted in zip(axes, shape, strict=True):
        surplus = data.shape[axis] - wanted
        if surplus > 0:
            index[axis] = slice(surplus // 2, surplus // 2 + wanted)
        else:
            widths[axis] = (-surplus // 2, -surplus - -surplus // 2)
    return namespace(data).pad(data[tuple(index)], widths)


@op("DepthToSpace", folds=True, carries=True)
def depth_to_space(data: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    batch, depth, height, width = data.shape
    channels = depth // blocksize**2
    if mode == "DCR":
        blocks = data.reshape((batch, blocksize, blocksize, channels, height, width)).transpose((0, 3, 4, 1, 5, 2))
    else:
        blocks = data.reshape((batch, channels, blocksize, blocksize, height, width)).transpose((0, 1, 4, 2, 5, 3))
    return blocks.reshape((batch, channels, height * blocksize, width * blocksize))


@op("SpaceToDepth", folds=True, carries=True)
def space_to_depth(data: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    batch, channels, height, width = data.shape
    rows, columns = height // blocksize, width // blocksize
    blocks = data.reshape((batch, channels, rows, blocksize, columns, blocksize))
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.transpose(order).reshape((batch, channels * blocksize**2, rows, columns))


@op("Trilu", folds=True, carries=True)
def trilu(data: Array, k: Int = 0, *, upper: bool) -> Array:
    xp = namespace(data)
    return xp.triu(data, k) if upper else xp.tril(data, k)


@op("ReverseSequence", folds=True, carries=True)
def reverse_sequence(data: Array, sequence_lens: Array, *, batch_axis: int, time_axis: int) -> Array:
    """Reverses the first `sequence_lens[i]` steps of sequence i; the rest stays in place."""
    xp = namespace(data, sequence_lens)
    steps = xp.arange(data.shape[time_axis], dtype=sequence_lens.dtype)
    lengths = sequence_lens[:, None]
    sources = xp.where(steps < lengths, lengths - 1 - steps, steps)
    if batch_axis > time_axis:
        sources = sources.T
    return xp.take_along_axis(data, sources.reshape((*sources.shape, *[1] * (data.ndim - 2))), axis=time_axis)
