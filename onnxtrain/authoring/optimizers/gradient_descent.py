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
    """Gradient descent: the weight minus the learning rate times the gradient."""

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter], state: State) -> list[str]:
        """Adds the nodes of one step."""
        del state  # it has none
        return [_descend(builder, parameter) for parameter in parameters]


@dataclass(frozen=True)
class Momentum:
    """Gradient descent with momentum: ONNX's `Momentum`, which is PyTorch's SGD without dampening.

    Attributes:
      decay: how much of the momentum stays from step to step.
      nesterov: whether to look ahead by one step.
    """

    decay: float = 0.9
    nesterov: bool = False

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter], state: State) -> list[str]:
        """Adds the nodes of one step."""
        mode = "nesterov" if self.nesterov else "standard"
        attributes = {"alpha": self.decay, "beta": 1.0, "norm_coefficient": 0.0, "mode": mode}
        prefix = "nesterov" if self.nesterov else "momentum"
        return [
            write_operator(builder, "Momentum", prefix, parameter, state, ("momentum",), attributes)
            for parameter in parameters
        ]


def _descend(builder: GraphBuilder, parameter: Parameter) -> str:
    name = parameter.name
    change = builder.add("Mul", (parameter.gradient, parameter.learning_rate), f"{name}/change")
    return builder.add("Sub", (parameter.value, change), f"{name}/updated", name=f"sgd/{name}")
