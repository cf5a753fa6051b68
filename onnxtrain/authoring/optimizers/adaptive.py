"""Rates that adapt to the size of gradients, without a correction of bias, and Lion, which looks at signs alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.expressions import Expression
from onnxtrain.authoring.optimizers.functions import mean_over, write_call
from onnxtrain.authoring.optimizers.operators import write_operator
from onnxtrain.authoring.optimizers.rule import Parameter
from onnxtrain.authoring.state import State


@dataclass(frozen=True)
class Adagrad:
    """ONNX's `Adagrad`.

    Attributes:
      epsilon: added to the root of the sum of the squares.
      initial: what that sum starts with.
      weight_decay: times the weight, what is added to the gradient.
    """

    epsilon: float = 1e-7
    initial: float = 0.1
    weight_decay: float = 0.0

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter], state: State) -> list[str]:
        """Adds the nodes of one step."""
        fixed = {"decay_factor": 0.0, "epsilon": self.epsilon}
        return [
            write_operator(
                builder,
                "Adagrad",
                "adagrad",
                parameter,
                state,
                ("sum_of_squares",),
                {**fixed, "norm_coefficient": parameter.decay(self.weight_decay)},
                self.initial,
            )
            for parameter in parameters
        ]


@dataclass(frozen=True)
class RmsProp:
    """RMSprop, as in optax.

    Attributes:
      decay: that of the mean of the squares.
      epsilon: added to that mean, under the root.
      weight_decay: times the weight, what is added to the gradient.
    """

    decay: float = 0.9
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter], state: State) -> list[str]:
        """Adds the nodes of one step."""
        fixed = {"decay": self.decay, "epsilon": self.epsilon}
        return [
            write_call(
                builder,
                "RmsProp",
                _rmsprop,
                one,
                state,
                {"mean_of_squares": one.dims},
                {**fixed, "weight_decay": one.decay(self.weight_decay)},
            )
            for one in parameters
        ]


@dataclass(frozen=True)
class Lion:
    """Lion, as in optax.

    Attributes:
      beta1: how much of the momentum is in the direction of a step.
      beta2: decay of the momentum.
      weight_decay: the part of the weight that a step takes away, times the learning rate.
    """

    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 1e-3

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter], state: State) -> list[str]:
        """Adds the nodes of one step."""
        fixed = {"beta1": self.beta1, "beta2": self.beta2}
        return [
            write_call(
                builder,
                "Lion",
                _lion,
                one,
                state,
                {"momentum": one.dims},
                {**fixed, "weight_decay": one.decay(self.weight_decay)},
            )
            for one in parameters
        ]


@dataclass(frozen=True)
class Adafactor:
    """Adafactor, as in optax: of a large matrix it keeps the means of squares by row and by column only.

    Attributes:
      factored_from: two axes of at least this size make a matrix large.
      decay: the exponent of the decay of the mean, 1 - t^-decay.
      threshold: the largest root mean square of the direction of a step.
      epsilon: added to the squares.
      least_scale: the step is in proportion to the root mean square of the weight, and to at least this.
      weight_decay: the part of the weight that a step takes away, whatever the learning rate is.
    """

    factored_from: int = 128
    decay: float = 0.8
    threshold: float = 1.0
    epsilon: float = 1e-30
    least_scale: float = 1e-3
    weight_decay: float = 0.0

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter], state: State) -> list[str]:
        """Adds the nodes of one step."""
        return [self._write(builder, parameter, state) for parameter in parameters]

    def _write(self, builder: GraphBuilder, parameter: Parameter, state: State) -> str:
        coefficients = {
            "decay": self.decay,
            "threshold": self.threshold,
            "epsilon": self.epsilon,
            "least_scale": self.least_scale,
            "weight_decay": parameter.decay(self.weight_decay),
        }
        dims = parameter.dims
        largest = sorted(range(len(dims)), key=lambda axis: dims[axis])[-2:]
        if len(largest) < 2 or dims[largest[0]] < self.factored_from:
            slots = {"mean_of_squares": dims}
            return write_call(builder, "Adafactor", _adafactor, parameter, state, slots, coefficients)
        rows, columns = ([1 if axis == gone else size for axis, size in enumerate(dims)] for gone in largest[::-1])
        return write_call(
            builder,
            "AdafactorOfMatrices",
            _adafactor_of_matrices,
            parameter,
            state,
            {"row_means": rows, "column_means": columns},
            coefficients,
            column_axes=[largest[1]],
            row_axes=[largest[0]],
        )


def _rmsprop(
    learning_rate: Expression,
    weight: Expression,
    gradient: Expression,
    mean_of_squares: Expression,
    decay: Expression,
    epsilon: Expression,
    weight_decay: Expression,
) -> Sequence[Expression]:
    """With g = gradient + weight_decay x: v = decay v + (1 - decay) g^2; x = x - rate g / sqrt(v + epsilon).
    Tieleman and Hinton, Lecture 6.5 of Neural Networks for Machine Learning, 2012.
    """
    slope = gradient + weight_decay * weight
    mean = decay * mean_of_squares + (1.0 - decay) * (slope * slope)
    return weight - learning_rate * slope / (mean + epsilon).root(), mean


def _lion(
    learning_rate: Expression,
    weight: Expression,
    gradient: Expression,
    momentum: Expression,
    beta1: Expression,
    beta2: Expression,
    weight_decay: Expression,
) -> Sequence[Expression]:
    """u = sign(beta1 m + (1 - beta1) g); m = beta2 m + (1 - beta2) g; x = x - rate (u + weight_decay x).
    Chen et al., Symbolic Discovery of Optimization Algorithms, 2023.
    """
    direction = (beta1 * momentum + (1.0 - beta1) * gradient).sign()
    kept = beta2 * momentum + (1.0 - beta2) * gradient
    return weight - learning_rate * (direction + weight_decay * weight), kept


def _adafactor(
    learning_rate: Expression,
    weight: Expression,
    gradient: Expression,
    mean_of_squares: Expression,
    count: Expression,
    decay: Expression,
    threshold: Expression,
    epsilon: Expression,
    least_scale: Expression,
    weight_decay: Expression,
) -> Sequence[Expression]:
    """With d = 1 - t^-decay: v = d v + (1 - d) (g^2 + epsilon); u = g / sqrt(v);
    x = x - rate max(least_scale, rms(x)) u / max(1, rms(u) / threshold) - weight_decay x.
    Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, 2018.
    """
    new = 1.0 / count**decay
    mean = (1.0 - new) * mean_of_squares + new * (gradient * gradient + epsilon)
    step = learning_rate * _scaled(weight, gradient / mean.root(), threshold, least_scale)
    return weight - step - weight_decay * weight, mean


def _adafactor_of_matrices(
    learning_rate: Expression,
    weight: Expression,
    gradient: Expression,
    row_means: Expression,
    column_means: Expression,
    count: Expression,
    decay: Expression,
    threshold: Expression,
    epsilon: Expression,
    least_scale: Expression,
    weight_decay: Expression,
    axes: Sequence[str],
) -> Sequence[Expression]:
    """As Adafactor, with v = r c / mean(r), where r are the means of d r + (1 - d) (g^2 + epsilon) over columns, and c
    those over rows. `column_axes` is the axis along a row, `row_axes` that along a column.
    Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, 2018.
    """
    column_axes, row_axes = axes
    new = 1.0 / count**decay
    squares = gradient * gradient + epsilon
    rows = (1.0 - new) * row_means + new * mean_over(squares, column_axes)
    columns = (1.0 - new) * column_means + new * mean_over(squares, row_axes)
    direction = gradient / (rows / mean_over(rows, row_axes)).root() / columns.root()
    step = learning_rate * _scaled(weight, direction, threshold, least_scale)
    return weight - step - weight_decay * weight, rows, columns


def _scaled(weight: Expression, direction: Expression, threshold: Expression, least: Expression) -> Expression:
    size = (direction * direction).mean().root() / threshold
    return (weight * weight).mean().root().at_least(least) * direction / size.at_least(1.0)
