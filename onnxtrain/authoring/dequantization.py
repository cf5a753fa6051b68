"""Weights that a file holds as small integers become floats, so that they can be trained."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxtrain.authoring.protos import (
    attribute_value,
    input_at,
    is_standard,
    output_at,
    reads,
    replace_nodes,
    stored_tensors,
)


def dequantize_weights(model: onnx.ModelProto) -> None:
    """Replaces every DequantizeLinear of stored integers by the floats that it gives; what is inferred stays the same.

    What quantizes and dequantizes data while the model runs stays as it is.
    """
    graph = model.graph
    stored = stored_tensors(graph)
    kept: list[onnx.NodeProto] = []
    replaced: set[str] = set()
    for node in graph.node:
        if _stores_weights(node, stored):
            graph.initializer.append(numpy_helper.from_array(_dequantized(node, stored), output_at(node, 0)))
            replaced.update(node.input)
        else:
            kept.append(node)
    unread = replaced.difference(*(reads(node) for node in kept), (value.name for value in graph.output))
    for tensor in [tensor for tensor in graph.initializer if tensor.name in unread]:
        graph.initializer.remove(tensor)
    replace_nodes(graph, [node for node in kept if unread.isdisjoint(node.output)])


def _stores_weights(node: onnx.NodeProto, stored: Mapping[str, TensorProto]) -> bool:
    """Whether a node gives more than one number, and nothing but what the file holds."""
    if not is_standard(node, "DequantizeLinear") or any(name not in stored for name in node.input if name):
        return False
    return any(size > 1 for size in stored[node.input[0]].dims)


def _dequantized(node: onnx.NodeProto, stored: Mapping[str, TensorProto]) -> np.ndarray:
    value, scale = (numpy_helper.to_array(stored[node.input[index]]) for index in (0, 1))
    exact = value.astype(np.int64 if value.dtype.kind in "iu" else np.float64)
    if input_at(node, 2):
        zero_point = numpy_helper.to_array(stored[node.input[2]]).astype(exact.dtype)
        exact = exact - _spread(zero_point, node, value)
    element_type = attribute_value(node, "output_dtype", 0)
    dtype = helper.tensor_dtype_to_np_dtype(element_type) if element_type else scale.dtype
    return (exact.astype(scale.dtype) * _spread(scale, node, value)).astype(dtype)


def _spread(parameter: np.ndarray, node: onnx.NodeProto, value: np.ndarray) -> np.ndarray:
    """A scale or zero point in a form that meets every element: of the tensor, of an axis, or of blocks on an axis."""
    axis = attribute_value(node, "axis", 1)
    if parameter.ndim == value.ndim > 1:
        repeated = np.repeat(parameter, attribute_value(node, "block_size", 1), axis)
        return np.take(repeated, np.arange(value.shape[axis]), axis)  # the last block may be cut short
    if parameter.size == 1:
        return parameter.reshape(())
    shape = [1] * value.ndim
    shape[axis] = parameter.size
    return parameter.reshape(shape)
