"""An LSTM with quantized weights, whose inputs and states are quantized step by step."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from onnxtrain.lowering.contrib.domains import microsoft
from onnxtrain.lowering.contrib.quantized_product import quantized_dynamically
from onnxtrain.lowering.recurrence import Cell, Sequences, activations_of, lstm_cell, of_direction, sum_halves
from onnxtrain.lowering.registry import Array, Floats, StraightThroughWanted


@microsoft("DynamicQuantizeLSTM", ignores={"hidden_size"})
def dynamic_quantize_lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    sequence_lens: Array | None,
    initial_h: Array | None,
    initial_c: Array | None,
    p: Array | None,
    w_scale: Array,
    w_zero_point: Array,
    r_scale: Array,
    r_zero_point: Array,
    *,
    activation_alpha: Floats = (),
    activation_beta: Floats = (),
    activations: tuple[str, ...] = ("Sigmoid", "Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    input_forget: bool = False,
    straight_through: StraightThroughWanted,
) -> tuple[Array, ...]:
    """The weights are transposed, unlike those of LSTM. Gradients are those of an LSTM that rounds nothing.

    The states of a batch are quantized together, as onnxruntime does on one thread.
    """
    functions = activations_of(activations, activation_alpha, activation_beta, clip)

    def project(x: Any, index: int) -> Any:
        return quantized_dynamically(x, w[index], w_scale[index], w_zero_point[index], straight_through)

    def cell(index: int) -> Cell:
        def recur(hidden: Any) -> Any:
            return quantized_dynamically(hidden, r[index], r_scale[index], r_zero_point[index], straight_through)

        return lstm_cell(of_direction(functions, index, 3), recur, None if p is None else p[index], input_forget)

    sequences = Sequences(jnp.asarray(x), sequence_lens, direction, layout=0)
    return sequences.run(cell, project, sum_halves(b), [initial_h, initial_c], r.shape[1])
