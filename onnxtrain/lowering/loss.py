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
    wide = widened(scores)
    total = jax.nn.logsumexp(wide, axis=1, keepdims=True)
    labels, kept = _kept(labels, ignore_index)
    # without the way over log_prob, which need not exist when only the loss is wanted
    picked = _picked(wide, labels) - total.squeeze(1)
    loss = _reduced(picked, _shares(picked, labels, kept, weights), reduction)
    return loss.astype(scores.dtype), (wide - total).astype(scores.dtype)


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
    labels, kept = _kept(target, ignore_index)
    picked = _picked(widened(input), labels)
    return _reduced(picked, _shares(picked, labels, kept, weight), reduction).astype(input.dtype)


def _kept(labels: Array, ignore_index: int | None) -> tuple[Array, Array | None]:
    """The labels with 0 in place of ignored ones, and which of them count, or None when all do."""
    labels = jnp.asarray(labels)
    if ignore_index is None:
        return labels, None
    kept = labels != ignore_index
    return jnp.where(kept, labels, 0), kept


def _picked(values: Array, labels: Array) -> Array:
    """The value of each label, from the axis of classes; NaN for a label that is no class."""
    # take_along_axis wraps negative positions; here they are as wrong as those that are too large
    position = jnp.where(labels < 0, values.shape[1], labels)
    return jnp.take_along_axis(values, jnp.expand_dims(position, 1), axis=1, mode="fill").squeeze(1)


def _reduced(picked: Array, share: Array | None, reduction: str) -> Array:
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
