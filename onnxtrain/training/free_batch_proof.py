"""Shows on data that a model whose batch was freed gives each example what the model gave it before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxtrain.dtypes import is_float
from onnxtrain.errors import ModelError
from onnxtrain.graph.combine import DataInput, data_inputs
from onnxtrain.graph.model import TensorType

if TYPE_CHECKING:
    from onnxtrain.session import TrainingSession

BATCHES = 3
TOLERANCE = 1e-4  # of the largest value of an output; other batch sizes add in another order
_UNKNOWN_SIZE = 8  # stands for a size that the model leaves open


def prove_free_batch(
    fixed: TrainingSession, freed: TrainingSession, data: Mapping[str, np.ndarray] | None = None, *, seed: int = 0
) -> float:
    """The largest difference between what the two infer, as a share of the largest value of an output.

    The model with the fixed batch infers a few batches one by one, and the other one all of them together.

    Args:
      fixed: the model as it was, with the same weights.
      freed: the model that takes any number of examples.
      data: one array for each input of the model, with enough examples for three batches; by default random numbers.
      seed: fixes what is drawn.

    Raises:
      ModelError: an output of an example differs, so that the batch was freed wrongly.
      InputError: the data do not fit the inputs of the model.
    """
    inputs = data_inputs(fixed.model, fixed.model.graph)
    sizes = {value.name: size for value in inputs if (size := _batch_size(value)) is not None}
    given = {value.name: _draw(value, np.random.default_rng(seed)) for value in inputs} if data is None else data
    together = freed.infer({name: _rows(given[name], sizes.get(name), 0, BATCHES) for name in given})
    apart = [
        fixed.infer({name: _rows(given[name], sizes.get(name), index, 1) for name in given}) for index in range(BATCHES)
    ]
    return max(_difference(name, together[name], [one[name] for one in apart]) for name in together)


def _batch_size(value: DataInput) -> int | None:
    """The size of the batch that an input fixes; None where it has no batch."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    size = shape[0] if shape is not None and len(shape) >= 2 else None
    return size if isinstance(size, int) else None


def _draw(value: DataInput, generator: np.random.Generator) -> np.ndarray:
    """Random numbers for three batches of an input."""
    if not isinstance(value.type, TensorType) or value.type.shape is None:
        raise ModelError(f"Input {value.name!r} is no tensor of known rank, so that no data can be drawn for it.")
    shape = [size if isinstance(size, int) else _UNKNOWN_SIZE for size in value.type.shape]
    size = _batch_size(value)
    if size is not None:
        shape[0] = BATCHES * size
    dtype = value.type.dtype
    drawn = generator.normal(size=shape) if is_float(dtype) else generator.integers(0, 2, size=shape)
    return np.asarray(drawn).astype(dtype)


def _rows(array: np.ndarray, size: int | None, start: int, count: int) -> np.ndarray:
    return array if size is None else array[start * size : (start + count) * size]


def _difference(name: str, together: Any, apart: list[Any]) -> float:
    """How far an output of all batches is from those of each, as a share of its largest value."""
    found, parts = np.asarray(together), [np.asarray(part) for part in apart]
    grown = [axis for axis, size in enumerate(found.shape) if size != parts[0].shape[axis]]
    expected = np.concatenate(parts, grown[0]) if grown else parts[0]
    if found.shape != expected.shape:
        raise ModelError(f"Freeing the batch gave output {name!r} the shape {found.shape} instead of {expected.shape}.")
    if found.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(found, expected) else 1.0
    gap = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max(initial=0.0)
    share = float(gap / (np.abs(expected.astype(np.float64)).max(initial=0.0) or 1.0))
    if share > TOLERANCE:
        raise ModelError(
            f"Freeing the batch changed output {name!r} by {share:.1e} of its largest value: the outputs of an example "
            "depend on the others in its batch. Train the model with its fixed batch."
        )
    return share
