"""What holds for some of the weights only: their share of the learning rate, and their decay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxtrain.authoring.selection import select
from onnxtrain.authoring.weights import Weight, uses_of


@dataclass(frozen=True)
class Group:
    """Some of the weights.

    Attributes:
      weights: patterns as in `trainable`; a weight belongs to the first group that has a pattern for it.
      learning_rate_factor: what the learning rate is multiplied by.
      weight_decay: in place of the optimizer's; 0 turns it off, None leaves it.
    """

    weights: str | Sequence[str] = "*"
    learning_rate_factor: float = 1.0
    weight_decay: float | None = None


def groups_of(groups: Sequence[Group], weights: Sequence[Weight]) -> dict[str, Group]:
    """The group of each weight, by its name; those that no group mentions have a plain one.

    Raises:
      ModelError: a pattern matches no weight that is trained.
    """
    trained = {weight.name: weight for weight in weights}
    found: dict[str, Group] = {}
    for group in groups:
        patterns = (group.weights,) if isinstance(group.weights, str) else group.weights
        named = trained.keys() & set(patterns)  # a tensor that only its name makes a weight has no use
        rest = [pattern for pattern in patterns if pattern not in named]
        for name in (*named, *select(rest, uses_of(trained), "groups")):
            found.setdefault(name, group)
    return {name: found.get(name, Group()) for name in trained}
