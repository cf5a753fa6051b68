"""Arrays that come from nothing but attributes and shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxtrain import dtypes
from onnxtrain.errors import OperatorError
from onnxtrain.lowering import static
from onnxtrain.lowering.registry import Array, DType, Ints, Static, op
from onnxtrain.lowering.static import namespace


@op("Constant", folds=True)
def constant(
    *,
    value: Any = None,
    sparse_value: Any = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
    value_string: str | None = None,
    value_strings: tuple[str, ...] | None = None,
) -> Array:
    """A sparse value becomes dense."""
    typed = (
        (value_float, np.float32),
        (value_floats, np.float32),
        (value_int, np.int64),
        (value_ints, np.int64),
        (value_string, np.object_),
        (value_strings, np.object_),
    )
    given = [np.asarray(item, dtype) for item, dtype in typed if item is not None]
    if value is not None:
        given.append(value)
    if sparse_value is not None:
        given.append(sparse_value.to_dense())
    if len(given) != 1:
        raise OperatorError(f"Exactly one attribute holds the value, and {len(given)} are given.")
    return given[0]


@op("ConstantOfShape", folds=True)
def constant_of_shape(shape: Ints, *, value: Any = None) -> Array:
    value = np.zeros((), np.float32) if value is None else value.reshape(())
    static.check_shape(shape)
    value = static.traced_if_large(value, math.prod(shape))
    return namespace(value).full(shape, value)


@op("Range", folds=True)
def range_(start: Static, limit: Static, delta: Static, *, stash_type: int = 1) -> Array:
    """Half floats count in float32, as `stash_type` 1 says; ONNX names no other type."""
    dtype = start.dtype
    if dtypes.is_float(dtype) and dtype.itemsize < 4:
        start, limit, delta = (number.astype(np.float32) for number in (start, limit, delta))
    start, limit, delta = (number.reshape(()) for number in (start, limit, delta))
    count = max(0, int(-((start - limit).item() // delta.item())))
    static.check_shape((count,))
    start, delta = static.traced_if_large(start, count), static.traced_if_large(delta, count)
    steps = namespace(start).arange(count, dtype=start.dtype)
    return static.cast(start + steps * delta, dtype)


@op("EyeLike", folds=True)
def eye_like(x: Array, *, dtype: DType | None = None, k: int) -> Array:
    static.check_shape(x.shape)
    zero = static.traced_if_large(np.zeros((), x.dtype if dtype is None else dtype), x.size)
    return namespace(zero).eye(*x.shape, k, dtype=zero.dtype)
