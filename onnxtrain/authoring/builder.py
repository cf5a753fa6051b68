"""Writes the nodes of one graph in the operators of one opset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxtrain.authoring.names import Names
from onnxtrain.errors import UnsupportedError

TRAINING_DOMAIN = "ai.onnx.preview.training"


class GraphBuilder:
    """Collects nodes and initializers; every name that it is asked for becomes a fresh one.

    Attributes:
      names: the names that are taken in the model.
      opset: the opset of ai.onnx that the nodes are written in, the model's own.
      nodes: the nodes so far, in an order in which they can run.
      initializers: the initializers so far.
      inputs: what is fed to the graph, beside what its owner knows of.
      outputs: values of interest that the graph gives, likewise.
      functions: the local functions that nodes may call: those of the model, then those added.
    """

    def __init__(self, names: Names, opset: int, functions: Sequence[onnx.FunctionProto] = ()):
        self.names = names
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.functions = list(functions)

    def nested(self) -> GraphBuilder:
        """A builder for a subgraph: nodes of its own, the same names and initializers."""
        inner = GraphBuilder(self.names, self.opset)
        inner.initializers, inner.functions = self.initializers, self.functions
        return inner

    def add(self, op_type: str, inputs: Sequence[str], output: str, *, name: str = "", **attributes: Any) -> str:
        """Adds a node of ai.onnx with one output and returns the fresh name of that output."""
        return self.add_node(op_type, inputs, (output,), name=name, **attributes)[0]

    def add_node(
        self,
        op_type: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        name: str = "",
        domain: str = "",
        doc: str = "",
        **attributes: Any,
    ) -> tuple[str, ...]:
        """Adds a node and returns the fresh names of its outputs."""
        fresh = tuple(self.names.fresh(output) for output in outputs)
        label = self.names.fresh_node(name) if name else ""
        node = helper.make_node(op_type, list(inputs), list(fresh), label, doc or None, domain, **attributes)
        self.nodes.append(node)
        return fresh

    def call(
        self,
        function: onnx.FunctionProto,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        name: str = "",
        **attributes: Any,
    ) -> tuple[str, ...]:
        """Adds a node that calls a local function, which comes into the model with its first call."""
        if all((known.domain, known.name) != (function.domain, function.name) for known in self.functions):
            self.functions.append(function)
        return self.add_node(function.name, inputs, outputs, name=name, domain=function.domain, **attributes)

    def initializer(self, name: str, value: Any, element_type: int) -> str:
        """Adds an initializer with this value, cast to an element type of ONNX, and returns its fresh name."""
        dtype = helper.tensor_dtype_to_np_dtype(element_type)
        tensor = numpy_helper.from_array(np.asarray(value).astype(dtype), self.names.fresh(name))
        self.initializers.append(tensor)
        return tensor.name

    def integers(self, name: str, value: int | Sequence[int]) -> str:
        """Adds an int64 initializer: a shape, axes, a count."""
        return self.initializer(name, value, TensorProto.INT64)

    def declare_input(self, name: str, element_type: int, dims: Sequence[int]) -> None:
        """Makes a name an input of the graph; where an initializer has it too, that is the default."""
        self.inputs.append(helper.make_tensor_value_info(name, element_type, dims))

    def declare_output(self, name: str, element_type: int, dims: Sequence[int]) -> None:
        """Makes a value an output of the graph."""
        self.outputs.append(helper.make_tensor_value_info(name, element_type, dims))

    def cast(self, value: str, element_type: int, output: str) -> str:
        """Adds a Cast."""
        return self.add("Cast", (value,), output, to=element_type)

    def mean(self, value: str, output: str, axes: Sequence[int] | None = None, *, keepdims: int = 0) -> str:
        """Adds a ReduceMean over some axes, or over all of them."""
        return self.reduce("ReduceMean", value, output, axes, keepdims=keepdims)

    def sum(self, value: str, output: str, axes: Sequence[int] | None = None, *, keepdims: int = 0) -> str:
        """Adds a ReduceSum over some axes, or over all of them."""
        return self.reduce("ReduceSum", value, output, axes, keepdims=keepdims)

    def reduce(
        self, op_type: str, value: str, output: str, axes: Sequence[int] | None = None, *, keepdims: int = 0
    ) -> str:
        """Adds a reduction over some axes, or over all of them; its axes are an input since opset 18, or 13."""
        if axes is None:
            return self.add(op_type, (value,), output, keepdims=keepdims)
        if self.opset < (13 if op_type == "ReduceSum" else 18):
            return self.add(op_type, (value,), output, axes=list(axes), keepdims=keepdims)
        return self.add(op_type, (value, self.integers(f"{output}/axes", axes)), output, keepdims=keepdims)

    def select(self, condition: str, value: str, otherwise: str, output: str) -> str:
        """Adds nodes that give one value or the other, whole, as a bool scalar says.

        Raises:
          UnsupportedError: the opset is older than Where.
        """
        if self.opset < 9:
            raise UnsupportedError(
                f"A step that may leave the weights as they are needs Where, which opset {self.opset} does not have. "
                "Convert the model to opset 9 or newer (onnx.version_converter)."
            )
        return self.add("Where", (condition, value, otherwise), output)

    def filled(self, name: str, dims: Sequence[int], value: float, element_type: int) -> str:
        """Adds nodes that make a tensor of one repeated value."""
        dtype = helper.tensor_dtype_to_np_dtype(element_type)
        shape = self.integers(f"{name}/shape", dims)
        if self.opset >= 9:  # ConstantOfShape is younger than opset 7
            element = numpy_helper.from_array(np.full(1, value, dtype))
            return self.add("ConstantOfShape", (shape,), name, value=element)
        element = self.initializer(f"{name}/value", np.full([1] * len(dims), value), element_type)
        return self.add("Tile" if dims else "Identity", (element, shape) if dims else (element,), name)
