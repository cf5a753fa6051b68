"""Reading and writing at computed places: everything goes by places in the flat tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax

from onnxtrain.authoring.jax_functions.elementwise import compare
from onnxtrain.authoring.jax_functions.writer import Equation, Size, TensorType, Writer, count_of, rule

_INT64 = np.dtype(np.int64)
_REDUCTIONS = {
    "scatter": "none",
    "scatter-add": "add",
    "scatter-mul": "mul",
    "scatter-max": "max",
    "scatter-min": "min",
}


@dataclass(frozen=True)
class _Windows:
    """Equal windows of a tensor, each at a place that is computed.

    Attributes:
      whole: the shape of the tensor.
      window: the shape of a window, of the same rank.
      shape: that of all windows together: the axes of the places and those of one window, mixed.
      window_axes: the axes of `shape` that are those of a window.
      squeezed: the axes of the tensor that have no axis in `shape`.
      moved: the axes of the tensor in the order of the numbers that make a place.
      batched: pairs of axes, of the tensor and of the places, that go together.
    """

    whole: tuple[Size, ...]
    window: tuple[Size, ...]
    shape: tuple[Size, ...]
    window_axes: tuple[int, ...]
    squeezed: tuple[int, ...]
    moved: tuple[int, ...]
    batched: tuple[tuple[int, int], ...] = ()

    @property
    def place_axes(self) -> list[int]:
        """The axes of `shape` that are those of the places."""
        return [axis for axis in range(len(self.shape)) if axis not in self.window_axes]

    def stride(self, axis: int) -> Size:
        """How far two neighbours along an axis lie apart in the flat tensor."""
        return count_of(self.whole[axis + 1 :])

    def aligned(self, axes: Sequence[int]) -> list[Size]:
        """The shape in which only these axes are longer than 1."""
        return [size if axis in axes else 1 for axis, size in enumerate(self.shape)]


@rule("gather")
def gathered(writer: Writer, equation: Equation, value: str, places: str) -> str:
    """Windows that lie outside are moved inside, or filled."""
    params, numbers = equation.params, equation.params["dimension_numbers"]
    batched = tuple(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    windows = _Windows(
        equation.inputs[0].shape,
        tuple(params["slice_sizes"]),
        equation.output.shape,
        numbers.offset_dims,
        (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims),
        numbers.start_index_map,
        batched,
    )
    flat, is_inside = _flat_places(writer, windows, places, equation.inputs[1], params["mode"])
    found = writer.op("Gather", writer.op("Reshape", value, writer.integers([-1])), flat, axis=0)
    if params["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
        return found
    filling = _filling(params["fill_value"], equation.output.dtype)
    return writer.op("Where", is_inside, found, writer.constant(filling, equation.output.dtype))


def _filling(value: Any, dtype: np.dtype[Any]) -> Any:
    if value is not None:
        return value
    if dtype == np.bool_:
        return True
    if dtype.kind not in "iu":
        return np.nan
    return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max


@rule(*_REDUCTIONS)
def scattered(writer: Writer, equation: Equation, value: str, places: str, updates: str) -> str:
    """Windows that lie outside are moved inside, or dropped."""
    numbers, window = equation.params["dimension_numbers"], equation.inputs[2].shape
    squeezed = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    sizes = iter([window[axis] for axis in numbers.update_window_dims])
    whole = equation.inputs[0].shape
    windows = _Windows(
        whole,
        tuple(1 if axis in squeezed else next(sizes) for axis in range(len(whole))),
        window,
        numbers.update_window_dims,
        squeezed,
        numbers.scatter_dims_to_operand_dims,
        tuple(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)),
    )
    flat, is_inside = _flat_places(writer, windows, places, equation.inputs[1], equation.params["mode"])
    if equation.params["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
        is_inside = ""
    return _written(writer, equation, value, flat, is_inside, updates)


def _written(writer: Writer, equation: Equation, value: str, places: str, is_inside: str, updates: str) -> str:
    """Adds the nodes that write into the flat tensor; it has one more element for what is dropped."""
    all_of_it, dtype = writer.integers([-1]), equation.output.dtype
    data = writer.op("Reshape", value, all_of_it)
    if is_inside:
        data = writer.op("Concat", data, writer.constant(np.zeros(1, dtype)), axis=0)
        places = writer.op("Where", is_inside, places, writer.size(count_of(equation.output.shape)))
    parts = (data, writer.op("Reshape", places, all_of_it), writer.op("Reshape", updates, all_of_it))
    reduction = _REDUCTIONS.get(equation.primitive, "none")
    # the attribute is younger than the operator, which refuses it before
    attributes = {} if reduction == "none" else {"reduction": reduction}
    result = writer.op("ScatterElements", *parts, axis=0, **attributes)
    if is_inside:
        result = writer.op("Slice", result, writer.integers([0]), writer.integers([-1]))
    return writer.reshape(result, equation.output.shape)


@rule("dynamic_slice")
def slice_at(writer: Writer, equation: Equation, value: str, *starts: str) -> str:
    """A slice that would go beyond an end is moved inside."""
    sizes, whole = equation.params["slice_sizes"], equation.inputs[0].shape
    cut = [axis for axis in range(len(whole)) if sizes[axis] != whole[axis]]
    if not cut:
        return value
    places = _vector(writer, [starts[axis] for axis in cut])
    latest = writer.shape([whole[axis] - sizes[axis] for axis in cut])
    first = _bounded(writer, places, latest)
    last = writer.op("Add", first, writer.shape([sizes[axis] for axis in cut]))
    return writer.op("Slice", value, first, last, writer.integers(cut))


@rule("dynamic_update_slice")
def updated_at(writer: Writer, equation: Equation, value: str, update: str, *starts: str) -> str:
    """A slice that would go beyond an end is moved inside."""
    axes, window = tuple(range(len(starts))), equation.inputs[1].shape
    windows = _Windows(equation.inputs[0].shape, window, window, axes, (), axes)
    places = _vector(writer, starts)
    kind = TensorType(_INT64, (len(starts),))
    flat, _ = _flat_places(writer, windows, places, kind, lax.GatherScatterMode.CLIP)
    return _written(writer, equation, value, flat, "", update)


def _vector(writer: Writer, numbers: Sequence[str]) -> str:
    one = writer.integers([1])
    parts = [writer.op("Reshape", writer.cast(number, _INT64), one) for number in numbers]
    return writer.op("Concat", *parts, axis=0)


def _bounded(writer: Writer, places: str, latest: str) -> str:
    zero = writer.integers(0)
    return writer.typed("Min", _INT64, writer.typed("Max", _INT64, places, zero), latest)


def _flat_places(
    writer: Writer, windows: _Windows, places: str, kind: TensorType, mode: lax.GatherScatterMode
) -> tuple[str, str]:
    """Where each element of the windows lies in the flat tensor, and whether its window lies inside."""
    places = writer.cast(places, _INT64)
    latest = writer.shape([windows.whole[axis] - windows.window[axis] for axis in windows.moved])
    is_inside = _inside(writer, windows, places, latest) if mode == lax.GatherScatterMode.FILL_OR_DROP else ""
    if mode != lax.GatherScatterMode.PROMISE_IN_BOUNDS:
        places = _bounded(writer, places, latest)
    strides = writer.shape([windows.stride(axis) for axis in windows.moved])
    column = writer.op("Reshape", strides, writer.integers([len(windows.moved), 1]))
    # [.., k] times [k, 1], with an axis of 1 in front for a single place
    rows = writer.op("Reshape", places, writer.integers([-1, len(windows.moved)]))
    first = writer.reshape(writer.op("MatMul", rows, column), windows.aligned(windows.place_axes))
    terms = [first]
    for axis, place_axis in windows.batched:
        terms.append(_counted(writer, windows, axis, windows.place_axes[place_axis]))
    kept = [axis for axis in range(len(windows.whole)) if axis not in windows.squeezed]
    for axis, window_axis in zip(kept, windows.window_axes, strict=True):
        terms.append(_counted(writer, windows, axis, window_axis))
    total = terms[0]
    for term in terms[1:]:
        total = writer.op("Add", total, term)
    return total, is_inside


def _counted(writer: Writer, windows: _Windows, axis: int, along: int) -> str:
    """The contribution of one axis of the tensor, counted along an axis of the windows."""
    numbers = writer.op("Mul", writer.iota(windows.shape[along]), writer.size(windows.stride(axis)))
    return writer.reshape(numbers, windows.aligned([along]))


def _inside(writer: Writer, windows: _Windows, places: str, latest: str) -> str:
    low = compare(writer, "GreaterOrEqual", _INT64, places, writer.integers(0))
    high = compare(writer, "LessOrEqual", _INT64, places, latest)
    both = writer.cast(writer.op("And", low, high), np.int32)
    rows = writer.op("Reshape", both, writer.integers([-1, len(windows.moved)]))
    if writer.builder.opset >= 18:
        inside = writer.op("ReduceMin", rows, writer.integers([1]), keepdims=0)
    else:
        inside = writer.op("ReduceMin", rows, axes=[1], keepdims=0)
    return writer.cast(writer.reshape(inside, windows.aligned(windows.place_axes)), np.bool_)
