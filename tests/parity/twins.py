"""The runs of `tests.parity.models` once more, written in JAX and optax as anyone would, without ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Arrays = Mapping[str, Any]
Loss = Callable[[Arrays, Arrays], jax.Array]


class Trainer:
    """Some weights and the memory of an optax optimizer that trains them.

    Attributes:
      weights: by name.
    """

    def __init__(self, loss: Loss, optimizer: optax.GradientTransformation, weights: Arrays):
        self.weights: Arrays = {name: jnp.asarray(value) for name, value in weights.items()}
        self._memory = optimizer.init(dict(self.weights))

        def descend(weights: Any, memory: Any, batch: Arrays) -> tuple[jax.Array, Any, Any]:
            value, gradients = jax.value_and_grad(loss)(weights, batch)
            updates, memory = optimizer.update(gradients, memory, weights)
            return value, optax.apply_updates(weights, updates), memory

        self._descend = jax.jit(descend)

    def step(self, batch: Arrays) -> float:
        """Takes one step; returns the loss before it."""
        with jax.numpy_dtype_promotion("standard"):  # optax mixes types
            value, self.weights, self._memory = self._descend(self.weights, self._memory, batch)
        return float(value)


def mlp_loss(weights: Arrays, batch: Arrays) -> jax.Array:
    """Of `mlp_with_momentum`."""
    hidden = jnp.tanh(batch["x"] @ weights["W1"] + weights["b1"])
    hidden = jax.nn.relu(hidden @ weights["W2"] + weights["b2"])
    return cross_entropy(hidden @ weights["W3"] + weights["b3"], batch["labels"])


def lenet_loss(weights: Arrays, batch: Arrays) -> jax.Array:
    """Of `lenet_with_adam`."""
    x = jnp.tanh(convolve(batch["image"], weights["conv1"], "SAME") + weights["conv1_bias"][:, None, None])
    x = jnp.max(two_by_two(x), axis=(3, 5))
    x = jnp.tanh(convolve(x, weights["conv2"], "VALID") + weights["conv2_bias"][:, None, None])
    x = jnp.mean(two_by_two(x), axis=(3, 5)).reshape(x.shape[0], -1)
    x = jnp.tanh(x @ weights["dense1"] + weights["dense1_bias"])
    x = jnp.tanh(x @ weights["dense2"] + weights["dense2_bias"])
    return cross_entropy(x @ weights["dense3"] + weights["dense3_bias"], batch["labels"])


def critic_loss(critic: Arrays, batch: Arrays) -> jax.Array:
    """Of the first algorithm of `adversarial`; `batch` holds data, noise, and the weights of the generator."""
    fake = generate(batch["generator"], batch["noise"])
    of_real = jnp.mean(jax.nn.softplus(-judge(critic, batch["real"])))
    return of_real + jnp.mean(jax.nn.softplus(judge(critic, fake)))


def generator_loss(generator: Arrays, batch: Arrays) -> jax.Array:
    """Of the second algorithm of `adversarial`; `batch` holds noise and the weights of the critic."""
    return jnp.mean(jax.nn.softplus(-judge(batch["critic"], generate(generator, batch["noise"]))))


def generate(generator: Arrays, noise: Any) -> jax.Array:
    """What the generator makes of noise."""
    return jnp.tanh(noise @ generator["G1"] + generator["g1"]) @ generator["G2"] + generator["g2"]


def judge(critic: Arrays, sample: Any) -> jax.Array:
    """What the critic thinks of samples."""
    return jax.nn.leaky_relu(sample @ critic["D1"] + critic["d1"], 0.2) @ critic["D2"] + critic["d2"]


def adam(rate: float, b1: float = 0.9, b2: float = 0.999) -> optax.GradientTransformation:
    """Adam without epsilon: ONNX adds it before the correction of bias and optax after that, so that they differ."""
    return optax.adam(rate, stored(b1), stored(b2), eps=0.0)


def stored(attribute: float) -> float:
    """A number as a file keeps attributes, in float32; it shows where 0.999 is taken from 1."""
    return float(np.float32(attribute))


def cross_entropy(logits: jax.Array, labels: Any) -> jax.Array:
    """The mean over the batch."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(labels)))


def convolve(x: Any, kernel: Any, padding: str) -> jax.Array:
    """A convolution of stride 1 over [N, C, H, W]."""
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), padding)


def two_by_two(x: jax.Array) -> jax.Array:
    """[N, C, H, W] cut into windows of two by two, along axes 3 and 5."""
    examples, channels, height, width = x.shape
    return x.reshape(examples, channels, height // 2, 2, width // 2, 2)


def distance(found: Any, expected: Any) -> float:
    """How far a tensor is from another, relative to the length of the latter."""
    expected = np.asarray(expected)
    return float(np.linalg.norm(np.asarray(found) - expected) / np.linalg.norm(expected))
