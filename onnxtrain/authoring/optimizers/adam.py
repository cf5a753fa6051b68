"""Adam and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.expressions import Expression
from onnxtrain.authoring.optimizers.functions import Formula, write_call
from onnxtrain.authoring.optimizers.operators import write_operator
from onnxtrain.authoring.optimizers.rule import Parameter
from onnxtrain.authoring.state import State

Moments = tuple[Expression, Expression]


@dataclass(frozen=True)
class Adam:
    """ONNX's `Adam`.

    Attributes:
      beta1: decay of the mean of the gradients.
      beta2: decay of the mean of their squares.
      epsilon: added to the root of the latter, before the correction of bias, unlike in PyTorch and optax.
      weight_decay: times the weight, what is added to the gradient.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter], state: State) -> list[str]:
        """Adds the nodes of one step."""
        slots = ("first_moment", "second_moment")
        return [
            write_operator(builder, "Adam", "adam", parameter, state, slots, self._attributes(parameter))
            for parameter in parameters
        ]

    def _attributes(self, parameter: Parameter) -> dict[str, float]:
        decay = {"norm_coefficient": parameter.decay(self.weight_decay), "norm_coefficient_post": 0.0}
        return {"alpha": self.beta1, "beta": self.beta2, "epsilon": self.epsilon, **decay}


def _moments(
    gradient: Expression, first: Expression, second: Expression, beta1: Expression, beta2: Expression
) -> Moments:
    return beta1 * first + (1.0 - beta1) * gradient, beta2 * second + (1.0 - beta2) * (gradient * gradient)


def _adamw(
    learning_rate: Expression,
    weight: Expression,
    gradient: Expression,
    first_moment: Expression,
    second_moment: Expression,
    count: Expression,
    beta1: Expression,
    beta2: Expression,
    epsilon: Expression,
    weight_decay: Expression,
) -> Sequence[Expression]:
    """m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; with m' = m / (1 - beta1^t) and
    v' = v / (1 - beta2^t), x = x - rate (m' / (sqrt(v') + epsilon) + weight_decay x).
    Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019.
    """
    first, second = _moments(gradient, first_moment, second_moment, beta1, beta2)
    root = (second / (1.0 - beta2**count)).root()
    direction = first / (1.0 - beta1**count) / (root + epsilon)
    return weight - learning_rate * (direction + weight_decay * weight), first, second


def _nadam(
    learning_rate: Expression,
    weight: Expression,
    gradient: Expression,
    first_moment: Expression,
    second_moment: Expression,
    count: Expression,
    beta1: Expression,
    beta2: Expression,
    epsilon: Expression,
    weight_decay: Expression,
) -> Sequence[Expression]:
    """m and v as in Adam; with m' = beta1 m / (1 - beta1^(t + 1)) + (1 - beta1) g / (1 - beta1^t) and
    v' = v / (1 - beta2^t), x = x - rate (m' / (sqrt(v') + epsilon) + weight_decay x).
    Dozat, Incorporating Nesterov Momentum into Adam, 2016.
    """
    first, second = _moments(gradient, first_moment, second_moment, beta1, beta2)
    ahead = beta1 * first / (1.0 - beta1 ** (count + 1.0)) + (1.0 - beta1) * gradient / (1.0 - beta1**count)
    direction = ahead / ((second / (1.0 - beta2**count)).root() + epsilon)
    return weight - learning_rate * (direction + weight_decay * weight), first, second


def _radam(
    learning_rate: Expression,
    weight: Expression,
    gradient: Expression,
    first_moment: Expression,
    second_moment: Expression,
    count: Expression,
    beta1: Expression,
    beta2: Expression,
    epsilon: Expression,
    weight_decay: Expression,
) -> Sequence[Expression]:
    """m, v, m' and v' as in Adam; with R = 2 / (1 - beta2) - 1 and r = R - 2 t beta2^t / (1 - beta2^t), the direction
    is m' while r < 5, and then sqrt((r - 4) (r - 2) R / ((R - 4) (R - 2) r)) m' / (sqrt(v') + epsilon);
    x = x - rate (direction + weight_decay x).
    Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, 2020.
    """
    first, second = _moments(gradient, first_moment, second_moment, beta1, beta2)
    power = beta2**count
    limit = 2.0 / (1.0 - beta2) - 1.0
    length = limit - 2.0 * count * power / (1.0 - power)
    long = length.at_least(5.0)  # below, the root would have no value
    factor = ((long - 4.0) * (long - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * long)).root()
    mean = first / (1.0 - beta1**count)
    adapted = factor * mean / ((second / (1.0 - power)).root() + epsilon)
    direction = length.before(5.0, mean, adapted)
    return weight - learning_rate * (direction + weight_decay * weight), first, second


def _lamb(
    learning_rate: Expression,
    weight: Expression,
    gradient: Expression,
    first_moment: Expression,
    second_moment: Expression,
    count: Expression,
    beta1: Expression,
    beta2: Expression,
    epsilon: Expression,
    weight_decay: Expression,
) -> Sequence[Expression]:
    """m, v, m' and v' as in Adam; u = m' / (sqrt(v') + epsilon) + weight_decay x; x = x - rate |x| / |u| u, where the
    quotient is 1 when either norm is 0.
    You et al., Large Batch Optimization for Deep Learning, 2020.
    """
    first, second = _moments(gradient, first_moment, second_moment, beta1, beta2)
    root = (second / (1.0 - beta2**count)).root()
    direction = first / (1.0 - beta1**count) / (root + epsilon) + weight_decay * weight
    lengths = weight.norm(), direction.norm()
    are_there = lengths[0].is_above(0.0) * lengths[1].is_above(0.0)
    ratio = are_there * lengths[0] / (lengths[1] + (1.0 - are_there)) + (1.0 - are_there)
    return weight - learning_rate * ratio * direction, first, second


@dataclass(frozen=True)
class _TwoMoments:
    """What keeps the decaying means of the gradients and of their squares, and differs in its formula."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    formula: ClassVar[Formula]

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter], state: State) -> list[str]:
        """Adds the nodes of one step."""
        return [self._write(builder, parameter, state) for parameter in parameters]

    def _write(self, builder: GraphBuilder, parameter: Parameter, state: State) -> str:
        coefficients = {
            "beta1": self.beta1,
            "beta2": self.beta2,
            "epsilon": self.epsilon,
            "weight_decay": parameter.decay(self.weight_decay),
        }
        slots = {"first_moment": parameter.dims, "second_moment": parameter.dims}
        return write_call(builder, type(self).__name__, self.formula, parameter, state, slots, coefficients)


@dataclass(frozen=True)
class AdamW(_TwoMoments):
    """Adam with decoupled weight decay, as in optax and PyTorch: `epsilon` stands beside the corrected root.

    Attributes:
      beta1: decay of the mean of the gradients.
      beta2: decay of the mean of their squares.
      epsilon: added to the root of the latter.
      weight_decay: the part of the weight that a step takes away, times the learning rate.
    """

    weight_decay: float = 1e-4

    formula = staticmethod(_adamw)


@dataclass(frozen=True)
class NAdam(_TwoMoments):
    """Adam with Nesterov's momentum, as in optax; coefficients as those of `AdamW`."""

    formula = staticmethod(_nadam)


@dataclass(frozen=True)
class RAdam(_TwoMoments):
    """Rectified Adam, as in optax and PyTorch; coefficients as those of `AdamW`."""

    formula = staticmethod(_radam)


@dataclass(frozen=True)
class Lamb(_TwoMoments):
    """LAMB, for large batches, as in optax; coefficients as those of `AdamW`, but for the decay.

    Attributes:
      weight_decay: times the weight, what is added to the direction of the step.
    """

    epsilon: float = 1e-6

    formula = staticmethod(_lamb)
