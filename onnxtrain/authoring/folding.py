"""Folds BatchNormalization into the layer before it: what the graph infers stays the same."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxtrain.authoring.names import Names
from onnxtrain.authoring.operands import Operands
from onnxtrain.authoring.protos import attribute_value, input_at, is_standard, keep_only, replace_nodes
from onnxtrain.graph import tensors

_PARAMETERS = ("scale", "bias", "mean", "variance")


def fold_normalizations(graph: onnx.GraphProto, names: Names, only: Container[str] | None = None) -> None:
    """Folds every BatchNormalization that is alone in reading a Conv, ConvTranspose or Gemm with stored weights.

    Args:
      graph: the graph, which is changed.
      names: the names of its model.
      only: the names of the nodes to fold; None for all.
    """
    norms = [node for node in graph.node if is_standard(node, "BatchNormalization")]
    folded = [node for node in norms if (only is None or node.name in only) and _fold(node, graph, names)]
    if folded:
        dropped = {name for node in folded for name in node.input[1:5]}
        replace_nodes(graph, [node for node in graph.node if not any(node is other for other in folded)])
        still_read = {name for node in graph.node for name in node.input}
        keep_only(graph.initializer, lambda tensor: tensor.name not in dropped - still_read)


def _fold(norm: onnx.NodeProto, graph: onnx.GraphProto, names: Names) -> bool:
    """Gives the layer before a BatchNormalization other weights and its output; whether that could be done."""
    operands = Operands(graph)
    layer = next((node for node in graph.node if norm.input[0] in node.output), None)
    stored = [operands.stored.get(name) for name in norm.input[1:5]]
    if layer is None or not is_standard(layer, "Conv", "ConvTranspose", "Gemm") or operands.count(norm.input[0]) > 1:
        return False
    kernel, bias = operands.stored.get(layer.input[1]), operands.stored.get(input_at(layer, 2))
    shared = operands.count(layer.input[1]) > 1 or operands.count(input_at(layer, 2)) > 1
    if kernel is None or shared or (bias is None and input_at(layer, 2)) or not _is_plain(layer):
        return False
    parameters = {name: _exact(tensor) for name, tensor in zip(_PARAMETERS, stored, strict=True) if tensor is not None}
    if len(parameters) < len(_PARAMETERS):
        return False
    factor = parameters["scale"] / np.sqrt(parameters["variance"] + attribute_value(norm, "epsilon", 1e-5))
    shift = parameters["bias"] - parameters["mean"] * factor
    old = 0.0 if bias is None else _exact(bias).reshape(-1)
    by_output = [-1 if axis == output_axis(layer, len(kernel.dims)) else 1 for axis in range(len(kernel.dims))]
    _write(kernel, _exact(kernel) * factor.reshape(by_output))
    if bias is not None and len(bias.dims) == 1:
        _write(bias, old * factor + shift)
    else:
        _give_bias(layer, graph, names, (old * factor + shift).astype(numpy_helper.to_array(kernel).dtype))
    layer.output[0] = norm.output[0]
    return True


def output_axis(layer: onnx.NodeProto, rank: int) -> int:
    """The axis of a layer's weight that counts its outputs."""
    if layer.op_type == "Conv":
        return 0
    if layer.op_type == "ConvTranspose":
        return 1
    return 0 if layer.op_type == "Gemm" and attribute_value(layer, "transB", 0) else rank - 1


def _is_plain(layer: onnx.NodeProto) -> bool:
    """Whether the outputs of a layer are those of its weight alone: no groups that share an axis, no factors."""
    if layer.op_type == "ConvTranspose":
        return attribute_value(layer, "group", 1) == 1
    return attribute_value(layer, "alpha", 1.0) == attribute_value(layer, "beta", 1.0) == 1.0


def _give_bias(layer: onnx.NodeProto, graph: onnx.GraphProto, names: Names, value: np.ndarray) -> None:
    name = names.fresh(f"{layer.input[1]}/bias")
    graph.initializer.append(numpy_helper.from_array(value, name))
    del layer.input[2:]
    layer.input.append(name)


def _exact(tensor: TensorProto) -> np.ndarray:
    return numpy_helper.to_array(tensor).astype(np.float64)


def _write(tensor: TensorProto, value: np.ndarray) -> None:
    tensors.store(tensor, value.astype(numpy_helper.to_array(tensor).dtype))
