"""Frees a batch size that the author of a model fixed.

Some exporters write the batch size of their example, mostly 1, into the inputs and into the shapes of Reshape. The
batch is followed from the inputs to the outputs, node by node; where a node would mix the examples of a batch, or is
not known here, nothing is guessed and the error names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxtrain.authoring.batch_operation import Axis, Operand, Operation
from onnxtrain.authoring.batch_reshape import free_target
from onnxtrain.authoring.batch_rules import RULES
from onnxtrain.authoring.names import Names
from onnxtrain.authoring.protos import (
    Dimensions,
    default_opset,
    describe,
    dimensions,
    is_standard,
    reads,
    stored_tensors,
)
from onnxtrain.authoring.rewrites import spell_out_constants
from onnxtrain.authoring.source import load
from onnxtrain.authoring.value_types import Types, infer_types
from onnxtrain.errors import UnsupportedError


def free_batch(model: str | os.PathLike[str] | onnx.ModelProto) -> onnx.ModelProto:
    """The same model for any batch size: each example's output stays what it was.

    The first axis of every input of rank 2 and more that has the fixed size becomes a symbol, and so does the batch
    axis of the outputs; constant shapes of Reshape get -1 in its place. A model whose batch is free already is returned
    as it is.

    Raises:
      UnsupportedError: the batch cannot be followed through a node; the message names it and says why.
    """
    proto = load(model)
    free_in_place(proto)
    return proto


def free_in_place(model: onnx.ModelProto) -> None:
    """What `free_batch` does, on a model that the caller owns and whose nodes are sorted."""
    spell_out_constants(model)
    sizes = {name: dims[0] for name, dims in _fed_dimensions(model.graph).items() if len(dims) >= 2}
    batch = next((size for size in sizes.values() if isinstance(size, int)), None)
    if batch is not None:
        follower = _Follower(model, batch, [name for name, size in sizes.items() if size == batch])
        follower.follow()
        _declare(model.graph, follower.axes)


def _fed_dimensions(graph: onnx.GraphProto) -> dict[str, Dimensions]:
    stored = {tensor.name for tensor in graph.initializer}
    shapes = {value.name: dimensions(value.type) for value in graph.input if value.name not in stored}
    return {name: dims for name, dims in shapes.items() if dims}


class _Follower:
    """Follows the batch axis from value to value and rewrites the shapes that hold its size."""

    def __init__(self, model: onnx.ModelProto, batch: int, inputs: Iterable[str]):
        self.axes: dict[str, Axis] = {name: Axis(0) for name in inputs}
        self._batch = batch
        self._graph = model.graph
        self._opset = default_opset(model)
        self._types: Types = infer_types(model)
        self._names = Names(model)
        self._stored = stored_tensors(model.graph)
        self._is_ir_3 = model.ir_version < 4

    def follow(self) -> None:
        for node in self._graph.node:
            if not reads(node).isdisjoint(self.axes):
                self._visit(node)

    def _visit(self, node: onnx.NodeProto) -> None:
        rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if rule is None:
            raise _cannot(node, "the batch cannot be followed through this operator")
        operation = Operation(node, self._opset, self._batch, [self._operand(name) for name in node.input])
        try:
            axis = rule(operation)
        except ValueError as reason:
            raise _cannot(node, str(reason)) from None
        if axis is None:
            return
        moved = [axis] * len(node.output) if isinstance(axis, Axis) else axis
        if is_standard(node, "Reshape"):
            self._rewrite_shape(node, free_target(operation, moved[0]))
        self.axes.update((name, place) for name, place in zip(node.output, moved, strict=False) if name)

    def _operand(self, name: str) -> Operand:
        tensor = self._stored.get(name)
        is_small = tensor is not None and np.prod(tensor.dims, dtype=np.int64) <= 64
        value = numpy_helper.to_array(tensor) if tensor is not None and is_small else None
        return Operand(self.axes.get(name), self._types.dimensions(name), value)

    def _rewrite_shape(self, node: onnx.NodeProto, target: Sequence[int] | None) -> None:
        if target is None:
            return
        name = node.input[1]
        replacement = numpy_helper.from_array(np.asarray(target, np.int64), name)
        if sum(name in reads(other) for other in self._graph.node) == 1:
            self._stored[name].CopyFrom(replacement)
            return
        replacement.name = self._names.fresh(f"{node.output[0]}/shape")
        node.input[1] = replacement.name
        self._graph.initializer.append(replacement)
        if self._is_ir_3:  # which wants every initializer among the inputs
            self._graph.input.append(helper.make_tensor_value_info(replacement.name, TensorProto.INT64, [len(target)]))


def _declare(graph: onnx.GraphProto, axes: dict[str, Axis]) -> None:
    """Writes the free batch into the declared types of inputs and outputs; what was inferred inside goes."""
    symbol = _fresh_symbol(graph)
    for value in (*graph.input, *graph.output):
        place = axes.get(value.name)
        shape = value.type.tensor_type.shape
        if place is None or place.index >= len(shape.dim):
            continue
        shape.dim[place.index].Clear()
        if place.inner == 1:
            shape.dim[place.index].dim_param = symbol
    for value in list(graph.value_info):
        if value.name in axes:
            graph.value_info.remove(value)


def _fresh_symbol(graph: onnx.GraphProto) -> str:
    taken = {
        dim.dim_param
        for value in (*graph.input, *graph.output, *graph.value_info)
        for dim in value.type.tensor_type.shape.dim
    }
    symbol, count = "batch", 0
    while symbol in taken:
        count += 1
        symbol = f"batch_{count}"
    return symbol


def _cannot(node: onnx.NodeProto, reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"The fixed batch cannot be freed at {describe(node)}: {reason}. "
        "Export the model anew with a batch of any size, or train it with its fixed one."
    )
