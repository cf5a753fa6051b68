"""From the state of a training run back to a model: one that resumes, or one that only infers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from onnxtrain.authoring.adapters import merge_in_place
from onnxtrain.authoring.folding import fold_normalizations
from onnxtrain.authoring.names import Names
from onnxtrain.authoring.quantization import QUANTIZATION_KEY, store_integers
from onnxtrain.errors import ModelError
from onnxtrain.graph import write
from onnxtrain.graph.model import Model

if TYPE_CHECKING:
    import onnx

STEP_KEY = f"{write.METADATA_PREFIX}step"
SEED_KEY = f"{write.METADATA_PREFIX}seed"
# where the run over data stands; empty when that is not known
POSITION_KEY = f"{write.METADATA_PREFIX}position"


def training_model(
    model: Model, variables: Mapping[str, np.ndarray], *, step: int, seed: str, position: str = ""
) -> onnx.ModelProto:
    """The training model with the current values of its state variables, from which a run resumes exactly.

    Args:
      model: the model as it was read.
      variables: current values by name; initializers that are not named keep their stored value.
      step: how many training iterations the run has done.
      seed: the random stream of the run, as text.
      position: where the run over its data stands, as text.

    Raises:
      StateError: no initializer has the name, or the value differs from it in shape or element type.
    """
    metadata = {STEP_KEY: str(step), SEED_KEY: seed}
    if position or POSITION_KEY in model.metadata:
        metadata[POSITION_KEY] = position
    return write.with_values(model, variables, metadata)


def inference_model(
    model: Model, variables: Mapping[str, np.ndarray], *, averaged: bool = False, keep_adapters: bool = False
) -> onnx.ModelProto:
    """The inference graph with the current values, without training information.

    Nodes stand as the model's author wrote them, also those in training mode (T-21).

    Args:
      model: the model as it was read.
      variables: current values by name; those that only algorithms hold, such as momenta, are left out.
      averaged: whether weights have the values of their moving averages, in the element types of the weights.
      keep_adapters: whether low-rank adapters stay beside the weights; otherwise they are added to them.

    Raises:
      ModelError: `averaged`, and the model keeps no averages.
      StateError: no initializer has the name, or the value differs from it in shape or element type.
    """
    if averaged:
        variables = {**variables, **_averages(model, variables)}
    proto = write.inference_only(model, variables)
    if write.NORMALIZED_KEY in model.metadata:
        fold_normalizations(proto.graph, Names(proto), only=json.loads(model.metadata[write.NORMALIZED_KEY]))
    if not keep_adapters:
        merge_in_place(proto)
    if QUANTIZATION_KEY in model.metadata:
        store_integers(proto, model.metadata[QUANTIZATION_KEY])
    return proto


def _averages(model: Model, variables: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    text = model.metadata.get(write.AVERAGES_KEY)
    if text is None:
        raise ModelError(
            "The model keeps no moving averages of its weights. Prepare it with them: make_trainable(model, "
            "average=0.999), or: onnxtrain prepare MODEL -o OUT --average 0.999"
        )
    averages: Mapping[str, str] = json.loads(text)
    return {weight: variables[average].astype(variables[weight].dtype) for weight, average in averages.items()}
