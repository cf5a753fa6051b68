"""The state of a training model as a JAX pytree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial

import jax


@partial(jax.tree_util.register_dataclass, data_fields=["variables", "constants", "key", "step"], meta_fields=[])
@dataclass(frozen=True)
class TrainingState:
    """Everything that a method of a training model reads beside its inputs.

    Attributes:
      variables: the state variables by initializer name (T-02); `step` and `initialize` return new ones.
      constants: the other initializers that are too large to stand in the compiled function; no method changes them.
      key: the PRNG key that all random nodes derive theirs from (R-01).
      step: how many training iterations have run, an int32 scalar.
    """

    variables: Mapping[str, jax.Array]
    constants: Mapping[str, jax.Array]
    key: jax.Array
    step: jax.Array


@dataclass(frozen=True)
class DataPosition:
    """Where a run over data stands, so that it can go on in the middle of an epoch.

    Attributes:
      epochs: how many epochs of the run are complete.
      begun: the step count at which the epoch under way began; the order of its examples follows from it.
      batches: how many batches of that epoch are done.
      batch_size: examples in a batch.
      examples: examples in an epoch.
    """

    epochs: int
    begun: int
    batches: int
    batch_size: int
    examples: int

    @property
    def step(self) -> int:
        """The step count that belongs to this position."""
        return self.begun + self.batches

    def to_text(self) -> str:
        """The position as it is stored in a file."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> DataPosition:
        """The position that a file stores.

        Raises:
          ValueError: the text is none.
        """
        numbers = json.loads(text)
        if not isinstance(numbers, dict) or not all(type(number) is int for number in numbers.values()):
            raise ValueError("it must be a JSON object of whole numbers")
        try:
            return DataPosition(**numbers)
        except TypeError as error:
            raise ValueError(str(error)) from error
