"""Normalization of the last axis behind a sum: of a residual connection, or of the embeddings of a token."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from onnxtrain.lowering import levels
from onnxtrain.lowering.contrib.domains import microsoft
from onnxtrain.lowering.moments import moments_of
from onnxtrain.lowering.registry import Array, op
from onnxtrain.lowering.static import widened


@op("SimplifiedLayerNormalization", states_schema=True, ignores={"stash_type"})
def simplified_layer_normalization(
    x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5
) -> tuple[Array, Array]:
    """Like RMSNormalization. onnxruntime writes it into the domain ai.onnx."""
    normal, inverse = _by_mean_square(x, range(axis % x.ndim, x.ndim), epsilon)
    return normal.astype(scale.dtype) * scale, inverse


def _by_mean_square(x: Array, axes: range, epsilon: float) -> tuple[Array, Array]:
    """Values with the mean square 1, and what they were multiplied by."""
    wide = widened(x)
    inverse = lax.rsqrt(jnp.square(wide).mean(tuple(axes), keepdims=True) + epsilon)
    return wide * inverse, inverse


@microsoft("SkipLayerNormalization")
def skip_layer_normalization(
    input: Array,
    skip: Array,
    gamma: Array,
    beta: Array | None = None,
    bias: Array | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Array, Array, Array, Array]:
    total = _sum(input, skip, bias)
    y, mean, inverse = _layer_normalized(total, gamma, beta, epsilon)
    return y, mean, inverse, total


@microsoft("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(
    input: Array, skip: Array, gamma: Array, bias: Array | None = None, *, epsilon: float = 1e-12
) -> tuple[Array, Array, Array, Array]:
    """The mean, which it does not subtract, is an output all the same: it is 0."""
    total = _sum(input, skip, bias)
    normal, inverse = _by_mean_square(total, range(total.ndim - 1, total.ndim), epsilon)
    return normal.astype(total.dtype) * gamma, jnp.zeros_like(inverse), inverse, total


def _sum(input: Array, skip: Array, bias: Array | None) -> Array:
    total = input + skip
    return jnp.asarray(total if bias is None else total + bias)


def _layer_normalized(x: Array, gamma: Array, beta: Array | None, epsilon: float) -> tuple[Array, Array, Array]:
    moments = moments_of(widened(x), (x.ndim - 1,))
    normal, inverse = moments.standardized(epsilon)
    y = normal.astype(x.dtype) * gamma
    return y if beta is None else y + beta, moments.mean, inverse


@microsoft("EmbedLayerNormalization", ignores={"mask_index_type"})
def embed_layer_normalization(
    input_ids: Array,
    segment_ids: Array | None,
    word_embedding: Array,
    position_embedding: Array,
    segment_embedding: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None = None,
    position_ids: Array | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Array, Array, Array]:
    """The second output is the length of each sequence, or 0 where no mask tells it."""
    positions = np.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
    total = _rows(word_embedding, input_ids) + _rows(position_embedding, positions)
    if segment_ids is not None and segment_embedding is not None:
        total = total + _rows(segment_embedding, segment_ids)
    y, _, _ = _layer_normalized(total, gamma, beta, epsilon)
    return y, _lengths(mask, len(input_ids)), total


@microsoft("QEmbedLayerNormalization")
def q_embed_layer_normalization(
    input_ids: Array,
    segment_ids: Array | None,
    word_embedding: Array,
    position_embedding: Array,
    segment_embedding: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None,
    word_scale: Array,
    position_scale: Array,
    segment_scale: Array | None,
    gamma_scale: Array,
    beta_scale: Array,
    word_zero_point: Array,
    position_zero_point: Array,
    segment_zero_point: Array | None,
    gamma_zero_point: Array,
    beta_zero_point: Array,
    *,
    epsilon: float = 1e-12,
) -> tuple[Array, Array]:
    """Only the rows that are looked up are dequantized."""
    positions = np.arange(input_ids.shape[1])[None]
    total = levels.dequantize(_rows(word_embedding, input_ids), word_scale, word_zero_point)
    total = total + levels.dequantize(_rows(position_embedding, positions), position_scale, position_zero_point)
    if segment_ids is not None and segment_embedding is not None and segment_scale is not None:
        rows = _rows(segment_embedding, segment_ids)
        total = total + levels.dequantize(rows, segment_scale, segment_zero_point)
    gamma = levels.dequantize(gamma, gamma_scale, gamma_zero_point)
    beta = levels.dequantize(beta, beta_scale, beta_zero_point)
    y, _, _ = _layer_normalized(total, gamma, beta, epsilon)
    return y, _lengths(mask, len(input_ids))


def _lengths(mask: Array | None, batch: int) -> Array:
    return jnp.zeros(batch, jnp.int32) if mask is None else mask.astype(jnp.int32).sum(1, dtype=jnp.int32)


def _rows(embedding: Array, ids: Array) -> Array:
    return jnp.take(embedding, ids, axis=0, mode="clip")
