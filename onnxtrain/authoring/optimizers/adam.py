"""Adam and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.optimizers.operators import write_operator
from onnxtrain.authoring.optimizers.rule import Parameter
from onnxtrain.authoring.state import State


@dataclass(frozen=True)
class Adam:
    """ONNX's `Adam`.

    Attributes:
      beta1: decay of the mean of the gradients.
      beta2: decay of the mean of their squares.
      epsilon: added to the root of the latter, before the correction of bias, unlike in PyTorch.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter], state: State) -> list[str]:
        """Adds the nodes of one step."""
        attributes = {"alpha": self.beta1, "beta": self.beta2, "epsilon": self.epsilon}
        no_decay = {"norm_coefficient": 0.0, "norm_coefficient_post": 0.0}
        slots = ("first_moment", "second_moment")
        return [
            write_operator(builder, "Adam", "adam", parameter, state, slots, {**attributes, **no_decay})
            for parameter in parameters
        ]
