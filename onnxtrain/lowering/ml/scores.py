"""What the models of ai.onnx.ml share: transforms of scores, and the labels of classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import OperatorError
from onnxtrain.lowering.static import StaticInputError, device_dtype, is_static

ML = "ai.onnx.ml"


def keep_static(function: Callable[[Any], tuple[Any, ...]], x: Any) -> tuple[Any, ...]:
    """The results of a JAX function of x; numpy arrays, computed at once, when x is known while tracing."""
    if not is_static(x):
        return function(x)
    with jax.ensure_compile_time_eval():
        return tuple(np.asarray(value) for value in function(jnp.asarray(x)))


def as_float(x: Any) -> Any:
    """Integers as float32; float32 and float64 as they are."""
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)


def transform(scores: Any, name: str) -> Any:
    """Applies a `post_transform` to scores [N, classes]."""
    if name not in _TRANSFORMS:
        raise OperatorError(f"Attribute 'post_transform' is {name!r}; it must be one of {', '.join(_TRANSFORMS)}.")
    return _TRANSFORMS[name](scores)


def _softmax_of_nonzero(scores: Any) -> Any:
    """A softmax in which scores of zero stay zero."""
    nonzero = jnp.abs(scores) > 1e-7
    largest = jnp.max(scores, axis=1, keepdims=True)
    raised = jnp.where(nonzero, jnp.exp(scores - largest), scores * jnp.exp(-largest))
    total = jnp.sum(raised, axis=1, keepdims=True)
    return jnp.where(total == 0, jnp.full_like(raised, 0.5), raised / jnp.where(total == 0, 1, total))


_TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "NONE": lambda scores: scores,
    "SOFTMAX": lambda scores: jax.nn.softmax(scores, axis=1),
    "LOGISTIC": jax.nn.sigmoid,
    "SOFTMAX_ZERO": _softmax_of_nonzero,
    "PROBIT": jax.scipy.special.ndtri,
}
TRANSFORMS: tuple[str, ...] = tuple(_TRANSFORMS)


def with_opposite(score: Any, transform_name: str, *, complement: bool) -> Any:
    """Two columns from the one score of a binary model: its opposite first.

    The opposite of a probability is its complement to 1, of any other score its negative.
    """
    if complement:
        return jnp.concatenate([1 - score, score], axis=1)
    return transform(jnp.concatenate([-score, score], axis=1), transform_name)


def choose_labels(indices: Any, integers: Sequence[int], strings: Sequence[str]) -> Any:
    """The label of each class index; strings need indices that are known while tracing."""
    if not strings:
        labels = np.array(integers, np.int64)
        return labels[indices] if is_static(indices) else jnp.asarray(labels, device_dtype(np.int64))[indices]
    if not is_static(indices):
        raise StaticInputError("X", 0)
    return np.array(strings, object)[indices]
