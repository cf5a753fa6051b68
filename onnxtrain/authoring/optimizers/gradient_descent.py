"""Gradient descent, plain and with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.optimizers.operators import write_operator
from onnxtrain.authoring.optimizers.rule import Parameter
from onnxtrain.authoring.state import State


@dataclass(frozen=True)
class Sgd:
    """Gradient descent: the weight minus the learning rate times the gradient.

    Attributes:
      weight_decay: times the weight, what is added to the gradient.
    """

    weight_decay: float = 0.0

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter], state: State) -> list[str]:
        """Adds the nodes of one step."""
        del state  # it has none
        return [_descend(builder, parameter, parameter.decay(self.weight_decay)) for parameter in parameters]


@dataclass(frozen=True)
class Momentum:
    """Gradient descent with momentum: ONNX's `Momentum`, which is PyTorch's SGD without dampening.

    Attributes:
      decay: how much of the momentum stays from step to step.
      nesterov: whether to look ahead by one step.
      weight_decay: times the weight, what is added to the gradient.
    """

    decay: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter], state: State) -> list[str]:
        """Adds the nodes of one step."""
        fixed = {"alpha": self.decay, "beta": 1.0, "mode": "nesterov" if self.nesterov else "standard"}
        prefix = "nesterov" if self.nesterov else "momentum"
        return [
            write_operator(
                builder,
                "Momentum",
                prefix,
                one,
                state,
                ("momentum",),
                {**fixed, "norm_coefficient": one.decay(self.weight_decay)},
            )
            for one in parameters
        ]


def _descend(builder: GraphBuilder, parameter: Parameter, decay: float) -> str:
    name, gradient = parameter.name, parameter.gradient
    if decay:
        coefficient = builder.initializer(f"{name}/weight_decay", decay, parameter.element_type)
        decayed = builder.add("Mul", (parameter.value, coefficient), f"{name}/decay")
        gradient = builder.add("Add", (gradient, decayed), f"{name}/gradient/decayed")
    change = builder.add("Mul", (gradient, parameter.learning_rate), f"{name}/change")
    return builder.add("Sub", (parameter.value, change), f"{name}/updated", name=f"sgd/{name}")
