"""Activation functions, each with finite gradients wherever the function has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain import dtypes
from onnxtrain.errors import OperatorError
from onnxtrain.lowering import static
from onnxtrain.lowering.registry import Array, op, table
from onnxtrain.lowering.static import namespace

table(
    {
        "Sigmoid": jax.nn.sigmoid,
        "Softplus": jax.nn.softplus,
        "Softsign": jax.nn.soft_sign,
        "Mish": jax.nn.mish,
    },
    inputs=1,
)


@op("Relu", folds=True, carries=True)
def relu(x: Array) -> Array:
    # The gradient of jax.nn.relu at 0 is 0; that of jnp.maximum is 0.5.
    return np.maximum(x, x.dtype.type(0)) if static.is_static(x) else jax.nn.relu(x)


@op("LeakyRelu")
def leaky_relu(x: Array, *, alpha: float) -> Array:
    """The gradient at 0 is alpha, as in PyTorch."""
    return jnp.where(x > 0, x, alpha * x)


@op("PRelu")
def prelu_by_channel(x: Array, slope: Array) -> Array:
    """Until version 7 the slopes are one for all channels or one for each."""
    if slope.size == 1:
        return prelu(x, slope.reshape(()))
    return prelu(x, slope.reshape((-1, *[1] * (x.ndim - 2))))


@op("PRelu", since=7)
def prelu(x: Array, slope: Array) -> Array:
    return jnp.where(x > 0, x, slope * x)


@op("Elu")
def elu(x: Array, *, alpha: float) -> Array:
    """The gradient at 0 is alpha, as in PyTorch."""
    return jnp.where(x > 0, x, alpha * jnp.expm1(_negative_part(x)))


@op("Celu")
def celu(x: Array, *, alpha: float) -> Array:
    return jnp.where(x > 0, x, alpha * jnp.expm1(_negative_part(x) / alpha))


@op("Selu")
def selu(x: Array, *, alpha: float, gamma: float) -> Array:
    return gamma * elu(x, alpha=alpha)


def _negative_part(x: Any) -> jax.Array:
    """What goes into an exponential that no positive value takes: its overflow would make the gradient NaN."""
    return jnp.where(x > 0, 0, x)


@op("Gelu")
def gelu(x: Array, *, approximate: str) -> Array:
    if approximate not in ("none", "tanh"):
        raise OperatorError(f"The approximation is 'none' or 'tanh', not {approximate!r}.")
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@op("Swish")
def swish(x: Array, *, alpha: float) -> Array:
    return x * jax.nn.sigmoid(alpha * x)


@op("SwiGLU")
def swiglu(a: Array, b: Array, *, alpha: float) -> Array:
    return swish(a, alpha=alpha) * b


@op("HardSigmoid")
def hard_sigmoid(x: Array, *, alpha: float, beta: float) -> Array:
    """The gradient is 0 where the line meets its bounds."""
    line = alpha * x + beta
    return jnp.where(line <= 0, 0, jnp.where(line >= 1, 1, line))


@op("HardSwish")
def hard_swish(x: Array) -> Array:
    return x * hard_sigmoid(x, alpha=1 / 6, beta=0.5)


@op("ThresholdedRelu")
def thresholded_relu(x: Array, *, alpha: float) -> Array:
    return jnp.where(x > alpha, x, 0)


@op("Shrink")
def shrink(x: Array, *, bias: float, lambd: float) -> Array:
    values = x if dtypes.is_float(x.dtype) else static.cast(x, np.float32)
    shrunk = jnp.where(values < -lambd, values + bias, jnp.where(values > lambd, values - bias, 0))
    return static.cast(shrunk, x.dtype)


@op("Clip", folds=True, carries=True)
def clip(x: Array, min: Array | None = None, max: Array | None = None) -> Array:
    """The gradient is 1 on the bounds. Where `min` exceeds `max`, everything becomes `max`."""
    xp = namespace(x, min, max)
    if min is not None:
        x = xp.where(x < _scalar(min), _scalar(min), x)
    if max is not None:
        x = xp.where(x > _scalar(max), _scalar(max), x)
    return x


def _scalar(bound: Any) -> Any:
    """A bound is a scalar, though some exporters write it with shape [1]."""
    return bound if isinstance(bound, float) else bound.reshape(())


@op("Softmax")
def softmax_flattened(x: Array, *, axis: int) -> Array:
    """Until version 13 everything from `axis` on is one dimension."""
    return _normalized(_softmax, x, _axes_from(axis, x.ndim))


@op("Softmax", since=13)
def softmax(x: Array, *, axis: int) -> Array:
    return _normalized(_softmax, x, axis)


def _softmax(x: Any, axis: int | Sequence[int]) -> jax.Array:
    # A product in front may be rounded in the maximum and, fused with the subtraction, not rounded there. Among huge
    # values some would then exceed the maximum by hundreds; the softmax itself subtracts that of the differences.
    return jax.nn.softmax(x - jax.lax.stop_gradient(x.max(axis, keepdims=True)), axis=axis)


@op("LogSoftmax")
def log_softmax_flattened(x: Array, *, axis: int) -> Array:
    """Until version 13 everything from `axis` on is one dimension."""
    return _normalized(jax.nn.log_softmax, x, _axes_from(axis, x.ndim))


@op("LogSoftmax", since=13)
def log_softmax(x: Array, *, axis: int) -> Array:
    return _normalized(jax.nn.log_softmax, x, axis)


def _normalized(function: Callable[..., jax.Array], x: Any, axis: int | Sequence[int]) -> Any:
    return function(x, axis=axis) if x.size else x


def _axes_from(axis: int, rank: int) -> tuple[int, ...]:
    return tuple(range(axis + rank if axis < 0 else axis, rank))


@op("Hardmax")
def hardmax_flattened(x: Array, *, axis: int) -> Array:
    """Until version 13 everything from `axis` on is one dimension."""
    kept = x.shape[:axis]
    return hardmax(x.reshape((*kept, -1)), axis=-1).reshape(x.shape) if x.size else x


@op("Hardmax", since=13)
def hardmax(x: Array, *, axis: int) -> Array:
    """One at the first of the largest values, zero elsewhere."""
    if not x.size:
        return x
    return jax.nn.one_hot(jnp.argmax(x, axis=axis), x.shape[axis], dtype=x.dtype, axis=axis)
