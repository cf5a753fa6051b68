"""One step for all weights: from their gradients to the next values of every state variable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import TensorProto, numpy_helper

from onnxtrain.authoring.accumulation import Accumulation
from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.clipping import Clip
from onnxtrain.authoring.groups import Group, groups_of
from onnxtrain.authoring.learning_rate import FedRate, LearningRates
from onnxtrain.authoring.loss_scaling import LossScale, LossScaling
from onnxtrain.authoring.optimizers import Optimizer, Parameter
from onnxtrain.authoring.protos import HALF_TYPES
from onnxtrain.authoring.schedules import Schedule
from onnxtrain.authoring.state import State, Update
from onnxtrain.authoring.value_types import Value
from onnxtrain.authoring.weights import Weight
from onnxtrain.errors import UnsupportedError


@dataclass(frozen=True)
class UpdatePlan:
    """How gradients become updates.

    Attributes:
      optimizer: writes the step of the weights.
      learning_rate: a number for a state variable, a schedule, or a rate that is fed; None for an optimizer that has
        its own.
      clip: keeps gradients small; None leaves them as they are.
      accumulate: how many steps make one update.
      loss_scale: how the loss is scaled; None where it is not.
      average: the decay of a moving average of the weights; None where there is none.
      groups: what holds for some weights only.
    """

    optimizer: Optimizer
    learning_rate: float | Schedule | FedRate | None
    clip: Clip | None = None
    accumulate: int = 1
    loss_scale: LossScale | None = None
    average: float | None = None
    groups: Sequence[Group] = ()

    def __post_init__(self) -> None:
        if self.learning_rate is None and self.groups:
            raise UnsupportedError(
                "groups=... are shares of a learning rate and of a weight decay that an optax transformation has to "
                "itself. Take optax.multi_transform, or the masks of optax, over the names of the weights."
            )
        if self.accumulate < 1:
            raise UnsupportedError(f"accumulate={self.accumulate} must be 1 or more: so many steps make one update.")
        if self.average is not None and not 0 <= self.average < 1:
            raise UnsupportedError(f"average={self.average} must be at least 0 and less than 1: the decay of a mean.")

    def describe(self) -> str:
        """What whoever opens the file needs to know of it."""
        sentences = [_describe_rate(self.learning_rate)]
        if self.accumulate > 1:
            sentences.append(f"{self.accumulate} steps make one update, by the mean of their gradients.")
        if self.loss_scale:
            sentences.append("The loss is scaled, and an update whose gradients overflow is left out.")
        if self.clip:
            sentences.append(f"Gradients are clipped: {self.clip}.")
        if self.average is not None:
            sentences.append(f"W/average is the moving average of a weight W, with a decay of {self.average}.")
        return " ".join(sentences)


def _describe_rate(rate: float | Schedule | FedRate | None) -> str:
    if rate is None:
        return "The optimizer has its own learning rate."
    if isinstance(rate, FedRate):
        return f"The learning rate is an input that is {rate.default} when it is not fed."
    if isinstance(rate, int | float):
        return "The learning rate is a state variable: set it between two steps."
    return f"The learning rate follows a schedule: {rate}."


class UpdateWriter:
    """Writes the updates of one algorithm, before and after its gradients are known.

    Attributes:
      averages: the state variable that holds the moving average of each weight.
    """

    def __init__(
        self, builder: GraphBuilder, plan: UpdatePlan, weights: Sequence[Weight], stored: Mapping[str, TensorProto]
    ):
        self._builder, self._plan, self._weights, self._stored = builder, plan, weights, stored
        self._state = State(builder)  # what changes when the weights do
        self._settings = State(builder)
        self._scaling = LossScaling(builder, plan.loss_scale) if plan.loss_scale else None
        self.averages: dict[str, str] = {}

    def to_differentiate(self, loss: str, element_type: int) -> str:
        """The value whose gradients `write` is given."""
        self._state.loss = Value(loss, element_type, ())
        return self._scaling.scale(loss, element_type) if self._scaling else loss

    def write(self, gradients: Sequence[str]) -> list[Update]:
        """Adds the nodes; weights of 16 bits are updated in float32."""
        plan, builder = self._plan, self._builder
        halves = {
            weight.name: _Half(builder, self._state, weight)
            for weight in self._weights
            if weight.element_type in HALF_TYPES
        }
        parameters = self._parameters(gradients, halves)
        conditions, others = [], [self._settings]
        if plan.accumulate > 1:
            accumulation = Accumulation(builder, plan.accumulate)
            parameters = accumulation.write(parameters)
            conditions.append(accumulation.is_last)
            others.append(accumulation.state)
        if self._scaling:
            parameters = self._scaling.unscale(parameters)
            finite = self._scaling.write_check(parameters)
            if conditions:
                self._scaling.state.hold_unless(conditions[0])
            conditions.append(finite)
            others.append(self._scaling.state)
        if plan.clip:
            parameters = plan.clip.write(builder, parameters)
        self._step(parameters, halves)
        for condition in conditions:
            self._state.hold_unless(condition)
        return [update for state in (*others, self._state) for update in state.updates]

    def _parameters(self, gradients: Sequence[str], halves: Mapping[str, _Half]) -> list[Parameter]:
        builder, found = self._builder, []
        wanted = self._plan.learning_rate
        rates = None
        if wanted is not None:
            rates = LearningRates(builder, self._settings, self._state, self._weights, wanted)
        groups = groups_of(self._plan.groups, self._weights)
        for weight, gradient in zip(self._weights, gradients, strict=True):
            element_type, value = weight.element_type, weight.name
            if weight.name in halves:
                element_type, value = TensorProto.FLOAT, halves[weight.name].exact
                gradient = builder.cast(gradient, element_type, f"{gradient}/exact")
            group = groups[weight.name]
            rate = rates.get(element_type, group.learning_rate_factor) if rates else ""
            stored = numpy_helper.to_array(self._stored[weight.name])
            found.append(
                Parameter(weight.name, value, gradient, element_type, weight.dims, stored, rate, group.weight_decay)
            )
        return found

    def _step(self, parameters: Sequence[Parameter], halves: Mapping[str, _Half]) -> None:
        values = self._plan.optimizer.write(self._builder, parameters, self._state)
        if self._plan.average is not None:
            self._write_averages(parameters, values, self._plan.average)
        for weight, value in zip(self._weights, values, strict=True):
            rounded = halves[weight.name].round(value) if weight.name in halves else value
            self._state.assign_weight(weight.name, rounded, weight.element_type, weight.dims)

    def _write_averages(self, parameters: Iterable[Parameter], values: Iterable[str], decay: float) -> None:
        builder = self._builder
        for parameter, value in zip(parameters, values, strict=True):
            element_type, name = parameter.element_type, f"{parameter.name}/average"
            start = numpy_helper.to_array(self._stored[parameter.name])
            average = self._state.copy(name, parameter.name, start, element_type)
            share = builder.initializer(f"{name}/share", 1.0 - decay, element_type)
            difference = builder.add("Sub", (value, average), f"{name}/difference")
            change = builder.add("Mul", (difference, share), f"{name}/change")
            self._state.assign(average, builder.add("Add", (average, change), f"{average}/updated"))
            self.averages[parameter.name] = average


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
