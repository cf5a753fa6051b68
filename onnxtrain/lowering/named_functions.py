"""The activation functions that attributes of other operators name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from onnxtrain.errors import UnsupportedError


def find(name: str) -> tuple[Callable[..., Any], tuple[float, ...]]:
    """The function of x, and of parameters, that has this name in any spelling, and the defaults of its parameters."""
    known = {key.lower(): value for key, value in _FUNCTIONS.items()}
    if name.lower() not in known:
        raise UnsupportedError(f"Activation {name!r} is unknown. Known are {', '.join(_FUNCTIONS)}.")
    function, *defaults = known[name.lower()]
    return function, tuple(defaults)


def clip(x: Any, low: float, high: float) -> Any:
    """Unlike `jnp.clip`, this has the gradient 1 on the bounds."""
    x = jnp.where(x > high, jnp.asarray(high, x.dtype), x)
    return jnp.where(x < low, jnp.asarray(low, x.dtype), x)


def _elu(x: Any, alpha: float) -> Any:
    return jnp.where(x > 0, x, alpha * jnp.expm1(jnp.where(x > 0, 0, x)))


# A function of x, and of alpha and beta where it has them, with their defaults.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "Relu": (jax.nn.relu,),
    "Tanh": (jnp.tanh,),
    "Sigmoid": (jax.nn.sigmoid,),
    "Softsign": (jax.nn.soft_sign,),
    "Softplus": (jax.nn.softplus,),
    "Affine": (lambda x, alpha, beta: alpha * x + beta, 1.0, 0.0),
    "LeakyRelu": (lambda x, alpha: jnp.where(x > 0, x, alpha * x), 0.01),
    "ThresholdedRelu": (lambda x, alpha: jnp.where(x >= alpha, x, jnp.zeros_like(x)), 1.0),
    "ScaledTanh": (lambda x, alpha, beta: alpha * jnp.tanh(beta * x), 1.0, 1.0),
    "HardSigmoid": (lambda x, alpha, beta: clip(alpha * x + beta, 0.0, 1.0), 0.2, 0.5),
    "Elu": (_elu, 1.0),
}
