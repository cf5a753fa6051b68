"""What training would change in an inference model, before anything is written."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from onnxtrain import dtypes
from onnxtrain.authoring.names import Names
from onnxtrain.authoring.prediction import choose_output
from onnxtrain.authoring.protos import FLOAT_TYPES, stored_tensors
from onnxtrain.authoring.readiness import check_can_be_prepared, make_ready
from onnxtrain.authoring.selection import layers, patterns_of
from onnxtrain.authoring.source import load
from onnxtrain.authoring.tying import Tie, find_ties
from onnxtrain.authoring.value_types import infer_types
from onnxtrain.authoring.weights import Weight, choose_weights, uses_of


@dataclass(frozen=True)
class Overview:
    """The weights of an inference model.

    Attributes:
      weights: those that would be trained, in the order in which the model uses them.
      layers: the number of the layer of every weight of the model, from 1.
      constant: the float tensors of more than one element that would stay as they are, with their sizes in bytes.
      ties: weights with the same values, trained apart unless `tie` is set.
    """

    weights: tuple[Weight, ...]
    layers: Mapping[str, int]
    constant: Mapping[str, int]
    ties: tuple[Tie, ...]


def weights_of(
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    trainable: str | Sequence[str] | None = None,
    frozen: str | Sequence[str] | None = None,
    output: str | None = None,
) -> Overview:
    """What `make_trainable` would train with these arguments, which it describes.

    Raises:
      ModelError: as `make_trainable`.
      UnsupportedError: as `make_trainable`.
    """
    proto = load(model)
    check_can_be_prepared(proto)
    make_ready(proto, Names(proto))
    types = infer_types(proto)
    target = choose_output(proto.graph, types, output)
    chosen = choose_weights(
        proto, types, [target], None if trainable is None else patterns_of(trainable), patterns_of(frozen or ())
    )
    every = choose_weights(proto, types, [target])
    numbered = enumerate(layers(uses_of({weight.name: weight for weight in every})), start=1)
    trained = {weight.name for weight in chosen}
    return Overview(
        weights=chosen,
        layers={name: number for number, names in numbered for name in names},
        constant={name: size for name, size in _sizes(proto.graph).items() if name not in trained},
        ties=tuple(find_ties(proto, types)),
    )


def describe_weight(weight: Weight) -> str:
    """The element type and the shape of a weight, such as `float32[10, 3]`."""
    return f"{dtypes.name_of(helper.tensor_dtype_to_np_dtype(weight.element_type))}{list(weight.dims)}"


def byte_size(tensor: Weight | onnx.TensorProto) -> int:
    """How many bytes the values of a tensor take."""
    element_type = tensor.element_type if isinstance(tensor, Weight) else tensor.data_type
    return math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(element_type).itemsize


def _sizes(graph: onnx.GraphProto) -> dict[str, int]:
    return {
        name: byte_size(tensor)
        for name, tensor in stored_tensors(graph).items()
        if tensor.data_type in FLOAT_TYPES and math.prod(tensor.dims) > 1
    }
