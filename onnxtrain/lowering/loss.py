"""Losses of class labels, with class weights and ignored labels."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from onnxtrain.errors import OperatorError
from onnxtrain.lowering.registry import Array, op
from onnxtrain.lowering.static import widened


@op("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    scores: Array,
    labels: Array,
    weights: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str,
) -> tuple[Array, Array]:
    """The mean divides by the weights of the labels that count; with none left it is 0.

    Undefined in ONNX: a label outside [0, C) gives NaN.
    """
    log_prob = jax.nn.log_softmax(widened(scores), axis=1)
    loss = _nll(log_prob, labels, weights, ignore_index, reduction)
    return loss.astype(scores.dtype), log_prob.astype(scores.dtype)


@op("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    input: Array,
    target: Array,
    weight: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str,
) -> Array:
    """The mean divides by the weights of the labels that count; with none left it is 0.

    Undefined in ONNX: a label outside [0, C) gives NaN.
    """
    return _nll(widened(input), target, weight, ignore_index, reduction).astype(input.dtype)


def _nll(log_prob: Array, labels: Array, weights: Array | None, ignore_index: int | None, reduction: str) -> Array:
    labels = jnp.asarray(labels)
    kept = None if ignore_index is None else labels != ignore_index
    safe = labels if kept is None else jnp.where(kept, labels, 0)
    # take_along_axis wraps negative positions; here they are as wrong as those that are too large
    position = jnp.where(safe < 0, log_prob.shape[1], safe)
    picked = jnp.take_along_axis(log_prob, jnp.expand_dims(position, 1), axis=1, mode="fill").squeeze(1)
    share = _shares(picked, safe, kept, weights)
    loss = -picked if share is None else jnp.where(share == 0, 0, -picked * share)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    if reduction != "mean":
        raise OperatorError(f"reduction must be none, sum or mean, not {reduction!r}.")
    if share is None:
        return loss.mean()
    total = share.sum()
    return loss.sum() / jnp.where(total == 0, 1, total)


def _shares(picked: Array, labels: Array, kept: Array | None, weights: Array | None) -> Array | None:
    """How much each label counts; None when all count alike."""
    if weights is None:
        return None if kept is None else kept.astype(picked.dtype)
    share = jnp.take(jnp.asarray(weights).astype(picked.dtype), labels, mode="clip")
    return share if kept is None else jnp.where(kept, share, 0)
