"""Attention of queries to keys and values, in its standard, flexible and linear forms, and rotary embedding."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onnxtrain.errors import OperatorError
from onnxtrain.lowering import heads
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
        q, k, v = heads.unpacked(q, q_num_heads), heads.unpacked(k, kv_num_heads), heads.unpacked(v, kv_num_heads)
    if past_key is not None and past_value is not None:
        k, v = jnp.concatenate([past_key, k], 2), jnp.concatenate([past_value, v], 2)
    raw = heads.scores(q, k, scale)
    capped = softcap * jnp.tanh(raw / softcap) if softcap else raw
    # no key after the query itself is within reach of a causal one, whatever its window
    reach = (left_window_size, 0 if is_causal else right_window_size)
    allowed = heads.allowed(reach, q.shape[2], k.shape[2], past_key, nonpad_kv_seqlen)
    bias = _bias(attn_mask, allowed, k.shape[2], q.dtype)
    biased = capped if bias is None else capped + bias
    share = heads.shares(biased, bias, softmax_precision or wide_dtype(q.dtype)).astype(q.dtype)
    y = heads.weighted(share, v.astype(q.dtype))
    shown = (raw, capped, biased, share)[qk_matmul_output_mode]
    return heads.packed(y) if packed else y, k, v, shown


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
    scores = heads.scores(q, k, scale).astype(dtype)
    if score_mod is not None:
        (scores,) = score_mod(scores)
    share = jax.nn.softmax(scores, -1)
    if prob_mod is not None:
        (share,) = prob_mod(share)
    return heads.weighted(share, v.astype(dtype)).astype(v.dtype)


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
    split = heads.unpacked(x, num_heads) if x.ndim == 3 else jnp.asarray(x)
    size = rotary_embedding_dim or split.shape[-1]
    cos, sin = (heads.angles(cache, position_ids) for cache in (cos_cache, sin_cache))
    if 2 * cos.shape[-1] != size:
        raise OperatorError(f"The caches hold {cos.shape[-1]} angles for each token, and {size // 2} are needed.")
    y = heads.rotated(split, cos, sin, interleaved)
    return heads.packed(y) if x.ndim == 3 else y


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
