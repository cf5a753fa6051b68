"""What is known of the type and shape of every value of an inference graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, shape_inference

from onnxtrain.authoring.protos import Dimensions, dimensions

_SMALL = 1024  # elements; a tensor that says something about shapes is no larger


@dataclass(frozen=True)
class Value:
    """A value of a graph under construction.

    Attributes:
      name: its name.
      element_type: its element type.
      dims: its shape; a symbol, or None, for a size that is known only when the graph runs.
    """

    name: str
    element_type: int
    dims: Dimensions

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type as a NumPy dtype."""
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.element_type))


class Types:
    """Element types and shapes by value name, declared in the file or inferred by ONNX."""

    def __init__(self, types: Mapping[str, onnx.TypeProto]):
        self._types = types

    def element_type(self, name: str) -> int:
        """The element type of a value; UNDEFINED when it is unknown."""
        return self._types[name].tensor_type.elem_type if name in self._types else TensorProto.UNDEFINED

    def dimensions(self, name: str) -> Dimensions | None:
        """The shape of a value; None when not even its rank is known."""
        return dimensions(self._types[name]) if name in self._types else None

    def declaration(self, name: str) -> onnx.ValueInfoProto | None:
        """A declaration of a value, whatever kind of type it has; None when nothing is known of it."""
        return onnx.ValueInfoProto(name=name, type=self._types[name]) if name in self._types else None


def infer_types(model: onnx.ModelProto) -> Types:
    """Runs ONNX's shape inference over the main graph."""
    inferred = shape_inference.infer_shapes(without_large_tensors(model), data_prop=True).graph
    found = {value.name: value.type for value in (*inferred.value_info, *inferred.output, *inferred.input)}
    for tensor in model.graph.initializer:
        found[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    return Types(found)


def without_large_tensors(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its large initializers turned into inputs.

    ONNX's own passes serialize the model, which protobuf refuses above 2 GB, and need no weights.
    """
    small = onnx.ModelProto(ir_version=max(model.ir_version, 4), opset_import=model.opset_import)
    small.functions.extend(model.functions)
    graph = small.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    stored = {tensor.name for tensor in model.graph.initializer}
    graph.input.extend(value for value in model.graph.input if value.name not in stored)
    for tensor in model.graph.initializer:
        if _element_count(tensor) <= _SMALL and tensor.data_location != TensorProto.EXTERNAL:
            graph.initializer.append(tensor)
        else:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return small


def _element_count(tensor: TensorProto) -> int:
    count = 1
    for size in tensor.dims:
        count *= size
    return count
