"""Adapters apart from their model: merged, saved by themselves, and put on another copy of it.

A file of adapters is in the safetensors format. It has the tensors `<weight>/lora_A` and `<weight>/lora_B`, and in its
metadata, under `onnxtrain.adapters`, the scale and the dropout of each weight's adapter, as JSON.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
from onnx import numpy_helper

from onnxtrain.authoring.adapters import (
    Strength,
    find_adapters,
    find_layers,
    insert_adapter,
    merge_in_place,
)
from onnxtrain.authoring.names import Names
from onnxtrain.authoring.selection import listed
from onnxtrain.authoring.source import load
from onnxtrain.authoring.surgery import refuse_training_info
from onnxtrain.errors import ModelError, missing_extra

_KEY = "onnxtrain.adapters"


def merge_adapters(model: str | os.PathLike[str] | onnx.ModelProto) -> onnx.ModelProto:
    """Adds the adapters of an inference model to its weights; what is left has the structure it had without them.

    Args:
      model: a file or a `ModelProto`, which is not changed.

    Raises:
      ModelError: the model has training information.
    """
    proto = load(model)
    refuse_training_info(proto)
    merge_in_place(proto)
    return proto


def save_adapters(model: str | os.PathLike[str] | onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    """Writes the adapters of a model, and nothing else of it, to a safetensors file.

    Args:
      model: a file or a `ModelProto`, such as a training model that a session saved.
      path: the file to write.

    Raises:
      ModelError: the model has no adapters.
      MissingExtraError: safetensors is not installed.
    """
    safetensors = _safetensors()
    proto = load(model)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    values: dict[str, np.ndarray] = {}
    strengths: dict[str, dict[str, float]] = {}
    for adapter in find_adapters(proto):
        weight = adapter.layer.weight.tensor
        strengths[weight] = {"scale": adapter.strength.scale, "dropout": adapter.strength.dropout}
        values |= {f"{weight}/lora_{suffix}": stored[name] for suffix, name in zip("AB", adapter.names, strict=True)}
    if not values:
        raise ModelError("The model has no adapters. Prepare it with some: make_trainable(model, adapters=LoRA()).")
    safetensors.save_file(values, os.fspath(path), {_KEY: json.dumps(strengths)})


def load_adapters(model: str | os.PathLike[str] | onnx.ModelProto, path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Puts the adapters of a file on an inference model, which is then run, trained on or merged.

    Args:
      model: a file or a `ModelProto`, which is not changed; it has weights of the same names and shapes as the one that
        the adapters were trained on.
      path: what `save_adapters` wrote.

    Raises:
      ModelError: a weight is missing or has another shape, or the model has adapters or training information already.
      MissingExtraError: safetensors is not installed.
    """
    proto = load(model)
    refuse_training_info(proto)
    if any(find_adapters(proto)):
        raise ModelError("The model has adapters already. Merge them first (merge_adapters).")
    values, strengths = _read(Path(path))
    layers, names = find_layers(proto.graph), Names(proto)
    for weight, strength in strengths.items():
        first, second = (values[f"{weight}/lora_{suffix}"] for suffix in "AB")
        if weight not in layers:
            raise ModelError(
                f"{os.fspath(path)!r} has an adapter for the weight {weight!r}, which the model does not have in a "
                f"layer that takes one. It has {listed(layers)}."
            )
        expected = layers[weight].adapter_dims(first.shape[0 if first.ndim > 2 else 1])
        if (first.shape, second.shape) != expected:
            raise ModelError(
                f"The adapter of {weight!r} has the shapes {list(first.shape)} and {list(second.shape)}, but the "
                f"model's weight needs {list(expected[0])} and {list(expected[1])}."
            )
        insert_adapter(proto, names, layers[weight], strength, (first, second))
    return proto


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Strength]]:
    safetensors = _safetensors()
    with safetensors.safe_open(path, "numpy") as file:
        text = (file.metadata() or {}).get(_KEY)
        values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    if text is None:
        raise ModelError(f"{str(path)!r} holds no adapters of onnxtrain: its metadata has no {_KEY!r}.")
    return values, {weight: Strength(**strength) for weight, strength in json.loads(text).items()}


def _safetensors() -> ModuleType:
    try:
        from safetensors import numpy as safetensors
    except ImportError as error:
        raise missing_extra("safetensors", "adapters", "A file of adapters") from error
    return safetensors
