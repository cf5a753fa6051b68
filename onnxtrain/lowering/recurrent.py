"""RNN, GRU and LSTM: one layer over a batch of sequences, in one direction or in both.

The inputs of all steps are multiplied by their weights in one matrix product; only what depends on the state before
runs step by step, in `lax.scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import OperatorError
from onnxtrain.lowering import named_functions
from onnxtrain.lowering.registry import Array, Floats, op
from onnxtrain.lowering.static import is_static

_Activation = Callable[[Any], Any]

# (projected input of one step, *states) -> new states, the hidden state first
_Cell = Callable[..., tuple[Any, ...]]

# Whether each direction of a node starts at the end.
_BACKWARD = {
    "forward": (False,),
    "foward": (False,),  # the default of GRU-1 as its schema spells it
    "reverse": (True,),
    "bidirectional": (False, True),
}


@op("RNN", ignores={"hidden_size", "output_sequence"})
def rnn(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    direction: str,
    layout: int = 0,
    activations: tuple[str, ...],
    activation_alpha: Floats = (),
    activation_beta: Floats = (),
    clip: float | None = None,
) -> tuple[Array, ...]:
    """A step beyond a sequence's length leaves the state as it is, and its output is 0."""
    functions = _activations(activations, activation_alpha, activation_beta, clip)

    def cell(index: int) -> _Cell:
        (f,) = _of_direction(functions, index, 1)
        recurrence = r[index].T

        def step(projected: Any, hidden: Any) -> tuple[Any]:
            return (f(projected + hidden @ recurrence),)

        return step

    return _Sequences(x, sequence_lens, direction, layout).run(cell, w, _sum_halves(b), [initial_h], r.shape[2])


@op("GRU", ignores={"hidden_size", "output_sequence"})
def gru(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    direction: str,
    layout: int = 0,
    activations: tuple[str, ...] = ("Sigmoid", "Tanh"),
    activation_alpha: Floats = (),
    activation_beta: Floats = (),
    clip: float | None = None,
    linear_before_reset: bool = False,
) -> tuple[Array, ...]:
    """A step beyond a sequence's length leaves the state as it is, and its output is 0."""
    functions = _activations(activations, activation_alpha, activation_beta, clip)
    size = r.shape[2]
    hidden_bias = None
    if linear_before_reset and b is not None:
        # The reset gate scales this bias too, so it cannot join the others.
        hidden_bias = b[:, 5 * size :]
        b = jnp.concatenate([b[:, : 5 * size], jnp.zeros_like(hidden_bias)], axis=1)

    def cell(index: int) -> _Cell:
        f, g = _of_direction(functions, index, 2)
        for_gates, for_hidden = r[index, : 2 * size].T, r[index, 2 * size :].T

        def step(projected: Any, hidden: Any) -> tuple[Any]:
            update, reset = jnp.split(f(projected[:, : 2 * size] + hidden @ for_gates), 2, axis=1)
            if linear_before_reset:
                inner = hidden @ for_hidden
                inner = reset * (inner if hidden_bias is None else inner + hidden_bias[index])
            else:
                inner = (reset * hidden) @ for_hidden
            return ((1 - update) * g(projected[:, 2 * size :] + inner) + update * hidden,)

        return step

    return _Sequences(x, sequence_lens, direction, layout).run(cell, w, _sum_halves(b), [initial_h], size)


@op("LSTM", ignores={"hidden_size", "output_sequence"})
def lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
    *,
    direction: str,
    layout: int = 0,
    activations: tuple[str, ...] = ("Sigmoid", "Tanh", "Tanh"),
    activation_alpha: Floats = (),
    activation_beta: Floats = (),
    clip: float | None = None,
    input_forget: bool,
) -> tuple[Array, ...]:
    """A step beyond a sequence's length leaves the states as they are, and its output is 0."""
    functions = _activations(activations, activation_alpha, activation_beta, clip)

    def cell(index: int) -> _Cell:
        f, g, h = _of_direction(functions, index, 3)
        recurrence = r[index].T
        peepholes = None if p is None else jnp.split(p[index], 3)

        def peep(gate: Any, number: int, memory: Any) -> Any:
            return gate if peepholes is None else gate + peepholes[number] * memory

        def step(projected: Any, hidden: Any, memory: Any) -> tuple[Any, Any]:
            inputs, outputs, forgets, candidates = jnp.split(projected + hidden @ recurrence, 4, axis=1)
            admit = f(peep(inputs, 0, memory))
            keep = 1 - admit if input_forget else f(peep(forgets, 2, memory))
            memory = keep * memory + admit * g(candidates)
            return f(peep(outputs, 1, memory)) * h(memory), memory

        return step

    initial = [initial_h, initial_c]
    return _Sequences(x, sequence_lens, direction, layout).run(cell, w, _sum_halves(b), initial, r.shape[2])


def _sum_halves(b: Any) -> Any:
    """The biases of the input product and of the state product, which always come added up."""
    if b is None:
        return None
    half = b.shape[1] // 2
    return b[:, :half] + b[:, half:]


@dataclass(frozen=True)
class _Sequences:
    """A batch of sequences and the order in which a node reads them."""

    x: Any
    sequence_lens: Any
    direction: str
    layout: int

    def run(
        self, cell: Callable[[int], _Cell], w: Any, bias: Any, initial: Sequence[Any], size: int
    ) -> tuple[jax.Array, ...]:
        """Y and the last states; `cell` gives the step of each direction, and an absent initial state is 0."""
        x = jnp.swapaxes(self.x, 0, 1) if self.layout else self.x
        if self.direction not in _BACKWARD:
            raise OperatorError(f"Attribute 'direction' is {self.direction!r}; it must be one of {list(_BACKWARD)}.")
        hidden, last = [], []
        for index, backward in enumerate(_BACKWARD[self.direction]):
            projected = jnp.einsum("tbi,gi->tbg", x, w[index])
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
        self, cell: _Cell, projected: jax.Array, states: tuple[Any, ...], backward: bool
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


def _of_direction(functions: Sequence[_Activation], index: int, count: int) -> Sequence[_Activation]:
    """The activations of one direction; a list for only one direction serves both."""
    start = index * count if len(functions) >= (index + 1) * count else 0
    if len(functions) < count:
        raise OperatorError(f"Attribute 'activations' must name {count} functions for each direction.")
    return functions[start : start + count]


def _activations(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float], clip: float | None
) -> list[_Activation]:
    """The named functions, each with its input clipped; they use up alphas and betas in order, if they have any."""
    remaining_alphas, remaining_betas = iter(alphas), iter(betas)
    return [_activation(name, remaining_alphas, remaining_betas, clip) for name in names]


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float], clip: float | None) -> _Activation:
    function, defaults = named_functions.find(name)
    parameters = [next(values, default) for values, default in zip((alphas, betas), defaults, strict=False)]

    def activate(x: Any) -> Any:
        return function(x if clip is None else named_functions.clip(x, -clip, clip), *parameters)

    return activate
