"""Means and variances, with no digits lost and in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from onnxtrain.lowering.registry import Array


@dataclass(frozen=True)
class Moments:
    """Mean, which is `centre + offset`, and population variance, the axes kept; `deviations` are from `centre`."""

    centre: Array
    deviations: Array
    offset: Array
    variance: Array

    @property
    def mean(self) -> Array:
        return self.centre + self.offset

    def standardized(self, epsilon: float) -> tuple[Array, Array]:
        """The values with mean 0 and variance 1, and the inverse of the standard deviation."""
        inverse = lax.rsqrt(self.variance + epsilon)
        # behind a barrier, so that the statistics are computed once and not again in each place that uses them
        inverse, shift = lax.optimization_barrier((inverse, -self.offset * inverse))
        return self.deviations * inverse + shift, inverse


def moments_of(x: Array, axes: Sequence[int]) -> Moments:
    """The moments over these axes.

    Both sums are over deviations from a value near the mean: no digits cancel, and they take one pass over x.
    """
    axes = tuple(axes)
    centre = lax.stop_gradient(lax.slice_in_dim(x, 0, 1, axis=axes[0]).mean(axes, keepdims=True))
    deviations = x - centre
    offset = deviations.mean(axes, keepdims=True)
    variance = jnp.square(deviations).mean(axes, keepdims=True) - jnp.square(offset)
    return Moments(centre, deviations, offset, jnp.maximum(variance, 0))
