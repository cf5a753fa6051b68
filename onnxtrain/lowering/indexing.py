"""Picking elements out of arrays by index or condition, and putting them in.

Indices count from the end when they are negative. Undefined in ONNX: indices out of range. An index that is known while
tracing is checked; one that is only known at run time reads the nearest element and writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onnxtrain.errors import OperatorError
from onnxtrain.lowering import static
from onnxtrain.lowering.registry import Array, Int, Static, op
from onnxtrain.lowering.static import namespace


@op("Gather", folds=True, carries=True)
def gather(data: Array, indices: Array, *, axis: int) -> Array:
    """Undefined in ONNX: indices out of range, which read the nearest element when they are traced."""
    indices = _from_start(indices, data.shape[axis])
    if static.is_static(data) and static.is_static(indices):
        return np.asarray(np.take(data, indices, axis), data.dtype)
    if static.is_static(indices) and indices.ndim == 0:
        return lax.index_in_dim(data, int(indices), axis, keepdims=False)
    return jnp.take(data, indices, axis, mode="clip")


@op("GatherElements", folds=True, carries=True)
def gather_elements(data: Array, indices: Array, *, axis: int) -> Array:
    """Undefined in ONNX: indices out of range, which read the nearest element when they are traced."""
    if not indices.size:
        return namespace(data, indices).zeros(indices.shape, data.dtype)
    indices = _from_start(indices, data.shape[axis])
    axis = axis % data.ndim
    data = data[tuple(slice(None if d == axis else length) for d, length in enumerate(indices.shape))]
    if static.is_static(data) and static.is_static(indices):
        return np.take_along_axis(data, indices, axis)
    return jnp.take_along_axis(data, indices, axis, mode="clip")


@op("GatherND", folds=True, carries=True)
def gather_nd(data: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    """Undefined in ONNX: indices out of range, which read the nearest element when they are traced."""
    batch = np.indices(indices.shape[:batch_dims], dtype=indices.dtype, sparse=True)
    index = (*(_with_trailing_ones(part, indices.ndim - 1) for part in batch), *_components(indices))
    _check(index, data.shape)
    if static.is_static(data) and static.is_static(indices):
        return np.asarray(data[index], data.dtype)
    return static.traced(data)[index]


@op("GatherND", domain="com.microsoft", folds=True, states_schema=True)
def gather_nd_before_opset_11(data: Array, indices: Array) -> Array:
    """What onnxruntime had before ONNX."""
    return gather_nd(data, indices)


@op("Scatter", folds=True)
def scatter(data: Array, indices: Array, updates: Array, *, axis: int) -> Array:
    """Undefined in ONNX: indices out of range, which write nothing when they are traced."""
    return scatter_elements(data, indices, updates, axis=axis)


@op("ScatterElements", folds=True)
def scatter_elements(data: Array, indices: Array, updates: Array, *, axis: int, reduction: str = "none") -> Array:
    """Undefined in ONNX: indices out of range, which write nothing when they are traced."""
    index = list(np.indices(indices.shape, dtype=indices.dtype, sparse=True))
    index[axis] = indices
    return _write(data, tuple(index), updates, reduction)


@op("ScatterND", folds=True)
def scatter_nd(data: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    """Undefined in ONNX: indices out of range, which write nothing when they are traced."""
    return _write(data, _components(indices), updates, reduction)


@op("TensorScatter")
def tensor_scatter(
    past_cache: Array, update: Array, write_indices: Array | None = None, *, axis: int, mode: str
) -> Array:
    length = past_cache.shape[axis]
    steps = jnp.arange(update.shape[axis])
    if write_indices is None:
        positions = jnp.broadcast_to(steps, (update.shape[0], len(steps)))
    else:
        positions = static.cast(write_indices, steps.dtype)[:, None] + steps
    if mode == "circular":
        positions = positions % length
    samples = np.arange(update.shape[0])[:, None]
    cache = jnp.moveaxis(past_cache, axis, 1).at[samples, positions].set(jnp.moveaxis(update, axis, 1))
    return jnp.moveaxis(cache, 1, axis)


def _from_start(indices: Any, length: int) -> Any:
    """Indices that count from the end as indices from the start."""
    _check((indices,), (length,))
    return namespace(indices).where(indices < 0, indices + length, indices)


def _check(index: Sequence[Any], shape: Sequence[int]) -> None:
    """Refuses known indices that are out of range."""
    for indices, length in zip(index, shape, strict=False):
        if static.is_static(indices) and indices.size and not -length <= indices.min() <= indices.max() < length:
            raise OperatorError(
                f"Indices from {indices.min()} to {indices.max()} do not fit a dimension of {length} elements."
            )


def _components(indices: Any) -> tuple[Any, ...]:
    """The last dimension of `indices` as a tuple: what indexes dimension 0, what indexes dimension 1, and so on."""
    return tuple(indices[..., i] for i in range(indices.shape[-1]))


def _with_trailing_ones(part: Any, rank: int) -> Any:
    return part.reshape((*part.shape, *[1] * (rank - part.ndim)))


_COMBINE_IN_PLACE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _write(data: Any, index: tuple[Any, ...], updates: Any, reduction: str) -> Any:
    _check(index, data.shape)
    if not updates.size:
        return data
    if all(static.is_static(value) for value in (data, updates, *index)):
        return _write_static(data, index, updates, reduction)
    data, updates = static.traced(data), static.traced(updates)
    match reduction:
        case "none":
            return data.at[index].set(updates)
        case "add":
            return data.at[index].add(updates)
        case "max":
            return data.at[index].max(updates)
        case "min":
            return data.at[index].min(updates)
        case "mul":
            return data * _products_by_place(data, index, updates)
    raise OperatorError(f"The reduction is none, add, mul, max or min, not {reduction!r}.")


def _write_static(data: np.ndarray, index: tuple[np.ndarray, ...], updates: np.ndarray, reduction: str) -> np.ndarray:
    result = np.array(data)
    if reduction == "none":
        result[index] = updates
    else:
        _COMBINE_IN_PLACE[reduction].at(result, index, updates)
    return result


def _products_by_place(data: jax.Array, index: tuple[Any, ...], updates: jax.Array) -> jax.Array:
    """What each element of `data` is multiplied by: JAX's own product at indices has no gradient where they repeat."""
    depth = len(index)
    places = _places(index, data.shape[:depth])
    order = jnp.argsort(places)
    places = places[order]
    factors = updates.reshape((places.size, *data.shape[depth:]))[order]
    first = jnp.concatenate([jnp.ones(1, bool), places[1:] != places[:-1]])
    last = jnp.concatenate([first[1:], jnp.ones(1, bool)])
    _, products = lax.associative_scan(_multiply_within_a_place, (_with_trailing_ones(first, factors.ndim), factors))
    count = math.prod(data.shape[:depth])
    ones = jnp.ones((count, *data.shape[depth:]), data.dtype)
    return ones.at[jnp.where(last, places, count)].set(products, mode="drop").reshape(data.shape)


def _places(index: tuple[Any, ...], lengths: tuple[int, ...]) -> jax.Array:
    """Indices as positions in the flattened dimensions; those out of range become the first position beyond."""
    count = math.prod(lengths)
    place, inside = jnp.zeros((), int), jnp.ones((), bool)
    for indices, length in zip(index, lengths, strict=True):
        indices = jnp.where(indices < 0, indices + length, indices)
        inside = inside & (indices >= 0) & (indices < length)
        place = place * length + static.cast(indices, place.dtype)
    return jnp.where(inside, place, count).reshape(-1)


def _multiply_within_a_place(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    (left_starts, left_product), (right_starts, right_product) = left, right
    return left_starts | right_starts, jnp.where(right_starts, right_product, left_product * right_product)


@op("OneHot", folds=True)
def one_hot(indices: Array, depth: Int, values: Array, *, axis: int) -> Array:
    """An index outside [-depth, depth - 1] gives no hot value at all."""
    static.check_shape((*indices.shape, depth))
    xp = namespace(indices, values)
    indices = static.cast(indices, np.int64)
    indices = xp.expand_dims(xp.where(indices < 0, indices + depth, indices), axis)
    classes = np.arange(depth, dtype=indices.dtype)
    hot = indices == _with_trailing_ones(classes, indices.ndim - axis if axis >= 0 else -axis)
    return xp.where(hot, values[1], values[0])


@op("Compress", folds=True, carries=True)
def compress(data: Array, condition: Static, *, axis: int | None = None) -> Array:
    selected = np.flatnonzero(condition)
    if axis is None:
        data, axis = data.reshape(-1), 0
    return namespace(data).take(data, selected, axis)


@op("NonZero", folds=True, host=True)
def non_zero(x: Static) -> Array:
    return np.argwhere(x).T.astype(np.int64)


@op("Unique", folds=True, host=True)
def unique(x: Static, *, axis: int | None = None, sorted: bool) -> tuple[Array, ...]:
    """Unless sorted, values stand in the order in which they first occur."""
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        rank = np.argsort(order)
        values, first, counts = np.take(values, order, axis or 0), first[order], counts[order]
        inverse = rank[inverse]
    return values, *(part.astype(np.int64) for part in (first, inverse, counts))


@op("TopK", carries=True)
def top_k(x: Array, k: Int, *, axis: int, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    """The k elements are always sorted, and of equal ones the first comes first."""
    keys = static.traced(x)
    if keys.dtype.kind in "iu":
        keys = keys if largest else jnp.bitwise_not(keys)  # the complement cannot overflow, as the negative can
    else:
        keys = keys if largest else -keys
        keys = jnp.where(keys == 0, 0, keys)  # lax.top_k tells -0.0 from 0.0
    _, indices = lax.top_k(lax.stop_gradient(keys), k, axis=axis)
    return jnp.take_along_axis(x, indices, axis), static.cast(indices, np.int64)
