"""Running the inference graph over many examples, batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from onnxtrain.errors import UnsupportedError
from onnxtrain.training.data import (
    Arrays,
    choose_batch_size,
    fixed_batch_size,
    inference_inputs,
    match_inputs,
)

if TYPE_CHECKING:
    from onnxtrain.session import TrainingSession


def predict(
    session: TrainingSession, data: Arrays, *, batch_size: int | None = None, source: str = "the data"
) -> dict[str, np.ndarray]:
    """All outputs of the inference graph for every example.

    Where the file fixes the number of examples in a batch, the last batch is filled up by repeating its last example,
    and what that gives is dropped.

    Args:
      session: what runs; it does not change.
      data: one array for each input; others, such as labels, may be there too.
      batch_size: examples a call; 32 by default, or what the model's inputs fix.
      source: what the arrays are called in messages.

    Raises:
      InputError: the arrays do not fit the inputs of the model.
      UnsupportedError: an output is no tensor, or does not hold one row for each example.
    """
    inputs = inference_inputs(session)
    dataset = match_inputs(data, inputs, source=source, spare=True)
    size = choose_batch_size(batch_size, inputs)
    order = np.arange(dataset.size)
    if fixed_batch_size(inputs):
        order = np.minimum(np.arange(-(-dataset.size // size) * size), dataset.size - 1)
    whole = dataset.size <= size and len(order) == dataset.size
    parts: dict[str, list[np.ndarray]] = {}
    for count, batch in dataset.batches(size, order):
        for name, value in session.infer(batch).items():
            array = _as_array(name, value)
            parts.setdefault(name, []).append(array if whole else _require_rows(name, array, count))
    if whole:
        return {name: arrays[0] for name, arrays in parts.items()}
    return {name: np.concatenate(arrays)[: dataset.size] for name, arrays in parts.items()}


def _as_array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, dict | list | tuple) or value is None:
        raise UnsupportedError(f"Output {name!r} is no tensor; only tensors can be joined over the batches.")
    return np.asarray(value)


def _require_rows(name: str, array: np.ndarray, count: int) -> np.ndarray:
    if array.shape[:1] != (count,):
        raise UnsupportedError(
            f"Output {name!r} has shape {list(array.shape)} for a batch of {count} examples: it has no row for each of "
            "them, so the batches cannot be joined.\nRun all examples as one batch: set the batch size to their number."
        )
    return array
