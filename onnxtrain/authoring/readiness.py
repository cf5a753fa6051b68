"""What a model goes through before training information is added: its weights become initializers that can change."""

from __future__ import annotations

import onnx

from onnxtrain.authoring import rewrites
from onnxtrain.authoring.dequantization import dequantize_weights
from onnxtrain.authoring.function_weights import lift_function_weights
from onnxtrain.authoring.linear_models import spell_out_linear_models
from onnxtrain.authoring.names import Names
from onnxtrain.authoring.protos import default_opset
from onnxtrain.errors import ModelError, UnsupportedError

_TRAINING_IR_VERSION = 7
_OLDEST_OPSET = 7


def check_can_be_prepared(model: onnx.ModelProto) -> None:
    """Refuses a model that has training information, or is older than what training is written in.

    Raises:
      ModelError: it has training information already.
      UnsupportedError: it imports too old an opset.
    """
    if model.training_info:
        raise ModelError(
            f"The model has training information already ({len(model.training_info)} training_info). Export it for "
            "inference first, then prepare the exported model."
        )
    if 0 < default_opset(model) < _OLDEST_OPSET:
        raise UnsupportedError(
            f"The model imports opset {default_opset(model)} of ai.onnx. Training is written for opset {_OLDEST_OPSET} "
            "and newer. Convert the model first (onnx.version_converter)."
        )


def make_ready(model: onnx.ModelProto, names: Names, *, dequantize: bool = False) -> None:
    """Rewrites the inference graph without changing what it infers, so that its weights can be state variables."""
    if model.ir_version < 4:
        # from IR version 4 on, an initializer that is also an input is a default that a feed overrides (T-17)
        drop_inputs(model.graph, {tensor.name for tensor in model.graph.initializer})
    model.ir_version = max(model.ir_version, _TRAINING_IR_VERSION)
    rewrites.switch_to_inference(model.graph)
    rewrites.spell_out_constants(model)
    spell_out_linear_models(model, names)
    lift_function_weights(model, names)
    rewrites.move_weights_out(model.graph, names)
    if dequantize:
        dequantize_weights(model)
    rewrites.separate_vectors(model.graph, names)


def drop_inputs(graph: onnx.GraphProto, dropped: set[str]) -> None:
    """Takes values out of the inputs of a graph: a state variable is fed by nobody."""
    for value in list(graph.input):
        if value.name in dropped:
            graph.input.remove(value)
