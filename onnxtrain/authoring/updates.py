"""What a step changes: the state variables, and the nodes that compute their next values from the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.optimizers import Optimizer, Step
from onnxtrain.authoring.protos import HALF_TYPES
from onnxtrain.authoring.weights import Weight


@dataclass(frozen=True)
class Update:
    """A state variable and the value that a step gives it.

    Attributes:
      variable: the initializer, of the inference graph or of the algorithm.
      value: the output of the algorithm that it takes.
      element_type: of both.
      dims: the shape of both.
      initial: what initialization fills it with; None for one that is not filled with a single number.
    """

    variable: str
    value: str
    element_type: int
    dims: tuple[int, ...]
    initial: float | None = None


def write_updates(
    builder: GraphBuilder,
    optimizer: Optimizer,
    weights: Sequence[Weight],
    gradients: Sequence[str],
    learning_rate: float,
) -> list[Update]:
    """Writes one step of the optimizer for every weight."""
    writer = _UpdateWriter(builder, optimizer, weights, learning_rate)
    for weight, gradient in zip(weights, gradients, strict=True):
        writer.write(weight, gradient)
    return writer.updates


class _UpdateWriter:
    def __init__(self, builder: GraphBuilder, optimizer: Optimizer, weights: Sequence[Weight], learning_rate: float):
        self.updates: list[Update] = []
        self._builder = builder
        self._optimizer = optimizer
        self._rate_type: int = TensorProto.FLOAT
        if all(weight.element_type == TensorProto.DOUBLE for weight in weights):
            self._rate_type = TensorProto.DOUBLE
        rate = builder.initializer("learning_rate", learning_rate, self._rate_type)
        self._rates: dict[int, str] = {self._rate_type: rate}
        # it updates itself unchanged: as a state variable it is saved, and can be set between two steps
        kept = builder.add("Identity", (rate,), f"{rate}/updated")
        self.updates.append(Update(rate, kept, self._rate_type, ()))
        self._count = self._write_count() if optimizer.counts_steps else ""

    def _write_count(self) -> str:
        builder = self._builder
        taken = builder.integers("step", 0)
        count = builder.add("Add", (taken, builder.integers("step/one", 1)), f"{taken}/updated", name="count")
        self.updates.append(Update(taken, count, TensorProto.INT64, (), initial=0.0))
        return count

    def write(self, weight: Weight, gradient: str) -> None:
        """Writes the next value of a weight and of its slots; small types are updated in float32."""
        if weight.element_type in HALF_TYPES:
            self._write_half(weight, gradient)
        else:
            value = self._step(weight, weight.name, gradient, weight.element_type)
            self.updates.append(Update(weight.name, value, weight.element_type, weight.dims))

    def _write_half(self, weight: Weight, gradient: str) -> None:
        """The step in float32, with what rounding takes away kept for the next step: small changes add up."""
        builder, name = self._builder, weight.name
        residual = self._state(f"{name}/residual", weight.dims, TensorProto.FLOAT)
        rounded = builder.cast(name, TensorProto.FLOAT, f"{name}/rounded")
        exact = builder.add("Add", (rounded, residual), f"{name}/exact")
        slope = builder.cast(gradient, TensorProto.FLOAT, f"{gradient}/exact")
        exact_next = self._step(weight, exact, slope, TensorProto.FLOAT)
        value = builder.cast(exact_next, weight.element_type, f"{name}/updated/rounded")
        self.updates.append(Update(name, value, weight.element_type, weight.dims))
        back = builder.cast(value, TensorProto.FLOAT, f"{name}/updated/exact")
        left = builder.add("Sub", (exact_next, back), f"{residual}/updated")
        self.updates.append(Update(residual, left, TensorProto.FLOAT, weight.dims, initial=0.0))

    def _step(self, weight: Weight, value: str, gradient: str, element_type: int) -> str:
        slots = tuple(self._state(f"{weight.name}/{slot}", weight.dims, element_type) for slot in self._optimizer.slots)
        step = Step(weight.name, value, gradient, slots, self._rate(element_type), self._count)
        updated, *slot_values = self._optimizer.write(self._builder, step)
        for slot, slot_value in zip(slots, slot_values, strict=True):
            self.updates.append(Update(slot, slot_value, element_type, weight.dims, initial=0.0))
        return updated

    def _state(self, name: str, dims: tuple[int, ...], element_type: int) -> str:
        return self._builder.initializer(name, np.zeros(dims), element_type)

    def _rate(self, element_type: int) -> str:
        if element_type not in self._rates:
            rate = self._rates[self._rate_type]
            self._rates[element_type] = self._builder.cast(rate, element_type, f"{rate}/cast")
        return self._rates[element_type]
