"""Attention of queries to keys and values, in its standard, flexible and linear forms, and rotary embedding."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onnxtrain.errors import OperatorError
from onnxtrain.lowering.registry import Array, Body, DType, op
from onnxtrain.lowering.static import wide_dtype, widened


@op("Attention")
def attention(
    q: Array,
    k: Array,
    v: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    is_causal: bool,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float,
    softmax_precision: DType | None = None,
) -> tuple[Array, Array, Array, Array]:
    """A query that may attend to no key gives zeros. Unless told otherwise the softmax is in float32 at least."""
    packed = q.ndim == 3
    if packed:
        q, k, v = _unpacked(q, q_num_heads), _unpacked(k, kv_num_heads), _unpacked(v, kv_num_heads)
    if past_key is not None and past_value is not None:
        k, v = jnp.concatenate([past_key, k], 2), jnp.concatenate([past_value, v], 2)
    raw = _scores(q, k, scale)
    capped = softcap * jnp.tanh(raw / softcap) if softcap else raw
    # no key after the query itself is within reach of a causal one, whatever its window
    reach = (left_window_size, 0 if is_causal else right_window_size)
    allowed = _allowed(reach, q.shape[2], k.shape[2], past_key, nonpad_kv_seqlen)
    bias = _bias(attn_mask, allowed, k.shape[2], q.dtype)
    biased = capped if bias is None else capped + bias
    share = _shares(biased, bias, softmax_precision or wide_dtype(q.dtype)).astype(q.dtype)
    y = _weighted(share, v.astype(q.dtype))
    shown = (raw, capped, biased, share)[qk_matmul_output_mode]
    return _packed(y) if packed else y, k, v, shown


def _unpacked(x: Array, heads: int | None) -> Array:
    """From [batch, sequence, heads * size] to [batch, heads, sequence, size]."""
    if not heads or x.shape[2] % heads:
        raise OperatorError(f"An input of shape {list(x.shape)} cannot be split into {heads} heads.")
    return jnp.reshape(x, (*x.shape[:2], heads, -1)).swapaxes(1, 2)


def _packed(x: Array) -> Array:
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def _scores(q: Array, k: Array, scale: float | None) -> Array:
    """Scaled products of queries and keys; contiguous groups of query heads share a head of keys."""
    # each side takes half of the scale, so that the product does not overflow in half precision
    half = math.sqrt(1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    grouped = jnp.reshape(q * half, (q.shape[0], k.shape[1], -1, *q.shape[2:]))
    scores = jnp.einsum("bhgqd,bhkd->bhgqk", grouped, k * half)
    return scores.reshape(*q.shape[:3], k.shape[2])


def _weighted(share: Array, v: Array) -> Array:
    grouped = share.reshape(share.shape[0], v.shape[1], -1, *share.shape[2:])
    return jnp.einsum("bhgqk,bhkd->bhgqd", grouped, v).reshape(*share.shape[:3], v.shape[-1])


def _allowed(
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


def _bias(mask: Array | None, allowed: Array | None, keys: int, dtype: np.dtype) -> Array | None:
    """What is added to the scores: minus infinity where a query must not attend."""
    bias = jnp.zeros((), dtype)
    if mask is not None:
        lowest = jnp.asarray(-jnp.inf, dtype)
        bias = jnp.where(mask, bias, lowest) if mask.dtype == bool else jnp.asarray(mask).astype(dtype)
        missing = keys - bias.shape[-1] if bias.shape[-1] > 1 else 0
        bias = lax.pad(bias, lowest, [(0, 0, 0)] * (bias.ndim - 1) + [(0, missing, 0)])
    if allowed is not None:
        return jnp.where(allowed, bias, -jnp.inf)
    return None if mask is None else bias


def _shares(scores: Array, bias: Array | None, dtype: np.dtype) -> Array:
    """The softmax over keys, with zeros for a query that may attend to none."""
    scores = scores.astype(dtype)
    if bias is None:
        return jax.nn.softmax(scores, -1)
    empty = bias.max(-1, keepdims=True) == -jnp.inf
    return jnp.where(empty, 0, jax.nn.softmax(jnp.where(empty, 0, scores), -1))


@op("FlexAttention", domain="ai.onnx.preview")
def flex_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    prob_mod: Body | None = None,
    scale: float | None = None,
    score_mod: Body | None = None,
    softmax_precision: DType | None = None,
) -> Array:
    dtype = softmax_precision or wide_dtype(q.dtype)
    scores = _scores(q, k, scale).astype(dtype)
    if score_mod is not None:
        (scores,) = score_mod(scores)
    share = jax.nn.softmax(scores, -1)
    if prob_mod is not None:
        (share,) = prob_mod(share)
    return _weighted(share, v.astype(dtype)).astype(v.dtype)


@op("RotaryEmbedding")
def rotary_embedding(
    x: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    *,
    interleaved: bool,
    num_heads: int | None = None,
    rotary_embedding_dim: int,
) -> Array:
    heads = _unpacked(x, num_heads) if x.ndim == 3 else jnp.asarray(x)
    size = rotary_embedding_dim or heads.shape[-1]
    turned, rest = heads[..., :size], heads[..., size:]
    cos, sin = (_angles(cache, position_ids) for cache in (cos_cache, sin_cache))
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else jnp.split(turned, 2, -1)
    first, second = widened(first), widened(second)
    pair = first * cos - second * sin, first * sin + second * cos
    turned = jnp.stack(pair, -1).reshape(turned.shape) if interleaved else jnp.concatenate(pair, -1)
    y = jnp.concatenate([turned.astype(x.dtype), rest], -1)
    return _packed(y) if x.ndim == 3 else y


def _angles(cache: Array, position_ids: Array | None) -> Array:
    """Sines or cosines for each token, with an axis for the heads."""
    each = cache if position_ids is None else jnp.take(cache, position_ids, axis=0, mode="clip")
    return widened(each)[:, None]


@op("LinearAttention", ignores={"chunk_size"})
def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float,
    update_rule: str,
) -> tuple[Array, Array]:
    """The state is kept in float32 at least, token after token."""
    if update_rule not in ("linear", "gated", "delta", "gated_delta"):
        raise OperatorError(f"update_rule must be linear, gated, delta or gated_delta, not {update_rule!r}.")
    gated, corrected = update_rule.startswith("gated"), update_rule.endswith("delta")
    if (decay is not None, beta is not None) != (gated, corrected):
        raise OperatorError(f"update_rule {update_rule!r} goes with decay: {gated}, beta: {corrected}.")
    q, k, v = (
        _by_token(values, heads) for values, heads in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
    )
    gates = jnp.exp(_by_token(decay, kv_num_heads)) if decay is not None else None
    rates = _by_token(beta, beta.shape[-1]) if beta is not None else None
    shape = (query.shape[0], kv_num_heads, k.shape[-1], v.shape[-1])
    start = jnp.zeros(shape, q.dtype) if past_state is None else widened(past_state)
    factor = scale or 1 / math.sqrt(k.shape[-1])

    def step(state: Array, token: tuple[Any, ...]) -> tuple[Array, Array]:
        q_t, k_t, v_t, gate, rate = token
        if gate is not None:
            state = state * gate[..., None]
        if rate is not None:
            v_t = rate * (v_t - jnp.einsum("bhkv,bhk->bhv", state, k_t))
        state = state + k_t[..., None] * v_t[..., None, :]
        grouped = q_t.reshape(q_t.shape[0], kv_num_heads, -1, q_t.shape[-1])
        return state, factor * jnp.einsum("bhgk,bhkv->bhgv", grouped, state)

    state, outputs = lax.scan(step, start, (q, k, v, gates, rates))
    y = jnp.moveaxis(outputs.reshape(*outputs.shape[:2], -1), 0, 1)
    return y.astype(query.dtype), state.astype(query.dtype if past_state is None else past_state.dtype)


def _by_token(x: Array, heads: int) -> Array:
    """From [batch, tokens, heads * size] to [tokens, batch, heads, size]."""
    return jnp.moveaxis(widened(x).reshape(*x.shape[:2], heads, -1), 1, 0)
