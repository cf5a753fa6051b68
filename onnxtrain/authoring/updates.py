"""One step for all weights: from their gradients to the next values of every state variable."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.optimizers import Optimizer, Parameter
from onnxtrain.authoring.protos import HALF_TYPES
from onnxtrain.authoring.state import State, Update
from onnxtrain.authoring.weights import Weight


def write_updates(
    builder: GraphBuilder,
    optimizer: Optimizer,
    weights: Sequence[Weight],
    gradients: Sequence[str],
    learning_rate: float,
) -> list[Update]:
    """Writes one step of the optimizer; weights of 16 bits are updated in float32."""
    state = State(builder)
    rates = _Rates(builder, state, weights, learning_rate)
    halves = {weight.name: _Half(builder, state, weight) for weight in weights if weight.element_type in HALF_TYPES}
    parameters = []
    for weight, gradient in zip(weights, gradients, strict=True):
        element_type, value = weight.element_type, weight.name
        if weight.name in halves:
            element_type, value = TensorProto.FLOAT, halves[weight.name].exact
            gradient = builder.cast(gradient, element_type, f"{gradient}/exact")
        rate = rates.of_type(element_type)
        parameters.append(Parameter(weight.name, value, gradient, element_type, weight.dims, rate))
    for weight, value in zip(weights, optimizer.write(builder, parameters, state), strict=True):
        if weight.name in halves:
            value = halves[weight.name].round(value)
        state.assign_weight(weight.name, value, weight.element_type, weight.dims)
    return state.updates


class _Half:
    """A weight of 16 bits, with what rounding took away kept for the next step: small changes add up."""

    def __init__(self, builder: GraphBuilder, state: State, weight: Weight):
        self._builder, self._state, self._weight = builder, state, weight
        name = weight.name
        self._residual = state.variable(f"{name}/residual", weight.dims, TensorProto.FLOAT)
        rounded = builder.cast(name, TensorProto.FLOAT, f"{name}/rounded")
        self.exact = builder.add("Add", (rounded, self._residual), f"{name}/exact")

    def round(self, exact: str) -> str:
        """The next value of the weight, from its next value in float32."""
        builder, name = self._builder, self._weight.name
        value = builder.cast(exact, self._weight.element_type, f"{name}/updated/rounded")
        back = builder.cast(value, TensorProto.FLOAT, f"{name}/updated/exact")
        left = builder.add("Sub", (exact, back), f"{self._residual}/updated")
        self._state.assign(self._residual, left)
        return value


class _Rates:
    """The learning rate, in the element types that weights are updated in."""

    def __init__(self, builder: GraphBuilder, state: State, weights: Sequence[Weight], learning_rate: float):
        self._builder = builder
        self._type: int = TensorProto.FLOAT
        if all(weight.element_type == TensorProto.DOUBLE for weight in weights):
            self._type = TensorProto.DOUBLE
        self._rates = {self._type: state.setting("learning_rate", learning_rate, self._type)}

    def of_type(self, element_type: int) -> str:
        """The name of the learning rate in this type."""
        if element_type not in self._rates:
            rate = self._rates[self._type]
            self._rates[element_type] = self._builder.cast(rate, element_type, f"{rate}/cast")
        return self._rates[element_type]
