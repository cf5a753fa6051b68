"""Dropout and the operators that draw random numbers, each node from a stream of its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import OperatorError
from onnxtrain.lowering.registry import Array, DType, Ints, Key, op
from onnxtrain.lowering.static import cast, device_dtype, is_static, wide_dtype


@op("Dropout")
def dropout_unless_test(data: Array, *, ratio: float, is_test: bool, key: Key) -> tuple[Array, Array]:
    """Up to opset 6 a node drops at random unless `is_test` is set."""
    output, mask = _drop(key, data, np.float32(ratio)) if not is_test else _keep(data)
    return output, cast(mask, data.dtype)


@op("Dropout", since=7, ignores={"ratio"})
def dropout_in_test_mode(data: Array) -> tuple[Array, Array]:
    """From opset 7 to 11 a node never drops: these versions describe inference."""
    output, mask = _keep(data)
    return output, cast(mask, data.dtype)


@op("Dropout", since=10, ignores={"ratio"})
def dropout_in_test_mode_with_boolean_mask(data: Array) -> tuple[Array, Array]:
    return _keep(data)


@op("Dropout", since=12, ignores={"seed"})
def dropout(
    data: Array, ratio: Array | None = None, training_mode: Array | None = None, *, key: Key
) -> tuple[Array, Array]:
    if training_mode is None or (is_static(training_mode) and not training_mode):
        return _keep(data)
    dropped: Array = (
        np.float32(0.5) if ratio is None else cast(ratio, device_dtype(wide_dtype(ratio.dtype))).reshape(())
    )
    if not is_static(training_mode):
        dropped = jnp.where(training_mode.reshape(()), dropped, jnp.zeros((), dropped.dtype))
    return _drop(key, data, dropped)


def _keep(data: Array) -> tuple[Array, Array]:
    return data, jnp.ones(np.shape(data), np.bool_)


def _drop(key: Any, data: Array, ratio: Array) -> tuple[Array, Array]:
    if is_static(ratio) and ratio == 0:
        return _keep(data)
    kept = 1 - ratio
    mask = jax.random.bernoulli(_required(key), kept, np.shape(data))
    # Nothing is kept at a ratio of 1, and a division by zero would reach the gradient.
    scale = cast(1 / jnp.where(kept > 0, kept, jnp.ones((), kept.dtype)), data.dtype)
    return jnp.where(mask, data * scale, jnp.zeros((), data.dtype)), mask


@op("Bernoulli", ignores={"seed"})
def bernoulli(input: Array, *, dtype: DType | None = None, key: Key) -> Array:
    drawn = jax.random.bernoulli(_required(key), cast(input, np.float32), np.shape(input))
    return cast(drawn, dtype or input.dtype)


@op("RandomNormal", ignores={"seed"})
def random_normal(*, shape: Ints, dtype: DType, mean: float, scale: float, key: Key) -> Array:
    return mean + scale * jax.random.normal(_required(key), shape, device_dtype(dtype))


@op("RandomNormalLike", ignores={"seed"})
def random_normal_like(input: Array, *, dtype: DType | None = None, mean: float, scale: float, key: Key) -> Array:
    return random_normal(shape=np.shape(input), dtype=dtype or input.dtype, mean=mean, scale=scale, key=key)


@op("RandomUniform", ignores={"seed"})
def random_uniform(*, shape: Ints, dtype: DType, low: float, high: float, key: Key) -> Array:
    return jax.random.uniform(_required(key), shape, device_dtype(dtype), low, high)


@op("RandomUniformLike", ignores={"seed"})
def random_uniform_like(input: Array, *, dtype: DType | None = None, low: float, high: float, key: Key) -> Array:
    return random_uniform(shape=np.shape(input), dtype=dtype or input.dtype, low=low, high=high, key=key)


@op("Multinomial", ignores={"seed"})
def multinomial(input: Array, *, dtype: DType, sample_size: int, key: Key) -> Array:
    """The input holds log-probabilities, which need not be normalized: [batch, classes] -> [batch, sample_size]."""
    drawn = jax.random.categorical(_required(key), input[:, None, :], axis=-1, shape=(input.shape[0], sample_size))
    return cast(drawn, dtype)


def _required(key: Any) -> Any:
    if key is None:
        raise OperatorError("It draws random numbers, and the graph runs without a seed.")
    return key
