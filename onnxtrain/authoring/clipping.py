"""Clipping: gradients are kept small before an optimizer sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from onnx import TensorProto

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.optimizers import Parameter


class Clip(Protocol):
    """A way to keep gradients small."""

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter]) -> list[Parameter]:
        """Adds the nodes; returns the same parameters with other gradients."""
        ...


@dataclass(frozen=True)
class ClipByValue:
    """Keeps every element of every gradient between -`limit` and `limit`."""

    limit: float

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter]) -> list[Parameter]:
        """Adds the nodes."""
        return [self._clip(builder, parameter) for parameter in parameters]

    def _clip(self, builder: GraphBuilder, parameter: Parameter) -> Parameter:
        gradient, element_type = parameter.gradient, parameter.element_type
        low = builder.initializer("clip/low", -self.limit, element_type)
        high = builder.initializer("clip/high", self.limit, element_type)
        floored = builder.add("Max", (gradient, low), f"{gradient}/floored")
        return replace(parameter, gradient=builder.add("Min", (floored, high), f"{gradient}/clipped"))


@dataclass(frozen=True)
class ClipByNorm:
    """Shortens the gradient of each weight to the length `limit` where it is longer."""

    limit: float

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter]) -> list[Parameter]:
        """Adds the nodes."""
        return [_shorten(builder, one, _norm(builder, [one], f"{one.gradient}/norm"), self.limit) for one in parameters]


@dataclass(frozen=True)
class ClipByGlobalNorm:
    """Shortens all gradients by one factor to the length `limit` together, where they are longer.

    A step gives their length, before it is cut, as the output `gradient_norm`.
    """

    limit: float

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter]) -> list[Parameter]:
        """Adds the nodes."""
        norm, norm_type = _norm(builder, parameters, "gradient_norm"), _common_type(parameters)
        builder.declare_output(norm, norm_type, ())
        norms = {norm_type: norm}
        for parameter in parameters:
            if parameter.element_type not in norms:
                norms[parameter.element_type] = builder.cast(norm, parameter.element_type, "gradient_norm/cast")
        return [_shorten(builder, one, norms[one.element_type], self.limit) for one in parameters]


def _common_type(parameters: Sequence[Parameter]) -> int:
    types = {parameter.element_type for parameter in parameters}
    return types.pop() if len(types) == 1 else TensorProto.DOUBLE


def _norm(builder: GraphBuilder, parameters: Sequence[Parameter], output: str) -> str:
    """The length of all gradients together, a scalar of their common type."""
    element_type, squares = _common_type(parameters), []
    for parameter in parameters:
        square = builder.add("ReduceSumSquare", (parameter.gradient,), f"{parameter.gradient}/square", keepdims=0)
        if parameter.element_type != element_type:
            square = builder.cast(square, element_type, f"{parameter.gradient}/square/cast")
        squares.append(square)
    total = squares[0] if len(squares) == 1 else builder.add("Sum", squares, f"{output}/square")
    return builder.add("Sqrt", (total,), output)


def _shorten(builder: GraphBuilder, parameter: Parameter, norm: str, limit: float) -> Parameter:
    gradient = parameter.gradient
    longest = builder.initializer("clip/limit", limit, parameter.element_type)
    # the larger of the two, so that nothing is divided by a norm of zero
    divisor = builder.add("Max", (norm, longest), f"{gradient}/divisor")
    factor = builder.add("Div", (longest, divisor), f"{gradient}/factor")
    return replace(parameter, gradient=builder.add("Mul", (gradient, factor), f"{gradient}/clipped"))
