"""What tests read off a training model."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper
from onnxruntime import InferenceSession


def algorithm(model: onnx.ModelProto) -> onnx.GraphProto:
    """The one algorithm of a prepared model."""
    (info,) = model.training_info
    return info.algorithm


def updates(model: onnx.ModelProto) -> dict[str, str]:
    """The update binding, from state variable to output."""
    return {entry.key: entry.value for entry in model.training_info[0].update_binding}


def initial_values(model: onnx.ModelProto) -> dict[str, str]:
    """The initialization binding, from state variable to output."""
    return {entry.key: entry.value for entry in model.training_info[0].initialization_binding}


def node_of(model: onnx.ModelProto, op_type: str) -> onnx.NodeProto:
    """The only node of the algorithm with this operator."""
    (node,) = nodes_of(model, op_type)
    return node


def nodes_of(model: onnx.ModelProto, op_type: str) -> list[onnx.NodeProto]:
    """The nodes of the algorithm with this operator."""
    return [node for node in algorithm(model).node if node.op_type == op_type]


def attributes(node: onnx.NodeProto) -> dict[str, object]:
    """The attributes of a node as Python values, with text decoded."""
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {name: _decoded(value) for name, value in values.items()}


def _decoded(value: object) -> object:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def trained(model: onnx.ModelProto) -> list[str]:
    """The names of the tensors that are trained."""
    names = attributes(node_of(model, "Gradient"))["xs"]
    assert isinstance(names, list)
    return names


def combined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph that a step runs, as a plain model (T-08)."""
    inference, step = model.graph, algorithm(model)
    graph = helper.make_graph(
        [*inference.node, *step.node],
        "combined",
        [*inference.input, *step.input],
        [*inference.output, *step.output],
        [*inference.initializer, *step.initializer],
        value_info=[*inference.value_info, *step.value_info],
    )
    return helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version, functions=model.functions
    )


def inference_part(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without training information."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    del plain.training_info[:]
    return plain


def infer(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What onnxruntime infers, initializers of any IR version included."""
    session = InferenceSession(inference_part(model).SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, inputs)]
