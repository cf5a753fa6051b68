"""Follows every stored tensor of a model to the nodes that use it, and says which tensors are weights.

A tensor is a weight when, by itself or in another form (transposed, reshaped, cast, quantized and back), it stands at
an input that holds a weight (`roles.py`). Constants in plain arithmetic are weights only

- where the other operand depends on a weight already: what is added to or multiplied with the data before the first
  layer is preprocessing;
- where they have more than one element, so that 0.5 or the square root of 2 stay what they are; or where they are the
  bias of a layer with a single output;
- where they are no mask: a table of two values, one of them 0, is one;
- where they are no scale of quantized values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxtrain.authoring.protos import FLOAT_TYPES, attribute_value, input_at, is_standard, label, subgraphs
from onnxtrain.authoring.roles import (
    ARITHMETIC,
    CARRIES_CONSTANTS,
    CARRIES_FIRST_INPUT,
    Role,
    weight_role,
)
from onnxtrain.authoring.value_types import Types

_LINEAR = ("MatMul", "Gemm", "Conv", "ConvTranspose")


@dataclass(frozen=True)
class Use:
    """The first place at which a tensor is used as a weight.

    Attributes:
      role: what the tensor does there.
      node: the node that uses it.
      index: the input of the node that holds it.
      dims: its shape there.
      places: the labels of all nodes that use it, and of those that they stand in: If, Loop, calls of functions.
    """

    role: Role
    node: onnx.NodeProto
    index: int
    dims: tuple[int, ...]
    places: frozenset[str]


@dataclass
class _Scope:
    """What is known at one point of a graph, by value name."""

    origins: dict[str, frozenset[str]]  # the stored float tensors that a value is another form of
    constants: set[str]  # values that depend on nothing but stored tensors
    learned: set[str] = field(default_factory=set)  # values that depend on a weight
    producers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    enclosing: frozenset[str] = frozenset()  # labels of the nodes that this graph is inside
    in_function: bool = False  # whose names are its own

    def inside(self, formal: Mapping[str, str] | None = None) -> _Scope:
        """The scope of a subgraph, or of a function body whose `formal` names stand for these values."""
        if formal is None:
            return replace(
                self,
                origins=dict(self.origins),
                constants=set(self.constants),
                learned=set(self.learned),
                producers=dict(self.producers),
            )
        origins = {name: self.origins[value] for name, value in formal.items() if value in self.origins}
        constants = {name for name, value in formal.items() if value in self.constants}
        learned = {name for name, value in formal.items() if value in self.learned}
        return _Scope(origins, constants, learned, in_function=True)


def find_uses(model: onnx.ModelProto, stored: Mapping[str, TensorProto], types: Types) -> dict[str, Use]:
    """The stored float tensors that are weights, in the order in which the nodes use them."""
    survey = _Survey(model, stored, types)
    floats = {name: frozenset({name}) for name, tensor in stored.items() if tensor.data_type in FLOAT_TYPES}
    survey.walk(model.graph.node, _Scope(floats, set(stored)))
    return survey.uses


class _Survey:
    def __init__(self, model: onnx.ModelProto, stored: Mapping[str, TensorProto], types: Types):
        self.stored = stored
        self.types = types
        self.functions = {(body.domain, body.name, body.overload): body for body in model.functions}
        self.uses: dict[str, Use] = {}

    def walk(self, nodes: Iterable[onnx.NodeProto], scope: _Scope) -> None:
        for node in nodes:
            self._visit(node, scope)
            scope.producers.update((name, node) for name in node.output)

    def _visit(self, node: onnx.NodeProto, scope: _Scope) -> None:
        reads_constants = bool(node.input) and all(name in scope.constants for name in node.input if name)
        if reads_constants or is_standard(node, "Constant"):
            scope.constants.update(node.output)
        carried = _carried(node, scope)
        if carried:
            scope.origins.update((name, carried) for name in node.output)
            return
        learned = any(name in scope.learned for name in node.input)
        for index, name in enumerate(node.input):
            for tensor in sorted(scope.origins.get(name, ())):
                role = self._role(node, index, self.stored[tensor], scope)
                if role is not None:
                    places = scope.enclosing | {label(node)}
                    self._record(tensor, Use(role, node, index, self._dims(name, tensor, scope), places))
                    learned = True
        if self._enter_bodies(node, scope) or learned:
            scope.learned.update(node.output)

    def _record(self, tensor: str, use: Use) -> None:
        known = self.uses.get(tensor, use)
        kept = replace(use, role=known.role) if (known.role, use.role) == (Role.EMBEDDING, Role.KERNEL) else known
        self.uses[tensor] = replace(kept, places=known.places | use.places)

    def _dims(self, name: str, tensor: str, scope: _Scope) -> tuple[int, ...]:
        known = () if scope.in_function else self.types.dimensions(name) or ()
        dims = tuple(size for size in known if isinstance(size, int))
        return dims if dims and len(dims) == len(known) else tuple(self.stored[tensor].dims)

    def _role(self, node: onnx.NodeProto, index: int, tensor: TensorProto, scope: _Scope) -> Role | None:
        if not tensor.dims and not is_standard(node, "PRelu"):
            return None  # a number, not a tensor of weights
        if is_standard(node, *ARITHMETIC):
            return ARITHMETIC[node.op_type] if self._is_parameter(node, index, tensor, scope) else None
        if is_standard(node, "Concat"):
            return None if _is_padding(tensor) else Role.EMBEDDING
        return weight_role(node, index)

    def _is_parameter(self, node: onnx.NodeProto, index: int, tensor: TensorProto, scope: _Scope) -> bool:
        others = [name for place, name in enumerate(node.input) if place != index]
        if not any(name in scope.learned for name in others):
            return False
        producers = [scope.producers.get(name) for name in others]
        if any(producer is not None and is_standard(producer, "DynamicQuantizeLinear") for producer in producers):
            return False  # the scale of integers, whose product with that of the data makes floats of them
        if np.prod(tensor.dims, dtype=np.int64) > 1:
            return not _is_mask(tensor)
        return node.op_type == "Add" and any(producer and self._has_single_output(producer) for producer in producers)

    def _has_single_output(self, node: onnx.NodeProto) -> bool:
        if not is_standard(node, *_LINEAR):
            return False
        dims = self.types.dimensions(input_at(node, 1)) or ()
        if node.op_type == "Conv":
            return dims[:1] == (1,)
        axis = 0 if node.op_type == "Gemm" and attribute_value(node, "transB", 0) else 1
        return dims[axis : axis + 1] == (1,)

    def _enter_bodies(self, node: onnx.NodeProto, scope: _Scope) -> bool:
        """Walks the subgraphs of a node and the function that it calls; whether a weight is learned in there."""
        learned = False
        for body in subgraphs(node):
            inner = scope.inside()
            inner.enclosing = scope.enclosing | {label(node)}
            for actual, formal in _unchanged_inputs(node, body):
                inner.origins[formal] = scope.origins.get(actual, frozenset())
                inner.constants.add(formal)
            self.walk(body.node, inner)
            learned = learned or any(value.name in inner.learned for value in body.output)
        function = self.functions.get((node.domain, node.op_type, node.overload))
        if function is not None:
            inner = scope.inside(dict(zip(function.input, node.input, strict=False)))
            inner.enclosing = scope.enclosing | {label(node)}
            self.walk(function.node, inner)
            learned = learned or any(name in inner.learned for name in function.output)
        return learned


def _carried(node: onnx.NodeProto, scope: _Scope) -> frozenset[str]:
    """The stored tensors that the output of a node is another form of."""
    if is_standard(node, "Cast") and attribute_value(node, "to") not in FLOAT_TYPES:
        return frozenset()
    if is_standard(node, *CARRIES_FIRST_INPUT):
        return scope.origins.get(input_at(node, 0), frozenset())
    if is_standard(node, *CARRIES_CONSTANTS) and all(name in scope.constants for name in node.input if name):
        read = node.input[:1] if node.op_type in ("Gather", "Pad") else node.input
        return frozenset().union(*(scope.origins.get(name, frozenset()) for name in read))
    return frozenset()


def _unchanged_inputs(node: onnx.NodeProto, body: onnx.GraphProto) -> list[tuple[str, str]]:
    """Inputs that a Loop hands to every iteration as they are, with their names inside the body."""
    if not is_standard(node, "Loop"):
        return []
    identities = {inner.output[0]: inner.input[0] for inner in body.node if is_standard(inner, "Identity")}
    pairs = []
    for actual, formal, result in zip(node.input[2:], body.input[2:], body.output[1:], strict=False):
        source = result.name
        while source in identities:
            source = identities[source]
        if source == formal.name:
            pairs.append((actual, formal.name))
    return pairs


def _values(tensor: TensorProto) -> np.ndarray | None:
    return None if tensor.data_location == TensorProto.EXTERNAL else numpy_helper.to_array(tensor)


def _is_padding(tensor: TensorProto) -> bool:
    values = _values(tensor)
    is_zero = values is not None and not values.any()
    return is_zero or all(size <= 1 for size in tensor.dims)


def _is_mask(tensor: TensorProto) -> bool:
    values = _values(tensor)
    if values is None or sum(size > 1 for size in tensor.dims) < 2:
        return False
    distinct = np.unique(values.astype(np.float64))
    return len(distinct) == 2 and (0.0 in distinct or not np.isfinite(distinct).all())
