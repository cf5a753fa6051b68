"""Gradient accumulation: several steps on small batches make one update, that of the large batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnx import TensorProto

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.optimizers import Parameter
from onnxtrain.authoring.state import State


class Accumulation:
    """Means of gradients over so many steps, in a graph under construction; only the last of them updates weights.

    The mean of the gradients of equally large batches is the gradient of their union, where a loss is a mean over
    examples.

    Attributes:
      state: the sums so far.
      is_last: the name of a bool scalar: whether this step completes an update.
    """

    def __init__(self, builder: GraphBuilder, steps: int):
        self._builder, self._steps = builder, steps
        self.state = State(builder)
        taken = self.state.variable("accumulation/steps", (), TensorProto.INT64)
        counted = builder.add("Add", (taken, builder.integers("accumulation/one", 1)), "accumulation/counted")
        self.is_last = builder.add(
            "Equal", (counted, builder.integers("accumulation/all", steps)), "accumulation/is_last"
        )
        zero = builder.integers("accumulation/zero", 0)
        self.state.assign(taken, builder.select(self.is_last, zero, counted, "accumulation/steps/updated"))

    def write(self, parameters: Sequence[Parameter]) -> list[Parameter]:
        """Adds the nodes; the gradients become their means, which are complete in the last step only."""
        return [self._accumulate(parameter) for parameter in parameters]

    def _accumulate(self, parameter: Parameter) -> Parameter:
        builder, element_type = self._builder, parameter.element_type
        kept = self.state.variable(f"{parameter.name}/accumulated", parameter.dims, element_type)
        total = builder.add("Add", (kept, parameter.gradient), f"{kept}/total")
        zero = builder.initializer(f"{kept}/zero", 0.0, element_type)
        self.state.assign(kept, builder.select(self.is_last, zero, total, f"{kept}/updated"))
        count = builder.initializer(f"{kept}/count", self._steps, element_type)
        return replace(parameter, gradient=builder.add("Div", (total, count), f"{kept}/mean"))
