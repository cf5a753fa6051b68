"""How recurrent layers read sequences: directions, lengths, initial states, activations, and the cell of an LSTM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import OperatorError
from onnxtrain.lowering import named_functions
from onnxtrain.lowering.static import is_static

Activation = Callable[[Any], Any]

# (projected input of one step, *states) -> new states, the hidden state first
Cell = Callable[..., tuple[Any, ...]]

# (inputs of all steps, number of the direction) -> what they add to its gates
Projection = Callable[[Any, int], Any]

# Whether each direction of a node starts at the end.
_BACKWARD = {
    "forward": (False,),
    "foward": (False,),  # the default of GRU-1 as its schema spells it
    "reverse": (True,),
    "bidirectional": (False, True),
}


def sum_halves(b: Any) -> Any:
    """The biases of the input product and of the state product, which always come added up."""
    if b is None:
        return None
    half = b.shape[1] // 2
    return b[:, :half] + b[:, half:]


def lstm_cell(functions: Sequence[Activation], recur: Callable[[Any], Any], peepholes: Any, input_forget: bool) -> Cell:
    """The step of an LSTM; `recur` is what the hidden state before adds to the four gates."""
    f, g, h = functions
    of_gates = None if peepholes is None else jnp.split(peepholes, 3)

    def peep(gate: Any, number: int, memory: Any) -> Any:
        return gate if of_gates is None else gate + of_gates[number] * memory

    def step(projected: Any, hidden: Any, memory: Any) -> tuple[Any, Any]:
        inputs, outputs, forgets, candidates = jnp.split(projected + recur(hidden), 4, axis=1)
        admit = f(peep(inputs, 0, memory))
        keep = 1 - admit if input_forget else f(peep(forgets, 2, memory))
        memory = keep * memory + admit * g(candidates)
        return f(peep(outputs, 1, memory)) * h(memory), memory

    return step


@dataclass(frozen=True)
class Sequences:
    """A batch of sequences and the order in which a node reads them."""

    x: Any
    sequence_lens: Any
    direction: str
    layout: int

    def run(
        self, cell: Callable[[int], Cell], project: Projection, bias: Any, initial: Sequence[Any], size: int
    ) -> tuple[jax.Array, ...]:
        """Y and the last states; `cell` gives the step of each direction, and an absent initial state is 0."""
        x = jnp.swapaxes(self.x, 0, 1) if self.layout else self.x
        if self.direction not in _BACKWARD:
            raise OperatorError(f"Attribute 'direction' is {self.direction!r}; it must be one of {list(_BACKWARD)}.")
        hidden, last = [], []
        for index, backward in enumerate(_BACKWARD[self.direction]):
            projected = project(x, index)
            if bias is not None:
                projected = projected + bias[index]
            states = tuple(self._state(state, index, projected, size) for state in initial)
            outputs, states = self._scan(cell(index), projected, states, backward)
            hidden.append(outputs)
            last.append(states)
        y = jnp.stack(hidden, axis=1)
        finals = [jnp.stack(states) for states in zip(*last, strict=True)]
        if self.layout:
            return jnp.transpose(y, (2, 0, 1, 3)), *(jnp.swapaxes(final, 0, 1) for final in finals)
        return y, *finals

    def _state(self, initial: Any, index: int, projected: jax.Array, size: int) -> Any:
        if initial is None:
            return jnp.zeros((projected.shape[1], size), projected.dtype)
        return jnp.asarray(initial[:, index] if self.layout else initial[index])

    def _scan(
        self, cell: Cell, projected: jax.Array, states: tuple[Any, ...], backward: bool
    ) -> tuple[jax.Array, tuple[Any, ...]]:
        steps, lengths = projected.shape[0], self.sequence_lens
        full = lengths is None or (is_static(lengths) and np.all(lengths == steps))

        def step(states: tuple[Any, ...], item: tuple[Any, Any]) -> tuple[tuple[Any, ...], Any]:
            time, projected = item
            fresh = cell(projected, *states)
            if full:
                return fresh, fresh[0]
            # Read from the end, a sequence starts at its own last step, because padding changes no state.
            inside = (time < lengths)[:, None]
            fresh = tuple(jnp.where(inside, new, old) for new, old in zip(fresh, states, strict=True))
            return fresh, jnp.where(inside, fresh[0], jnp.zeros_like(fresh[0]))

        times = jnp.arange(steps, dtype=np.int32)
        last, outputs = jax.lax.scan(step, states, (times, projected), reverse=backward)
        return outputs, last


def of_direction(functions: Sequence[Activation], index: int, count: int) -> Sequence[Activation]:
    """The activations of one direction; a list for only one direction serves both."""
    start = index * count if len(functions) >= (index + 1) * count else 0
    if len(functions) < count:
        raise OperatorError(f"Attribute 'activations' must name {count} functions for each direction.")
    return functions[start : start + count]


def activations_of(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float], clip: float | None
) -> list[Activation]:
    """The named functions, each with its input clipped; they use up alphas and betas in order, if they have any."""
    remaining_alphas, remaining_betas = iter(alphas), iter(betas)
    return [_activation(name, remaining_alphas, remaining_betas, clip) for name in names]


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float], clip: float | None) -> Activation:
    function, defaults = named_functions.find(name)
    parameters = [next(values, default) for values, default in zip((alphas, betas), defaults, strict=False)]

    def activate(x: Any) -> Any:
        return function(x if clip is None else named_functions.clip(x, -clip, clip), *parameters)

    return activate
