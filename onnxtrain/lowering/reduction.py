"""Reductions over axes: sums, products, extremes, norms, and where the extremes stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain import dtypes
from onnxtrain.lowering import static
from onnxtrain.lowering.registry import Array, Ints, op
from onnxtrain.lowering.static import namespace


class Reduction(Protocol):
    """Reduces an array over axes, which are all known and may be none at all."""

    def __call__(self, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any: ...


def _reduction(reduce: Reduction) -> Callable[..., Any]:
    """The rule of a reduction: which axes no axes mean."""

    def rule(data: Array, axes: Ints | None = None, *, keepdims: bool, noop_with_empty_axes: bool = False) -> Array:
        if not axes:
            axes = () if noop_with_empty_axes else tuple(range(data.ndim))
        return reduce(data, axes, keepdims)

    return rule


def _sum(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    return namespace(x).sum(x, axis=axes, dtype=x.dtype, keepdims=keepdims)


def _product(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    return namespace(x).prod(x, axis=axes, dtype=x.dtype, keepdims=keepdims)


def _maximum(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    initial = None if x.size else _limits(x.dtype)[0]
    return namespace(x).max(x, axis=axes, keepdims=keepdims, initial=initial)


def _minimum(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    initial = None if x.size else _limits(x.dtype)[1]
    return namespace(x).min(x, axis=axes, keepdims=keepdims, initial=initial)


def _limits(dtype: np.dtype) -> tuple[Any, Any]:
    """What the maximum and the minimum of nothing are."""
    if dtype == np.bool_:
        return False, True
    if dtypes.is_float(dtype):
        return -np.inf, np.inf
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def _mean(x: Any, axes: tuple[int, ...], keepdims: bool) -> jax.Array:
    if dtypes.is_float(x.dtype):
        return jnp.mean(x, axis=axes, keepdims=keepdims)
    count = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    totals = jnp.sum(x, axis=axes, dtype=x.dtype, keepdims=keepdims)
    return jax.lax.div(totals, jnp.full_like(totals, count))


def _sum_of_squares(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    return _sum(x * x, axes, keepdims)


def _sum_of_magnitudes(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    return _sum(static.magnitude(x), axes, keepdims)


def _norm(x: jax.Array, axes: tuple[int, ...], keepdims: bool) -> jax.Array:
    """Its gradient at the zero vector is 0, where that of the square root is infinite."""
    squares = _sum_of_squares(x, axes, keepdims)
    vanishes = squares == 0
    return jnp.where(vanishes, 0, jnp.sqrt(jnp.where(vanishes, 1, squares)))


def _log_of_sum(x: jax.Array, axes: tuple[int, ...], keepdims: bool) -> jax.Array:
    return jnp.log(_sum(x, axes, keepdims))


def _log_of_sum_of_exponentials(x: jax.Array, axes: tuple[int, ...], keepdims: bool) -> jax.Array:
    return jax.nn.logsumexp(x, axis=axes, keepdims=keepdims)


def _through_wider_floats(reduce: Reduction) -> Reduction:
    """Integers are reduced as floats and cut again; half floats, whose squares soon overflow, as float32."""

    def widened(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        if x.dtype in (np.float32, np.float64):
            return reduce(static.traced(x), axes, keepdims)
        wide = np.float32 if dtypes.is_float(x.dtype) else np.float64
        return static.cast(reduce(static.cast(static.traced(x), wide), axes, keepdims), x.dtype)

    return widened


_FOLDING: dict[str, Reduction] = {
    "ReduceSum": _sum,
    "ReduceProd": _product,
    "ReduceMax": _maximum,
    "ReduceMin": _minimum,
    "ReduceL1": _sum_of_magnitudes,
    "ReduceSumSquare": _sum_of_squares,
}
_TRACED: dict[str, Reduction] = {
    "ReduceMean": _mean,
    "ReduceL2": _through_wider_floats(_norm),
    "ReduceLogSum": _through_wider_floats(_log_of_sum),
    "ReduceLogSumExp": _through_wider_floats(_log_of_sum_of_exponentials),
}
for _op_type, _reduce in _FOLDING.items():
    op(_op_type, folds=True, carries=_reduce in (_maximum, _minimum))(_reduction(_reduce))
for _op_type, _reduce in _TRACED.items():
    op(_op_type)(_reduction(_reduce))


@op("ArgMax")
def arg_max(data: Array, *, axis: int, keepdims: bool, select_last_index: bool = False) -> Array:
    return _position(jnp.argmax, data, axis, keepdims, select_last_index)


@op("ArgMin")
def arg_min(data: Array, *, axis: int, keepdims: bool, select_last_index: bool = False) -> Array:
    return _position(jnp.argmin, data, axis, keepdims, select_last_index)


def _position(find: Callable[..., jax.Array], data: Any, axis: int, keepdims: bool, last: bool) -> jax.Array:
    if last:
        positions = data.shape[axis] - 1 - find(jnp.flip(data, axis), axis=axis, keepdims=keepdims)
    else:
        positions = find(data, axis=axis, keepdims=keepdims)
    return static.cast(positions, np.int64)
