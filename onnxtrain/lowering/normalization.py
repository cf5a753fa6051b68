"""Normalization by mean and variance, or by a norm. Statistics of half-precision inputs are computed in float32."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from onnxtrain.lowering import windows
from onnxtrain.lowering.moments import Moments, moments_of
from onnxtrain.lowering.registry import Array, DType, Ints, OutputCount, op
from onnxtrain.lowering.static import magnitude, wide_dtype, widened


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
    moments = moments_of(widened(x), axes)
    y = _scaled(x, moments, scale, b, axes, epsilon)
    batch_mean, batch_var = moments.mean.reshape(mean.shape), moments.variance.reshape(var.shape)
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
    moments = moments_of(widened(x), axes)
    mean, var = moments.mean.reshape(input_mean.shape), moments.variance.reshape(input_var.shape)
    running = _running(input_mean, mean, momentum), _running(input_var, var, momentum)
    return _scaled(x, moments, scale, b, axes, epsilon), *running


def _batch_axes(x: Array) -> tuple[int, ...]:
    """All axes but that of the channels; an input of one axis has one channel."""
    return (0, *range(2, x.ndim))


def _with_given_statistics(
    x: Array, scale: Array, b: Array, mean: Array, var: Array, axes: Sequence[int], epsilon: float
) -> Array:
    scale, b, mean, var = (_per_channel(values, x, axes) for values in (scale, b, mean, var))
    return ((widened(x) - mean) * (lax.rsqrt(var + epsilon) * scale) + b).astype(x.dtype)


def _scaled(x: Array, moments: Moments, scale: Array, b: Array, axes: Sequence[int], epsilon: float) -> Array:
    """Values with the mean and deviation that b and scale give each channel.

    They are written as a product and a sum, whose gradients are the two sums that the gradient of x needs too.
    """
    factor = lax.rsqrt(moments.variance + epsilon) * _per_channel(scale, x, axes)
    shift = _per_channel(b, x, axes) - moments.offset * factor
    return (moments.deviations * factor + shift).astype(x.dtype)


def _per_channel(values: Array, x: Array, axes: Sequence[int]) -> Array:
    """Values of each channel, shaped to go with x and in the type it is normalized in: they may have another."""
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    return jnp.asarray(values).astype(wide_dtype(x.dtype)).reshape(shape)


def _running(old: Array, new: Array, momentum: float) -> Array:
    old = jnp.asarray(old)
    wide = widened(old)
    return (wide * momentum + new.astype(wide.dtype) * (1 - momentum)).astype(old.dtype)


@op("LayerNormalization")
def layer_normalization(
    x: Array, scale: Array, b: Array | None = None, *, axis: int, epsilon: float, stash_type: DType
) -> tuple[Array, Array, Array]:
    """The statistics are computed in float32 at least, and in double for a double input, whatever their stash_type."""
    moments = moments_of(widened(x), range(axis % x.ndim, x.ndim))
    normal, inverse = moments.standardized(epsilon)
    y = normal.astype(x.dtype) * scale
    return y if b is None else y + b, moments.mean.astype(stash_type), inverse.astype(stash_type)


@op("RMSNormalization")
def rms_normalization(x: Array, scale: Array, *, axis: int, epsilon: float, stash_type: DType) -> Array:
    """The mean square is computed in float32 at least, and in double for a double input, whatever the stash_type."""
    wide = widened(x)
    square = jnp.square(wide).mean(tuple(range(axis % x.ndim, x.ndim)), keepdims=True)
    return (wide * lax.rsqrt(square + epsilon)).astype(x.dtype) * scale


@op("InstanceNormalization")
def instance_normalization(input: Array, scale: Array, b: Array, *, epsilon: float) -> Array:
    moments = moments_of(widened(input), range(2, input.ndim))
    return _scaled(input, moments, scale, b, _batch_axes(input), epsilon)


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
    normal = moments_of(groups, (2,)).standardized(epsilon)[0].reshape(x.shape).astype(x.dtype)
    channels = (-1, *(1,) * (x.ndim - 2))
    return normal * scale.reshape(channels) + bias.reshape(channels)


@op("LpNormalization")
def lp_normalization(input: Array, *, axis: int, p: int) -> Array:
    """A vector of zeros stays one, with gradient 0."""
    wide = widened(input)
    total = (magnitude(wide) if p == 1 else jnp.square(wide)).sum(axis, keepdims=True)
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
    moments = moments_of(widened(x), axes)
    varies = moments.variance > 0
    deviation = jnp.where(varies, jnp.sqrt(jnp.where(varies, moments.variance, 1)), 0)
    return ((moments.deviations - moments.offset) / (deviation + 1e-9)).astype(x.dtype)
