"""Weights that local functions hold as constants: they become inputs of the functions, fed from the main graph.

Only an initializer of the main graph can be a state variable. A constant of a function is one tensor, however often the
function is called, so that all calls read one initializer.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

from onnxtrain.authoring.names import Names, take
from onnxtrain.authoring.protos import FLOAT_TYPES, constant_tensor, every_node
from onnxtrain.authoring.rewrites import nested_graphs, take_weights
from onnxtrain.authoring.roles import may_be_updated

_Key = tuple[str, str, str]  # domain, name and overload of a function
_Origin = tuple[_Key, str]  # a function and the name of its constant


def lift_function_weights(model: onnx.ModelProto, names: Names) -> None:
    """Moves float constants that can be weights out of local functions into the main graph."""
    lifting = _Lifting(model)
    initializers: dict[_Origin, str] = {}
    for node in every_node(model.graph.node):
        for origin in lifting.needed_by(node):
            if origin not in initializers:
                (_, function, _), name = origin
                initializers[origin] = names.fresh(f"{function}/{name}")
                tensor = model.graph.initializer.add()
                tensor.CopyFrom(lifting.tensors[origin])
                tensor.name = initializers[origin]
        lifting.feed(node, initializers)


class _Lifting:
    """Turns the constants of functions into inputs, those of a function that others call before theirs."""

    def __init__(self, model: onnx.ModelProto):
        self.tensors: dict[_Origin, TensorProto] = {}
        self._functions = {(body.domain, body.name, body.overload): body for body in model.functions}
        self._arity = {key: len(body.input) for key, body in self._functions.items()}
        self._lifted: dict[_Key, tuple[_Origin, ...]] = {}

    def needed_by(self, node: onnx.NodeProto) -> tuple[_Origin, ...]:
        """The constants that a call of a function must be fed with."""
        key = (node.domain, node.op_type, node.overload)
        return self._lift(key) if key in self._functions else ()

    def feed(self, node: onnx.NodeProto, values: dict[_Origin, str]) -> None:
        """Gives a call the constants of its function as further inputs; those left out before stay so."""
        needed = self.needed_by(node)
        if needed:
            missing = self._arity[node.domain, node.op_type, node.overload] - len(node.input)
            node.input.extend([""] * missing + [values[origin] for origin in needed])

    def _lift(self, key: _Key) -> tuple[_Origin, ...]:
        if key not in self._lifted:
            function = self._functions[key]
            names: dict[_Origin, str] = {}
            nodes = list(every_node(function.node))
            taken = {*function.input, *(name for node in nodes for name in (*node.input, *node.output))}
            for tensor in _weights(function, taken):
                origin = (key, tensor.name)
                self.tensors[origin] = tensor
                names[origin] = tensor.name
            for node in every_node(function.node):
                for origin in self.needed_by(node):
                    names.setdefault(origin, take(f"{node.op_type}/{origin[1]}", taken))
                self.feed(node, names)
            function.input.extend(names.values())
            self._lifted[key] = tuple(names)
        return self._lifted[key]


def _weights(function: onnx.FunctionProto, taken: set[str]) -> list[TensorProto]:
    """Takes the constants that can be weights out of a function and its subgraphs; each is named as its value is."""
    found = [
        tensor for body in nested_graphs(function.node) for tensor in take_weights(body, lambda name: take(name, taken))
    ]
    places = {
        name
        for node in every_node(function.node)
        for index, name in enumerate(node.input)
        if may_be_updated(node, index)
    }
    for node in list(function.node):
        tensor = constant_tensor(node)
        if tensor is None or tensor.data_type not in FLOAT_TYPES or all(size <= 1 for size in tensor.dims):
            continue
        if node.output[0] in places and node.output[0] not in function.output:
            copy = TensorProto.FromString(tensor.SerializeToString())
            copy.name = node.output[0]
            found.append(copy)
            function.node.remove(node)
    return found
