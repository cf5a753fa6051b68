"""Forms of Gelu, with the bias that was added in front of them."""

from __future__ import annotations

import jax

from onnxtrain.lowering.contrib.domains import microsoft
from onnxtrain.lowering.registry import Array


@microsoft("Gelu")
def gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=False)


@microsoft("BiasGelu")
def bias_gelu(a: Array, b: Array) -> Array:
    return jax.nn.gelu(a + b, approximate=False)


@microsoft("FastGelu")
def fast_gelu(x: Array, bias: Array | None = None) -> Array:
    return jax.nn.gelu(x if bias is None else x + bias, approximate=True)


@microsoft("QuickGelu")
def quick_gelu(x: Array, *, alpha: float = 1.702) -> Array:
    return x * jax.nn.sigmoid(alpha * x)
