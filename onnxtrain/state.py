"""The state of a training model as a JAX pytree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
