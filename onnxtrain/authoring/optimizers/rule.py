"""What an optimizer is: it writes the nodes that turn weights and their gradients into the next weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.state import State


@dataclass(frozen=True)
class Parameter:
    """One weight as an optimizer sees it: names of values, all of one element type.

    Attributes:
      name: the name of the weight in the model, from which the names of nodes and state variables are made.
      value: its present value; float32 for a weight of 16 bits.
      gradient: its gradient, of the same shape.
      element_type: of all of these.
      dims: their shape.
      stored: the value of the weight in the file.
      learning_rate: a scalar; empty for an optimizer that has its own.
      weight_decay: what a group says of this weight; None leaves it to the optimizer.
    """

    name: str
    value: str
    gradient: str
    element_type: int
    dims: tuple[int, ...]
    stored: np.ndarray
    learning_rate: str
    weight_decay: float | None = None

    def decay(self, usual: float) -> float:
        """The weight decay: that of its group, or what is usual in its optimizer."""
        return usual if self.weight_decay is None else self.weight_decay


class Optimizer(Protocol):
    """How weights follow their gradients."""

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter], state: State) -> Sequence[str]:
        """Adds the nodes of one step for all weights.

        State variables, such as momenta, come from `state` and are assigned there. Reading `state.count` makes the
        step counter a state variable.

        Returns:
          The names of the next values, in the order of `parameters`.
        """
        ...
