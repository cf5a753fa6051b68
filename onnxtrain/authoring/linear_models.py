"""Linear models of ai.onnx.ml, such as scikit-learn's, hold their weights in attributes; here they become tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.names import Names
from onnxtrain.authoring.protos import attribute_value, default_opset, is_standard, label, output_at, replace_nodes
from onnxtrain.authoring.value_types import Types, infer_types

_DOMAIN = "ai.onnx.ml"
_OPSET = 13  # of a model that has no operator of ai.onnx yet
_TRANSFORMS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "NONE": ("Identity", {}),
    "LOGISTIC": ("Sigmoid", {}),
    "SOFTMAX": ("Softmax", {"axis": 1}),
}


def spell_out_linear_models(model: onnx.ModelProto, names: Names) -> None:
    """Writes LinearRegressor and LinearClassifier as Gemm; what the model infers stays the same.

    One of these stays as it is where its weights do not form a matrix of one row for each class or target, or where it
    transforms its scores in a way that no operator of ai.onnx has.
    """
    graph = model.graph
    if not any(node.domain == _DOMAIN and node.op_type in _WRITERS for node in graph.node):
        return
    if not default_opset(model):
        model.opset_import.append(helper.make_opsetid("", _OPSET))
    types, builder = infer_types(model), GraphBuilder(names, default_opset(model))
    for node in graph.node:
        writer = _WRITERS.get(node.op_type) if node.domain == _DOMAIN else None
        if writer is None or not _is_plain(node, types):
            builder.nodes.append(node)
        else:
            writer(builder, node, types)
    _drop_normalizers(builder)
    graph.initializer.extend(builder.initializers)
    replace_nodes(graph, builder.nodes)


def _is_plain(node: onnx.NodeProto, types: Types) -> bool:
    rows = _row_count(node)
    fits = rows > 0 and len(attribute_value(node, "coefficients", ())) % rows == 0
    dims = types.dimensions(node.input[0])
    return fits and _transform(node) in _TRANSFORMS and (dims is None or len(dims) == 2)


def _row_count(node: onnx.NodeProto) -> int:
    """How many targets or classes a linear model has; 0 where one row of weights stands for two classes."""
    if node.op_type == "LinearRegressor":
        return attribute_value(node, "targets", 1)
    count = len(_labels(node))
    return count if count == len(attribute_value(node, "intercepts", ())) else 0


def _labels(node: onnx.NodeProto) -> np.ndarray:
    strings = attribute_value(node, "classlabels_strings")
    if strings is not None:
        return np.asarray([text.decode() for text in strings], object)
    return np.asarray(attribute_value(node, "classlabels_ints", ()), np.int64)


def _transform(node: onnx.NodeProto) -> str:
    return attribute_value(node, "post_transform", b"NONE").decode()


def _write_regressor(builder: GraphBuilder, node: onnx.NodeProto, types: Types) -> None:
    _write_transform(builder, node, _write_scores(builder, node, types), node.output[0])


def _write_classifier(builder: GraphBuilder, node: onnx.NodeProto, types: Types) -> None:
    scores = _write_scores(builder, node, types)
    if output_at(node, 0):
        labels = numpy_helper.from_array(_labels(node), builder.names.fresh(f"{label(node)}/labels"))
        builder.initializers.append(labels)
        winner = builder.add("ArgMax", (scores,), f"{label(node)}/winner", axis=1, keepdims=0)
        builder.nodes.append(helper.make_node("Gather", [labels.name, winner], [node.output[0]], axis=0))
    if output_at(node, 1):
        _write_transform(builder, node, scores, node.output[1])


_WRITERS: Mapping[str, Callable[[GraphBuilder, onnx.NodeProto, Types], None]] = {
    "LinearRegressor": _write_regressor,
    "LinearClassifier": _write_classifier,
}


def _write_scores(builder: GraphBuilder, node: onnx.NodeProto, types: Types) -> str:
    name, data = label(node), node.input[0]
    if types.element_type(data) != TensorProto.FLOAT:
        data = builder.cast(data, TensorProto.FLOAT, f"{name}/data")
    rows = _row_count(node)
    weights = np.reshape(attribute_value(node, "coefficients"), (rows, -1))
    kernel = builder.initializer(f"{name}/coefficients", weights, TensorProto.FLOAT)
    offsets = attribute_value(node, "intercepts") or [0.0] * rows
    bias = builder.initializer(f"{name}/intercepts", offsets, TensorProto.FLOAT)
    return builder.add("Gemm", (data, kernel, bias), f"{name}/scores", name=name, transB=1)


def _write_transform(builder: GraphBuilder, node: onnx.NodeProto, scores: str, output: str) -> None:
    op_type, attributes = _TRANSFORMS[_transform(node)]
    builder.nodes.append(helper.make_node(op_type, [scores], [output], **attributes))


def _drop_normalizers(builder: GraphBuilder) -> None:
    """Lets a Normalizer be an Identity where it divides the rows of a Softmax by their sums, which are 1."""
    softmax = {node.output[0] for node in builder.nodes if is_standard(node, "Softmax")}
    for index, node in enumerate(builder.nodes):
        is_normalizer = node.domain == _DOMAIN and node.op_type == "Normalizer" and node.input[0] in softmax
        if is_normalizer and attribute_value(node, "norm", b"MAX") == b"L1":
            builder.nodes[index] = helper.make_node("Identity", node.input, node.output, node.name)
