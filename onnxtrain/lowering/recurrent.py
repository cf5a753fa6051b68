"""RNN, GRU and LSTM: one layer over a batch of sequences, in one direction or in both.

The inputs of all steps are multiplied by their weights in one matrix product; only what depends on the state before
runs step by step, in `lax.scan`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from onnxtrain.lowering.recurrence import (
    Cell,
    Projection,
    Sequences,
    activations_of,
    lstm_cell,
    of_direction,
    sum_halves,
)
from onnxtrain.lowering.registry import Array, Floats, op


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
    functions = activations_of(activations, activation_alpha, activation_beta, clip)

    def cell(index: int) -> Cell:
        (f,) = of_direction(functions, index, 1)
        recurrence = r[index].T

        def step(projected: Any, hidden: Any) -> tuple[Any]:
            return (f(projected + hidden @ recurrence),)

        return step

    return Sequences(x, sequence_lens, direction, layout).run(
        cell, _projections(w), sum_halves(b), [initial_h], r.shape[2]
    )


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
    functions = activations_of(activations, activation_alpha, activation_beta, clip)
    size = r.shape[2]
    hidden_bias = None
    if linear_before_reset and b is not None:
        # The reset gate scales this bias too, so it cannot join the others.
        hidden_bias = b[:, 5 * size :]
        b = jnp.concatenate([b[:, : 5 * size], jnp.zeros_like(hidden_bias)], axis=1)

    def cell(index: int) -> Cell:
        f, g = of_direction(functions, index, 2)
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

    return Sequences(x, sequence_lens, direction, layout).run(cell, _projections(w), sum_halves(b), [initial_h], size)


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
    functions = activations_of(activations, activation_alpha, activation_beta, clip)

    def cell(index: int) -> Cell:
        recurrence = r[index].T
        peepholes = None if p is None else p[index]
        three = of_direction(functions, index, 3)
        return lstm_cell(three, lambda hidden: hidden @ recurrence, peepholes, input_forget)

    initial = [initial_h, initial_c]
    return Sequences(x, sequence_lens, direction, layout).run(cell, _projections(w), sum_halves(b), initial, r.shape[2])


def _projections(w: Array) -> Projection:
    """What the inputs of all steps add to the gates of a direction."""
    return lambda x, index: jnp.einsum("tbi,gi->tbg", x, w[index])
