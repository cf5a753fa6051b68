"""Values of images between their elements: what lies at coordinates that are known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from onnxtrain.lowering.registry import Array
from onnxtrain.lowering.static import widened

# From the indices of elements, which may lie outside, and the length of the axis, to indices that do not.
Fold = Callable[[Array, int], Array]


@dataclass(frozen=True)
class Taps:
    """The elements of one axis that a value depends on: their indices and their shares, [..., taps, points]."""

    indices: Array
    weights: Array


def nearest_taps(coordinates: Array) -> Taps:
    """The nearest element of each coordinate; of two, the even one."""
    nearest = jnp.round(lax.stop_gradient(coordinates))[..., None, :]
    return Taps(nearest.astype(jnp.int32), jnp.ones_like(nearest))


def linear_taps(coordinates: Array) -> Taps:
    """The elements on both sides of each coordinate."""
    low = jnp.floor(lax.stop_gradient(coordinates))
    share = coordinates - low
    return Taps(_around(low, 0, 2), jnp.stack([1 - share, share], -2))


def cubic_taps(coordinates: Array, a: float = -0.75) -> Taps:
    """The four elements around each coordinate, with the weights of cubic convolution."""
    low = jnp.floor(lax.stop_gradient(coordinates))
    share = coordinates - low
    near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (share, 1 - share)]
    far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (1 + share, 2 - share)]
    return Taps(_around(low, -1, 3), jnp.stack([far[0], *near, far[1]], -2))


def _around(low: Array, start: int, stop: int) -> Array:
    return low.astype(jnp.int32)[..., None, :] + jnp.arange(start, stop, dtype=jnp.int32)[:, None]


def terms(x: Array, image: Array, taps: Sequence[Taps], fold: Fold | None = None) -> Array:
    """What each tap adds to each value: [rows, taps of all axes, points, channels], in the wide type of x.

    `x` is [N, C, ...], `image` [rows] says which of the N images a row of points reads, and `taps` has the axes in
    order, with arrays [rows, taps, points]. Elements outside are zeros, or those that `fold` names instead.
    """
    sizes = x.shape[2:]
    index, weight = image.astype(jnp.int32)[:, None, None], jnp.ones((1, 1, 1), taps[0].weights.dtype)
    for size, axis in zip(sizes, taps, strict=True):
        inside = fold(axis.indices, size) if fold else axis.indices
        share = jnp.where((inside >= 0) & (inside < size), axis.weights, 0)
        index = _outer(index * size, jnp.clip(inside, 0, size - 1), jnp.add)
        weight = _outer(weight, share, jnp.multiply)
    elements = jnp.moveaxis(widened(x), 1, -1).reshape(-1, x.shape[1])
    return jnp.take(elements, index, axis=0, mode="clip") * weight[..., None].astype(elements.dtype)


def _outer(a: Array, b: Array, combine: Callable[[Array, Array], Array]) -> Array:
    """Every tap of a with every tap of b."""
    every = combine(a[:, :, None], b[:, None])
    return every.reshape(every.shape[0], -1, every.shape[-1])


def values(x: Array, image: Array, taps: Sequence[Taps], fold: Fold | None = None) -> Array:
    """The values at each point, [rows, channels, points]; see `terms`."""
    return jnp.moveaxis(terms(x, image, taps, fold).sum(1), -1, 1)
