"""Sequences and optionals: a sequence is a Python list, an absent optional is None, and neither is ever traced.

Their elements may be; how many there are and which one a position means must be known while tracing.
"""

from __future__ import annotations

import numpy as np

from onnxtrain.errors import OperatorError
from onnxtrain.lowering.registry import Array, DType, Int, Static, Value, op
from onnxtrain.lowering.static import namespace, traced


@op("SequenceConstruct")
def sequence_construct(*inputs: Value) -> list[Value]:
    return list(inputs)


@op("SequenceEmpty")
def sequence_empty(*, dtype: DType | None = None) -> list[Value]:
    return []


@op("SequenceAt")
def sequence_at(input_sequence: Value, position: Int) -> Value:
    return input_sequence[_index(position, len(input_sequence), len(input_sequence) - 1)]


@op("SequenceInsert")
def sequence_insert(input_sequence: Value, tensor: Value, position: Int | None = None) -> list[Value]:
    size = len(input_sequence)
    index = size if position is None else _index(position, size, size)
    return [*input_sequence[:index], tensor, *input_sequence[index:]]


@op("SequenceErase")
def sequence_erase(input_sequence: Value, position: Int = -1) -> list[Value]:
    index = _index(position, len(input_sequence), len(input_sequence) - 1)
    return [*input_sequence[:index], *input_sequence[index + 1 :]]


@op("SequenceLength")
def sequence_length(input_sequence: Value) -> np.ndarray:
    return np.asarray(len(input_sequence), np.int64)


@op("SplitToSequence", folds=True)
def split_to_sequence(input: Array, split: Static | None = None, *, axis: int, keepdims: bool) -> list[Array]:
    """A scalar `split` is the size of each part, the last one may be smaller; a list holds the size of every part.

    Without it each part has length 1, and `keepdims` says whether the axis stays; it counts only then.
    """
    length = input.shape[axis]
    if split is None:
        sizes = [1] * length
    elif split.ndim:
        sizes = split.tolist()
    else:
        sizes = [min(int(split), length - start) for start in range(0, length, int(split))]
    if sum(sizes) != length:
        raise OperatorError(f"Parts of {sizes} do not add up to {length}, the length of axis {axis}.")
    parts = namespace(input).split(input, np.cumsum(sizes)[:-1].tolist(), axis)
    return [part.squeeze(axis) for part in parts] if split is None and not keepdims else list(parts)


@op("ConcatFromSequence")
def concat_from_sequence(input_sequence: Value, *, axis: int, new_axis: bool) -> Array:
    arrays = namespace(*input_sequence)
    elements = input_sequence if arrays is np else [traced(element) for element in input_sequence]
    return arrays.stack(elements, axis) if new_axis else arrays.concatenate(elements, axis)


@op("Optional", ignores={"type"})
def optional(input: Value = None) -> Value:
    return input


@op("OptionalGetElement")
def optional_get_element(input: Value) -> Value:
    if input is None:
        raise OperatorError("The optional is empty, and there is no element to get.")
    return input


@op("OptionalHasElement")
def optional_has_element(input: Value = None) -> np.ndarray:
    return np.asarray(input is not None)


def _index(position: int, size: int, last: int) -> int:
    """A position counted from the front; negative ones count from the back."""
    if not -size <= position <= last:
        raise OperatorError(f"Position {position} is out of range for a sequence of {size}.")
    return position + size if position < 0 else position
