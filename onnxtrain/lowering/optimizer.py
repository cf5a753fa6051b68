"""The optimizers of ai.onnx.preview.training: Adam, Adagrad and Momentum, each for any number of tensors.

One node updates tensors X1, X2, ... together. Its inputs after the learning rate R and the update count T come in
groups of one tensor each: X1, X2, ..., then their gradients G1, G2, ..., then each state of the optimizer in turn.
The outputs are the new X1, X2, ... and then the new states, in the same groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from onnxtrain import dtypes
from onnxtrain.errors import OperatorError
from onnxtrain.lowering.registry import Array, op
from onnxtrain.lowering.static import cast

TRAINING = "ai.onnx.preview.training"


@op("Adam", domain=TRAINING)
def adam(
    r: Array,
    t: Array,
    *inputs: Array,
    alpha: float,
    beta: float,
    epsilon: float,
    norm_coefficient: float,
    norm_coefficient_post: float,
) -> tuple[Array, ...]:
    """The bias is corrected when T > 0 only: to equal other libraries, the first update has T = 1."""

    def update(rate: Array, x: Array, g: Array, v: Array, h: Array) -> tuple[Array, ...]:
        g = norm_coefficient * x + g
        v = alpha * v + (1 - alpha) * g
        h = beta * h + (1 - beta) * g * g
        corrected = rate * jnp.sqrt(_one_minus_power(beta, t, x.dtype)) / _one_minus_power(alpha, t, x.dtype)
        x = x - jnp.where(_scalar(t) > 0, corrected, rate) * v / (jnp.sqrt(h) + epsilon)
        return (1 - norm_coefficient_post) * x, v, h

    return _update_each(update, r, inputs, states=2)


@op("Adagrad", domain=TRAINING)
def adagrad(
    r: Array, t: Array, *inputs: Array, decay_factor: float, epsilon: float, norm_coefficient: float
) -> tuple[Array, ...]:
    def update(rate: Array, x: Array, g: Array, h: Array) -> tuple[Array, ...]:
        rate = rate / (1 + cast(_scalar(t), x.dtype) * decay_factor)
        g = norm_coefficient * x + g
        h = h + g * g
        return x - rate * g / (jnp.sqrt(h) + epsilon), h

    return _update_each(update, r, inputs, states=1)


@op("Momentum", domain=TRAINING)
def momentum(
    r: Array, t: Array, *inputs: Array, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Array, ...]:
    """`beta` scales the gradient from the second update on: at T = 0 it counts as 1."""
    if mode not in ("standard", "nesterov"):
        raise OperatorError(f"Attribute 'mode' is {mode!r}; it must be 'standard' or 'nesterov'.")

    def update(rate: Array, x: Array, g: Array, v: Array) -> tuple[Array, ...]:
        g = norm_coefficient * x + g
        v = alpha * v + jnp.where(_scalar(t) > 0, jnp.asarray(beta, x.dtype), jnp.ones((), x.dtype)) * g
        direction = g + alpha * v if mode == "nesterov" else v
        return x - rate * direction, v

    return _update_each(update, r, inputs, states=1)


def _update_each(
    update: Callable[..., tuple[Any, ...]], r: Array, inputs: tuple[Array, ...], states: int
) -> tuple[Array, ...]:
    """Applies `update` to each tensor with its gradient and states; float16 and bfloat16 are computed in float32."""
    groups = 2 + states
    count, rest = divmod(len(inputs), groups)
    if rest or not count:
        raise OperatorError(
            f"After R and T there must be {groups} inputs for each tensor (the tensors, their gradients, "
            f"{states} group{'s' if states > 1 else ''} of states); there are {len(inputs)}."
        )
    updated = [_in_wide_type(update, r, inputs[i::count]) for i in range(count)]
    return tuple(tensors[group] for group in range(1 + states) for tensors in updated)


def _in_wide_type(update: Callable[..., tuple[Any, ...]], r: Array, tensors: tuple[Array, ...]) -> tuple[Array, ...]:
    x, _, *states = tensors
    wide = np.dtype(np.float32) if dtypes.is_float(x.dtype) and x.dtype.itemsize < 4 else x.dtype
    results = update(cast(_scalar(r), wide), *(cast(tensor, wide) for tensor in tensors))
    return tuple(cast(result, old.dtype) for result, old in zip(results, (x, *states), strict=True))


def _scalar(value: Array) -> Array:
    """R and T as scalars: some exporters write them with shape [1]."""
    return value.reshape(())


def _one_minus_power(coefficient: float, t: Array, dtype: np.dtype) -> Array:
    """1 - coefficient**T for T > 0, and a harmless number for T = 0, where it is not used.

    Written out like that it would lose half of float32's digits to cancellation in the first updates.
    """
    count = cast(jnp.maximum(_scalar(t), 1), dtype)
    if coefficient > 0:
        return -jnp.expm1(count * math.log(coefficient))
    return 1 - jnp.power(jnp.asarray(coefficient, dtype), count)
