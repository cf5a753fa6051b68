"""The learning rate: a state variable, a schedule, or an input that every step is fed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import TensorProto

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.expressions import Expression
from onnxtrain.authoring.schedules import Schedule
from onnxtrain.authoring.state import State
from onnxtrain.authoring.weights import Weight

NAME = "learning_rate"


@dataclass(frozen=True)
class FedRate:
    """A learning rate that a step may be fed, as the input `learning_rate`.

    Attributes:
      default: what a step takes that is not fed one.
    """

    default: float


class LearningRates:
    """The learning rate of the present step, in the element types and by the factors that weights need.

    `settings` takes the state variable of a constant rate; a schedule counts the updates in `state`.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        settings: State,
        state: State,
        weights: Sequence[Weight],
        rate: float | Schedule | FedRate,
    ):
        self._builder, self._settings, self._state = builder, settings, state
        self._type: int = TensorProto.FLOAT
        if all(weight.element_type == TensorProto.DOUBLE for weight in weights):
            self._type = TensorProto.DOUBLE
        self._rates: dict[tuple[int, float], str] = {(self._type, 1.0): self._write(rate)}

    def get(self, element_type: int, factor: float = 1.0) -> str:
        """The name of the learning rate times a factor, in this type."""
        key = (element_type, factor)
        if key not in self._rates:
            self._rates[key] = self._derive(element_type, factor)
        return self._rates[key]

    def _derive(self, element_type: int, factor: float) -> str:
        builder = self._builder
        if factor != 1.0:
            rate = self.get(element_type)
            by = builder.initializer(f"{NAME}/factor", factor, element_type)
            return builder.add("Mul", (rate, by), f"{NAME}/times_{factor:g}")
        return builder.cast(self.get(self._type), element_type, f"{NAME}/cast")

    def _write(self, rate: float | Schedule | FedRate) -> str:
        builder = self._builder
        if isinstance(rate, FedRate):
            fed = builder.initializer(NAME, rate.default, self._type)
            builder.declare_input(fed, self._type, ())
            return fed
        if isinstance(rate, int | float):
            return self._settings.setting(NAME, rate, self._type)
        before = builder.cast(self._state.steps_taken, self._type, f"{NAME}/step")
        self._state.count_steps()
        written = rate.write(Expression(builder, before, self._type, NAME))
        named = builder.add("Identity", (written.value,), NAME)
        builder.declare_output(named, self._type, ())
        return named
