"""Normalization by mean and variance, or by a norm. Statistics of half-precision inputs are computed in float32."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from onnxtrain.lowering import windows
from onnxtrain.lowering.registry import Array, DType, Ints, OutputCount, op
from onnxtrain.lowering.static import wide_dtype, widened


def _moments(x: Array, axes: Sequence[int]) -> tuple[Array, Array]:
    """Mean and population variance, with the axes kept. The squares are of deviations, so that no digits cancel."""
    mean = x.mean(tuple(axes), keepdims=True)
    return mean, jnp.square(x - mean).mean(tuple(axes), keepdims=True)


@op("BatchNormalization")
def batch_normalization_by_outputs(
    x: Array,
    scale: Array,
    b: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float,
    momentum: float,
    spatial: bool = True,
    is_test: bool = False,
    outputs: OutputCount,
) -> Array | tuple[Array, ...]:
    """Naming more outputs than Y trains, unless `is_test` is set. Without `spatial` each element is a channel."""
    axes = _batch_axes(x) if spatial else (0,)
    if outputs == 1 or is_test:
        return _with_given_statistics(x, scale, b, mean, var, axes, epsilon)
    y, batch_mean, batch_var = _with_batch_statistics(x, scale, b, axes, epsilon)
    batch_mean, batch_var = batch_mean.reshape(mean.shape), batch_var.reshape(var.shape)
    running = _running(mean, batch_mean, momentum), _running(var, batch_var, momentum)
    return y, *running, batch_mean.astype(mean.dtype), batch_var.astype(var.dtype)


@op("BatchNormalization", since=14)
def batch_normalization(
    x: Array,
    scale: Array,
    b: Array,
    input_mean: Array,
    input_var: Array,
    *,
    epsilon: float,
    momentum: float,
    training_mode: bool,
) -> Array | tuple[Array, Array, Array]:
    """The running variance is that of the population, and momentum is the share of the old statistics."""
    axes = _batch_axes(x)
    if not training_mode:
        return _with_given_statistics(x, scale, b, input_mean, input_var, axes, epsilon)
    y, mean, var = _with_batch_statistics(x, scale, b, axes, epsilon)
    mean, var = mean.reshape(input_mean.shape), var.reshape(input_var.shape)
    return y, _running(input_mean, mean, momentum), _running(input_var, var, momentum)


def _batch_axes(x: Array) -> tuple[int, ...]:
    """All axes but that of the channels; an input of one axis has one channel."""
    return (0, *range(2, x.ndim))


def _per_channel(values: Array, x: Array, axes: Sequence[int]) -> Array:
    """Values of each channel, shaped to go with x."""
    return widened(values).reshape([1 if axis in axes else size for axis, size in enumerate(x.shape)])


def _with_given_statistics(
    x: Array, scale: Array, b: Array, mean: Array, var: Array, axes: Sequence[int], epsilon: float
) -> Array:
    mean, var = (_per_channel(values, x, axes) for values in (mean, var))
    return _normalized(x, scale, b, mean, var, axes, epsilon)


def _with_batch_statistics(
    x: Array, scale: Array, b: Array, axes: Sequence[int], epsilon: float
) -> tuple[Array, Array, Array]:
    mean, var = _moments(widened(x), axes)
    return _normalized(x, scale, b, mean, var, axes, epsilon), mean, var


def _normalized(
    x: Array, scale: Array, b: Array, mean: Array, var: Array, axes: Sequence[int], epsilon: float
) -> Array:
    factor = _like(lax.rsqrt(var + epsilon), x) * _like(_per_channel(scale, x, axes), x)
    return ((widened(x) - _like(mean, x)) * factor + _like(_per_channel(b, x, axes), x)).astype(x.dtype)


def _like(values: Array, x: Array) -> Array:
    """Values in the type that x is normalized in: scale and statistics may have types of their own."""
    return values.astype(wide_dtype(x.dtype))


def _running(old: Array, new: Array, momentum: float) -> Array:
    old = jnp.asarray(old)
    wide = widened(old)
    return (wide * momentum + new.astype(wide.dtype) * (1 - momentum)).astype(old.dtype)


@op("LayerNormalization")
def layer_normalization(
    x: Array, scale: Array, b: Array | None = None, *, axis: int, epsilon: float, stash_type: DType
) -> tuple[Array, Array, Array]:
    """The statistics are computed in float32 at least, and in double for a double input, whatever their stash_type."""
    mean, var = _moments(widened(x), range(axis % x.ndim, x.ndim))
    inverse = lax.rsqrt(var + epsilon)
    y = ((widened(x) - mean) * inverse).astype(x.dtype) * scale
    return y if b is None else y + b, mean.astype(stash_type), inverse.astype(stash_type)


@op("RMSNormalization")
def rms_normalization(x: Array, scale: Array, *, axis: int, epsilon: float, stash_type: DType) -> Array:
    """The mean square is computed in float32 at least, and in double for a double input, whatever the stash_type."""
    wide = widened(x)
    square = jnp.square(wide).mean(tuple(range(axis % x.ndim, x.ndim)), keepdims=True)
    return (wide * lax.rsqrt(square + epsilon)).astype(x.dtype) * scale


@op("InstanceNormalization")
def instance_normalization(input: Array, scale: Array, b: Array, *, epsilon: float) -> Array:
    axes = range(2, input.ndim)
    mean, var = _moments(widened(input), axes)
    return _normalized(input, scale, b, mean, var, _batch_axes(input), epsilon)


@op("GroupNormalization")
def group_normalization_scaled_by_group(
    x: Array, scale: Array, bias: Array, *, epsilon: float, num_groups: int
) -> Array:
    """Until version 20 scale and bias have one value for each group."""
    each = x.shape[1] // num_groups
    return _group_normalized(x, jnp.repeat(scale, each), jnp.repeat(bias, each), epsilon, num_groups)


@op("GroupNormalization", since=21, ignores={"stash_type"})
def group_normalization(x: Array, scale: Array, bias: Array, *, epsilon: float, num_groups: int) -> Array:
    """The statistics are computed in float32 at least, and in double for a double input, whatever the stash_type."""
    return _group_normalized(x, scale, bias, epsilon, num_groups)


def _group_normalized(x: Array, scale: Array, bias: Array, epsilon: float, num_groups: int) -> Array:
    wide = widened(x)
    groups = wide.reshape(x.shape[0], num_groups, -1)
    mean, var = _moments(groups, (2,))
    normal = ((groups - mean) * lax.rsqrt(var + epsilon)).reshape(x.shape).astype(x.dtype)
    channels = (-1, *(1,) * (x.ndim - 2))
    return normal * scale.reshape(channels) + bias.reshape(channels)


@op("LpNormalization")
def lp_normalization(input: Array, *, axis: int, p: int) -> Array:
    """A vector of zeros stays one, with gradient 0."""
    wide = widened(input)
    total = (jnp.abs(wide) if p == 1 else jnp.square(wide)).sum(axis, keepdims=True)
    positive = total > 0
    safe = jnp.where(positive, total, 1)
    return jnp.where(positive, wide / (safe if p == 1 else jnp.sqrt(safe)), 0).astype(input.dtype)


@op("LRN")
def lrn(x: Array, *, alpha: float, beta: float, bias: float, size: int) -> Array:
    wide = widened(x)
    across = windows.Axis(x.shape[1], size, before=(size - 1) // 2, after=size // 2)
    squares = jnp.moveaxis(jnp.square(wide), 1, -1)
    (total,) = windows.fold(lambda a, b: (a[0] + b[0],), (squares,), (0,), (across,), ceil_mode=False)
    return (wide / (bias + alpha / size * jnp.moveaxis(total, -1, 1)) ** beta).astype(x.dtype)


@op("MeanVarianceNormalization")
def mean_variance_normalization(x: Array, *, axes: Ints) -> Array:
    """Elements that do not vary give 0."""
    wide = widened(x)
    mean, var = _moments(wide, axes)
    varies = var > 0
    deviation = jnp.where(varies, jnp.sqrt(jnp.where(varies, var, 1)), 0)
    return ((wide - mean) / (deviation + 1e-9)).astype(x.dtype)
