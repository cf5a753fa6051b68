"""What forms of attention are made of: heads, scores, shares of attention, and embedding positions by rotation."""

from __future__ import annotations

import math
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import OperatorError
from onnxtrain.lowering.registry import Array
from onnxtrain.lowering.static import widened


def unpacked(x: Array, heads: int | None) -> Array:
    """From [batch, sequence, heads * size] to [batch, heads, sequence, size]."""
    if not heads or x.shape[2] % heads:
        raise OperatorError(f"An input of shape {list(x.shape)} cannot be split into {heads} heads.")
    return jnp.reshape(x, (*x.shape[:2], heads, -1)).swapaxes(1, 2)


def packed(x: Array) -> Array:
    """From [batch, heads, sequence, size] to [batch, sequence, heads * size]."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def scores(q: Array, k: Array, scale: float | None) -> Array:
    """Scaled products of queries and keys; contiguous groups of query heads share a head of keys."""
    # each side takes half of the scale, so that the product does not overflow in half precision
    half = math.sqrt(1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    grouped = jnp.reshape(q * half, (q.shape[0], k.shape[1], -1, *q.shape[2:]))
    products = jnp.einsum("bhgqd,bhkd->bhgqk", grouped, k * half)
    return products.reshape(*q.shape[:3], k.shape[2])


def weighted(share: Array, v: Array) -> Array:
    """Values added up with the share that each query gives them; groups of heads as in `scores`."""
    grouped = share.reshape(share.shape[0], v.shape[1], -1, *share.shape[2:])
    return jnp.einsum("bhgqk,bhkd->bhgqd", grouped, v).reshape(*share.shape[:3], v.shape[-1])


def allowed(
    reach: tuple[int, int], queries: int, keys: int, past_key: Array | None, lengths: Array | None
) -> Array | None:
    """Which keys each query may attend to: of those that count, so many before it and behind it, -1 for all."""
    key = jnp.arange(keys, dtype=jnp.int32)
    query = jnp.arange(queries, dtype=jnp.int32)[:, None]
    conditions = []
    if lengths is not None:
        count = lengths.astype(jnp.int32).reshape(-1, 1, 1, 1)
        conditions.append(key < count)
        query = query + count - queries
    if past_key is not None:
        query = query + past_key.shape[2]
    left, right = reach
    if left >= 0:
        conditions.append(key >= query - left)
    if right >= 0:
        conditions.append(key <= query + right)
    return reduce(jnp.logical_and, conditions) if conditions else None


def shares(scores: Array, bias: Array | None, dtype: np.dtype) -> Array:
    """The softmax over keys, with zeros for a query that may attend to none."""
    scores = scores.astype(dtype)
    if bias is None:
        return jax.nn.softmax(scores, -1)
    empty = bias.max(-1, keepdims=True) == -jnp.inf
    return jnp.where(empty, 0, jax.nn.softmax(jnp.where(empty, 0, scores), -1))


def rotated(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Heads with pairs of their first elements turned by angles; as many elements as there are angles for."""
    turned, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else jnp.split(turned, 2, -1)
    first, second = widened(first), widened(second)
    pair = first * cos - second * sin, first * sin + second * cos
    turned = jnp.stack(pair, -1).reshape(turned.shape) if interleaved else jnp.concatenate(pair, -1)
    return jnp.concatenate([turned.astype(x.dtype), rest], -1)


def angles(cache: Array, position_ids: Array | None) -> Array:
    """Sines or cosines for each token, with an axis for the heads."""
    each = cache if position_ids is None else jnp.take(cache, position_ids, axis=0, mode="clip")
    return widened(each)[:, None]
