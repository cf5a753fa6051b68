"""Checks what a caller feeds against what a model declares, before anything runs."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from onnxtrain import dtypes
from onnxtrain.errors import InputError, InputTypeError
from onnxtrain.graph.combine import describe_type
from onnxtrain.graph.model import OptionalType, SequenceType, TensorType, ValueInfo
from onnxtrain.lowering import static


def check_inputs(declared: Mapping[str, ValueInfo], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The fed values as arrays; Python numbers and lists take the declared element type.

    Raises:
      InputError: a name is no input of the model, or a shape does not fit.
      InputTypeError: an element type differs from the declared one.
    """
    for name in inputs:
        if name not in declared:
            raise unknown_name("input", name, declared)
    return {name: _check(name, declared[name].type, value) for name, value in inputs.items()}


def unknown_name(kind: str, name: str, known: Collection[str]) -> InputError:
    """The error for a name that the model does not have, with those that come close."""
    folded = {candidate.casefold(): candidate for candidate in known}
    close = [folded[match] for match in difflib.get_close_matches(name.casefold(), folded, n=3)]
    hint = (
        f"Did you mean {' or '.join(map(repr, close))}?"
        if close
        else f"It has {', '.join(map(repr, known)) or 'none'}."
    )
    return InputError(f"The model has no {kind} {name!r}. {hint}")


def missing_input(value: ValueInfo) -> InputError:
    """The error for an input that a computation needs and that was not fed."""
    return InputError(f"Input {value.name!r} ({describe_type(value.type)}) is needed and was not fed.")


def _check(name: str, expected: Any, value: Any) -> Any:
    if isinstance(expected, SequenceType):
        return [_check(f"{name}[{i}]", expected.element, item) for i, item in enumerate(value)]
    if isinstance(expected, OptionalType):
        return None if value is None else _check(name, expected.element, value)
    return _check_tensor(name, expected, value) if isinstance(expected, TensorType) else value


def _check_tensor(name: str, expected: TensorType, value: Any) -> Any:
    if not hasattr(value, "dtype"):
        value = np.asarray(value, expected.dtype)
    elif value.dtype.kind in "US":
        value = np.asarray(value).astype(object)
    if value.dtype not in (expected.dtype, static.device_dtype(expected.dtype)):
        raise InputTypeError(
            f"Input {name!r} must be {dtypes.name_of(expected.dtype)}, and {dtypes.name_of(value.dtype)} was fed. "
            f"ONNX has no implicit casts; convert it with .astype({dtypes.name_of(expected.dtype)!r})."
        )
    if not _shape_fits(expected.shape, value.shape):
        raise InputError(f"Input {name!r} must be {describe_type(expected)}, and shape {list(value.shape)} was fed.")
    return value


def _shape_fits(expected: tuple[int | str | None, ...] | None, found: tuple[int, ...]) -> bool:
    if expected is None:
        return True
    sizes = zip(expected, found, strict=False)
    return len(expected) == len(found) and all(size == other for size, other in sizes if isinstance(size, int))
