"""What a run measures: means of the scalar outputs of steps, and the share of right classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain.dtypes import is_float

# How many batches may be under way before their results are waited for: enough to keep a device busy, few enough that
# what was fed does not fill its memory and that the progress shown is fresh.
BATCHES_UNDER_WAY = 32


class RunningMeans:
    """Means over examples of scalar outputs, fetched from the device many batches at a time.

    Outputs that are no floating-point scalars are not measures and are passed over.

    Attributes:
      latest: the means when they were last fetched.
    """

    def __init__(self) -> None:
        self.latest: dict[str, float] = {}
        self._pending: list[tuple[int, dict[str, Any]]] = []
        self._sums: dict[str, float] = {}
        self._examples: dict[str, int] = {}

    def add(self, examples: int, outputs: Mapping[str, Any]) -> bool:
        """Takes the scalar outputs of a batch of so many examples, mostly without waiting; whether it did wait."""
        self._pending.append((examples, {name: value for name, value in outputs.items() if is_measure(value)}))
        if len(self._pending) < BATCHES_UNDER_WAY:
            return False
        self.fetch()
        return True

    def fetch(self) -> dict[str, float]:
        """The means of everything so far; waits until the device has computed it."""
        for examples, values in jax.device_get(self._pending):
            for name, value in values.items():
                self._sums[name] = self._sums.get(name, 0.0) + float(np.reshape(value, ())) * int(examples)
                self._examples[name] = self._examples.get(name, 0) + int(examples)
        self._pending.clear()
        self.latest = {name: total / self._examples[name] for name, total in self._sums.items()}
        return self.latest


def is_measure(value: Any) -> bool:
    """Whether an output is one floating-point number, such as a loss: rank 0, or one element in one dimension."""
    return getattr(value, "shape", None) in ((), (1,)) and is_float(value.dtype)


def matches_classes(scores: Any, labels: Any) -> bool:
    """Whether the labels are class ids for these scores: integers of shape [N, d1, ...] for floats [N, C, d1, ...]."""
    return (
        np.dtype(labels.dtype).kind in "iu"
        and is_float(scores.dtype)
        and len(scores.shape) >= 2
        and scores.shape[1] > 1
        and (scores.shape[0], *scores.shape[2:]) == tuple(labels.shape)
    )


def accuracy(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """The share of labels that the highest score hits.

    Args:
      scores: floats [N, C, d1, ...], one score for each class.
      labels: integer class ids [N, d1, ...].
    """
    predicted = jnp.argmax(scores, axis=1).astype(labels.dtype)
    return jnp.mean(predicted == labels, dtype=jnp.float32)
