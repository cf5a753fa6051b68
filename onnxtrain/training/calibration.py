"""Measures the ranges of a model's values on data, for quantization."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from onnxtrain.authoring.quantization import values_to_calibrate
from onnxtrain.session import TrainingSession
from onnxtrain.training.data import Arrays, choose_batch_size, fixed_batch_size, inference_inputs, match_inputs

if TYPE_CHECKING:
    import onnx


def calibrate(
    model: str | os.PathLike[str] | onnx.ModelProto,
    data: Arrays,
    weights: str | Sequence[str] = "*",
    *,
    batch_size: int | None = None,
    source: str = "the data",
) -> dict[str, tuple[float, float]]:
    """The least and the greatest number of every value that `fake_quantize` rounds, over all examples.

    Args:
      model: the inference model that is to be quantized.
      data: one array for each input, with typical examples; a few hundred are enough.
      weights: what is to be quantized, as in `fake_quantize`.
      batch_size: examples a call; 32 by default, or what the model's inputs fix. Examples that fill no whole batch of a
        fixed size are left out, unless there is no other.
      source: what the arrays are called in messages.

    Raises:
      InputError: the arrays do not fit the inputs of the model.
      ModelError: a pattern matches no weight, or the model has training information.
      UnsupportedError: the model's opset is too old, and ONNX cannot convert it.
    """
    ready, values = values_to_calibrate(model, weights)
    session = TrainingSession(ready)
    inputs = inference_inputs(session)
    dataset = match_inputs(data, inputs, source=source, spare=True)
    size = choose_batch_size(batch_size, inputs)
    order = np.arange(dataset.size)
    if fixed_batch_size(inputs):
        order = np.arange(max(dataset.size // size, 1) * size) % dataset.size
    found: dict[str, tuple[float, float]] = {}
    for _, batch in dataset.batches(size, order):
        for name, value in session.infer(batch, values).items():
            low, high = found.get(name, (np.inf, -np.inf))
            found[name] = (min(low, float(value.min())), max(high, float(value.max())))
    return found
