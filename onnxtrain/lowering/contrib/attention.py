"""Attention as onnxruntime fuses it: with its projections, with its masks, and with caches of keys and values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import OperatorError, UnsupportedError
from onnxtrain.lowering import heads, levels
from onnxtrain.lowering.contrib.domains import microsoft
from onnxtrain.lowering.registry import Array, Int, Ints, OutputCount, StandIns
from onnxtrain.lowering.static import wide_dtype


@microsoft("Attention", ignores={"rotary_embedding_dim"})
def attention(
    input: Array,
    weights: Array,
    bias: Array | None = None,
    mask_index: Array | None = None,
    past: Array | None = None,
    attention_bias: Array | None = None,
    past_sequence_length: Array | None = None,
    *,
    do_rotary: bool = False,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: bool = False,
    qkv_hidden_sizes: Ints = (),
    scale: float = 0.0,
    unidirectional: bool = False,
    outputs: OutputCount,
) -> Array | tuple[Array, Array]:
    """A query that may attend to no key attends to all of them.

    Unsupported: do_rotary, and caches that are longer than what they hold (past_present_share_buffer).
    """
    _refuse_caches_with_room(do_rotary, past_present_share_buffer)
    projected = jnp.matmul(input, weights)
    if bias is not None:
        projected = projected + bias
    sizes = qkv_hidden_sizes or (projected.shape[-1] // 3,) * 3
    biases = (attention_bias, mask_filter_value, unidirectional)
    y, keys, values = _self_attention(projected, sizes, num_heads, scale, past, mask_index, *biases)
    return (y, jnp.stack([keys, values])) if outputs > 1 else y


def _refuse_caches_with_room(do_rotary: bool, past_present_share_buffer: bool) -> None:
    if do_rotary or past_present_share_buffer:
        raise UnsupportedError("Attributes do_rotary and past_present_share_buffer must be 0.")


def _self_attention(
    projected: Array,
    sizes: Ints,
    num_heads: int,
    scale: float,
    past: Array | None,
    mask_index: Array | None,
    attention_bias: Array | None,
    mask_filter_value: float,
    unidirectional: bool,
) -> tuple[Array, Array, Array]:
    """The attention of queries, keys and values that stand side by side, then all keys and all values."""
    q, k, v = (heads.unpacked(part, num_heads) for part in jnp.split(projected, np.cumsum(sizes)[:2].tolist(), -1))
    if past is not None:
        k, v = jnp.concatenate([past[0], k], 2), jnp.concatenate([past[1], v], 2)
    masked = _mask_bias(mask_index, q, k, mask_filter_value)
    scores = _biased_scores(q, k, scale, [masked, attention_bias, _causal_bias(q, k) if unidirectional else None])
    return _attended(scores, v), k, v


@microsoft("QAttention")
def q_attention(
    input: Array,
    weight: Array,
    bias: Array,
    input_scale: Array,
    weight_scale: Array,
    mask_index: Array | None = None,
    input_zero_point: Array | None = None,
    weight_zero_point: Array | None = None,
    past: Array | None = None,
    *,
    do_rotary: bool = False,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: bool = False,
    scale: float = 0.0,
    unidirectional: bool = False,
    outputs: OutputCount,
    stand_ins: StandIns,
) -> Array | tuple[Array, Array]:
    """The input and the weights are quantized; what they are multiplied to is not.

    Unsupported: as for Attention.
    """
    _refuse_caches_with_room(do_rotary, past_present_share_buffer)
    operands = ((input, input_zero_point, stand_ins[0]), (weight, weight_zero_point, stand_ins[1]))
    product = levels.as_floats(levels.multiplied(jnp.matmul, *operands), np.dtype(bias.dtype))
    projected = product * (input_scale * weight_scale) + bias
    sizes = (projected.shape[-1] // 3,) * 3
    biases = (None, mask_filter_value, unidirectional)
    y, keys, values = _self_attention(projected, sizes, num_heads, scale, past, mask_index, *biases)
    return (y, jnp.stack([keys, values])) if outputs > 1 else y


@microsoft("MultiHeadAttention")
def multi_head_attention(
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    bias: Array | None = None,
    key_padding_mask: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    past_sequence_length: Array | None = None,
    cache_indirection: Array | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float = 0.0,
    unidirectional: bool = False,
) -> tuple[Array, Array, Array, Array]:
    """A query that may attend to no key attends to all of them.

    Unsupported: caches that are longer than what they hold (past_sequence_length), and cache_indirection.
    """
    if past_sequence_length is not None or cache_indirection is not None:
        raise UnsupportedError("Inputs past_sequence_length and cache_indirection must be absent.")
    q, k, v = _with_bias(_separate(query, key, value, num_heads), bias, projected=key is None or key.ndim != 4)
    if past_key is not None and past_value is not None:
        k, v = jnp.concatenate([past_key, k], 2), jnp.concatenate([past_value, v], 2)
    masked = _mask_bias(key_padding_mask, q, k, mask_filter_value)
    scores = _biased_scores(q, k, scale, [masked, attention_bias, _causal_bias(q, k) if unidirectional else None])
    return _attended(scores, v), k, v, scores


def _separate(query: Array, key: Array | None, value: Array | None, num_heads: int) -> tuple[Array, Array, Array]:
    """Heads of queries, keys and values: packed into one array or two, apart, or keys and values in heads already."""
    if key is None:
        q, k, v = (query[:, :, :, i].swapaxes(1, 2) for i in range(3))
        return q, k, v
    q = heads.unpacked(query, num_heads)
    if value is None:
        return q, key[:, :, :, 0].swapaxes(1, 2), key[:, :, :, 1].swapaxes(1, 2)
    if key.ndim == 4:
        return q, key, value
    return q, heads.unpacked(key, num_heads), heads.unpacked(value, num_heads)


def _with_bias(qkv: tuple[Array, Array, Array], bias: Array | None, projected: bool) -> tuple[Array, Array, Array]:
    """The bias of all three projections added; keys and values that come in heads have had theirs."""
    q, k, v = qkv
    if bias is None:
        return qkv
    width = q.shape[1] * q.shape[3]
    of_q, of_k, of_v = (part.reshape(q.shape[1], 1, -1) for part in jnp.split(bias, [width, 2 * width]))
    return (q + of_q, k + of_k, v + of_v) if projected else (q + of_q, k, v)


def _mask_bias(mask: Array | None, q: Array, k: Array, filter_value: float) -> Array | None:
    """What is added to the scores for keys that do not count, by any of the shapes that a mask may have."""
    if mask is None:
        return None
    batch, queries, keys = q.shape[0], q.shape[2], k.shape[2]
    if mask.ndim == 1:
        key = np.arange(keys, dtype=np.int32)
        ends, starts = mask[:batch, None], mask[batch : 2 * batch, None] if len(mask) == 2 * batch else 0
        counts = ((key >= starts) & (key < ends))[:, None, None]
    elif mask.ndim == 2:
        counts = (mask != 0)[:, None, None]
    elif mask.ndim == 3:
        counts = (mask != 0)[:, None]
    else:
        counts = (mask != 0)[:, :, keys - queries : keys, :keys]
    return jnp.where(counts, 0, filter_value).astype(q.dtype)


def _causal_bias(q: Array, k: Array) -> Array:
    """Minus infinity for keys behind a query; the last query is the last key."""
    behind = ~np.tri(q.shape[2], k.shape[2], k.shape[2] - q.shape[2], dtype=bool)
    return jnp.where(behind, -jnp.inf, 0).astype(q.dtype)


def _biased_scores(q: Array, k: Array, scale: float, biases: list[Array | None]) -> Array:
    scores = heads.scores(q, k, scale or None)
    for bias in biases:
        scores = scores if bias is None else scores + bias
    return scores


def _attended(scores: Array, v: Array) -> Array:
    share = jax.nn.softmax(scores.astype(wide_dtype(v.dtype)), -1).astype(v.dtype)
    return heads.packed(heads.weighted(share, v))


@microsoft("GroupQueryAttention", ignores={"kv_cache_bit_width", "sliding_window_cache"})
def group_query_attention(
    query: Array,
    key: Array | None,
    value: Array | None,
    past_key: Array | None,
    past_value: Array | None,
    seqlens_k: Array,
    total_sequence_length: Int,
    cos_cache: Array | None = None,
    sin_cache: Array | None = None,
    position_ids: Array | None = None,
    attention_bias: Array | None = None,
    head_sink: Array | None = None,
    *,
    causal: bool = True,
    do_rotary: bool = False,
    k_quant_type: str = "NONE",
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_output: int = 0,
    rotary_interleaved: bool = False,
    scale: float = 0.0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> tuple[Array, Array, Array]:
    """Keys and values are written into the cache behind those that each sequence has there.

    Unsupported: quantized caches, norms of queries and keys, and the fourth output.
    """
    if (k_quant_type, v_quant_type, qk_output) != ("NONE", "NONE", 0):
        raise UnsupportedError("Attributes k_quant_type and v_quant_type must be 'NONE', and qk_output 0.")
    q, k, v = _grouped(query, key, value, num_heads, kv_num_heads)
    first = q.shape[2] == total_sequence_length
    before = jnp.zeros_like(seqlens_k) if first else seqlens_k + 1 - q.shape[2]
    before = before.astype(jnp.int32).reshape(-1)
    if do_rotary and cos_cache is not None and sin_cache is not None:
        positions = before[:, None] + np.arange(q.shape[2], dtype=np.int32) if position_ids is None else position_ids
        cos, sin = heads.angles(cos_cache, positions), heads.angles(sin_cache, positions)
        q, k = (heads.rotated(x, cos, sin, rotary_interleaved) for x in (q, k))
    k, v = (_cached(past, new, before, total_sequence_length) for past, new in ((past_key, k), (past_value, v)))
    scores = heads.scores(q, k, scale or None)
    scores = softcap * jnp.tanh(scores / softcap) if softcap else scores
    scores = scores if attention_bias is None else scores + attention_bias
    counts = seqlens_k.astype(jnp.int32).reshape(-1) + 1
    seen = _within_reach(before, counts, q.shape[2], k.shape[2], causal, local_window_size)
    sink = _sink(head_sink, smooth_softmax, num_heads, q.dtype)
    share = _shares_with_sink(jnp.where(seen, scores, -jnp.inf).astype(wide_dtype(q.dtype)), sink)
    return heads.packed(heads.weighted(share.astype(v.dtype), v)), k, v


def _grouped(
    query: Array, key: Array | None, value: Array | None, num_heads: int, kv_num_heads: int
) -> tuple[Array, Array, Array]:
    """Heads of queries, keys and values, which may all stand in the first input, one behind the other."""
    if key is None or value is None:
        each = query.shape[-1] // (num_heads + 2 * kv_num_heads)
        query, key, value = jnp.split(query, [each * num_heads, each * (num_heads + kv_num_heads)], -1)
    return heads.unpacked(query, num_heads), heads.unpacked(key, kv_num_heads), heads.unpacked(value, kv_num_heads)


def _cached(past: Array | None, new: Array, before: Array, total: int) -> Array:
    """The cache with the new tokens of each sequence behind those that it has, and zeros behind these.

    It grows to the total length of the longest sequence.
    """
    if past is None:
        return new
    room = max(total - past.shape[2], 0)
    longer = jnp.pad(jnp.asarray(past), [(0, 0), (0, 0), (0, room), (0, 0)])

    def write(cache: Array, tokens: Array, at: Array) -> Array:
        used = np.arange(cache.shape[1], dtype=np.int32)[:, None] < at
        return jax.lax.dynamic_update_slice_in_dim(jnp.where(used, cache, 0), tokens, at, 1)

    return jax.vmap(write)(longer, new.astype(longer.dtype), before)


def _within_reach(before: Array, counts: Array, queries: int, keys: int, causal: bool, window: int) -> Array:
    """Which keys each query of each sequence attends to; `window` counts back from the query, which is in it."""
    key = np.arange(keys, dtype=np.int32)
    query = before.reshape(-1, 1, 1, 1) + np.arange(queries, dtype=np.int32)[:, None]
    # queries of the padding see the padding, so that none sees nothing
    seen = key <= query if causal else key < jnp.maximum(counts.reshape(-1, 1, 1, 1), 1)
    return seen & (key > query - window) if window > 0 else seen


def _sink(head_sink: Array | None, smooth_softmax: int, num_heads: int, dtype: np.dtype) -> Array | None:
    """The score of the key without a value that takes a share of each head's attention, if there is one."""
    if head_sink is not None:
        return head_sink.reshape(num_heads, 1, 1)
    return jnp.zeros((num_heads, 1, 1), dtype) if smooth_softmax == 1 else None


def _shares_with_sink(scores: Array, sink: Array | None) -> Array:
    if sink is None:
        return jax.nn.softmax(scores, -1)
    column = jnp.broadcast_to(sink.astype(scores.dtype), (*scores.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([scores, column], -1), -1)[..., :-1]


@microsoft("RotaryEmbedding")
def rotary_embedding(
    input: Array,
    position_ids: Array,
    cos_cache: Array,
    sin_cache: Array,
    *,
    interleaved: bool = False,
    is_packed_batching: bool = False,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Array:
    """One position for all is that of the first token.

    Unsupported: is_packed_batching, and a scale other than 1.
    """
    if is_packed_batching or scale != 1:
        raise UnsupportedError("Attribute is_packed_batching must be 0, and scale 1.")
    if rotary_embedding_dim and rotary_embedding_dim != 2 * cos_cache.shape[-1]:
        raise OperatorError(f"The caches hold {cos_cache.shape[-1]} angles, not half of {rotary_embedding_dim}.")
    flat = input.ndim == 3
    split = heads.unpacked(input, num_heads or input.shape[2] // (2 * cos_cache.shape[-1])) if flat else input
    if position_ids.size == 1:
        position_ids = position_ids.reshape(1, 1) + np.arange(split.shape[2], dtype=position_ids.dtype)
    cos, sin = heads.angles(cos_cache, position_ids), heads.angles(sin_cache, position_ids)
    y = heads.rotated(jnp.asarray(split), cos, sin, interleaved)
    return heads.packed(y) if flat else y
