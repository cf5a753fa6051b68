"""The state variables of an algorithm, and what a step makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from onnx import TensorProto

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.value_types import Value

Derivation = Callable[[GraphBuilder, Mapping[str, str]], str | None]


@dataclass(frozen=True)
class Update:
    """A state variable and the value that a step gives it.

    Attributes:
      variable: the initializer, of the inference graph or of the algorithm.
      value: the output of the algorithm that it takes.
      element_type: of both.
      dims: the shape of both.
      initial: what initialization fills it with; None for one that it leaves, or that `follows` a weight.
      follows: the weight whose initial value it takes, if initialization gives that weight a new one.
      derive: adds the nodes of any other initial value to an initialization graph; it is given the weights that have
        new values there, and returns None where the variable stays as it is.
    """

    variable: str
    value: str
    element_type: int
    dims: tuple[int, ...]
    initial: float | None = None
    follows: str | None = None
    derive: Derivation | None = None


class State:
    """Adds state variables to an algorithm and collects their updates.

    Attributes:
      updates: what has been assigned so far.
      loss: what is minimized, a scalar, for an optimizer that wants to know.
    """

    def __init__(self, builder: GraphBuilder):
        self.updates: list[Update] = []
        self.loss: Value | None = None
        self._builder = builder
        self._variables: dict[str, Update] = {}

    def variable(self, name: str, dims: Sequence[int], element_type: int, initial: float = 0.0) -> str:
        """Adds a state variable of one repeated value, which a reset brings back; returns its fresh name."""
        added = self._builder.initializer(name, np.full(tuple(dims), initial), element_type)
        self._variables[added] = Update(added, "", element_type, tuple(dims), initial)
        return added

    def copy(self, name: str, weight: str, value: np.ndarray, element_type: int) -> str:
        """Adds a state variable that starts as the copy of a weight with this value; returns its fresh name."""
        added = self._builder.initializer(name, value, element_type)
        self._variables[added] = Update(added, "", element_type, value.shape, follows=weight)
        return added

    def derived(self, name: str, value: np.ndarray, element_type: int, derive: Derivation) -> str:
        """Adds a state variable with this value; `derive` says what a reset gives it. Returns its fresh name."""
        added = self._builder.initializer(name, value, element_type)
        self._variables[added] = Update(added, "", element_type, value.shape, derive=derive)
        return added

    def setting(self, name: str, value: float, element_type: int) -> str:
        """Adds a number that stays until somebody sets it between two steps; a reset leaves it at its stored value."""
        added = self._builder.initializer(name, value, element_type)
        # it updates itself unchanged: as a state variable it is saved
        kept = self._builder.add("Identity", (added,), f"{added}/updated")
        self.updates.append(Update(added, kept, element_type, ()))
        return added

    def assign(self, variable: str, value: str) -> None:
        """Says which value a variable of this state has after the step."""
        self.updates.append(replace(self._variables[variable], value=value))

    def assign_weight(self, weight: str, value: str, element_type: int, dims: Sequence[int]) -> None:
        """Says which value a weight of the inference graph has after the step."""
        self.updates.append(Update(weight, value, element_type, tuple(dims)))

    @cached_property
    def steps_taken(self) -> str:
        """How many updates of the weights came before this one: the state variable `step`, an int64 scalar."""
        return self.variable("step", (), TensorProto.INT64)

    @cached_property
    def count(self) -> str:
        """The number of this update, 1 in the first: an int64 scalar."""
        taken = self.steps_taken
        one = self._builder.integers("step/one", 1)
        count = self._builder.add("Add", (taken, one), f"{taken}/updated", name="count")
        self.assign(taken, count)
        return count

    def count_steps(self) -> None:
        """Makes the step counter a state variable that counts, whether or not the optimizer reads it."""
        _ = self.count  # asking for it adds it

    def hold_unless(self, condition: str) -> None:
        """Lets every variable keep its value in a step in which `condition`, a bool scalar, is false."""
        self.updates = [
            replace(
                update, value=self._builder.select(condition, update.value, update.variable, f"{update.value}/held")
            )
            for update in self.updates
        ]
