"""SVMClassifier and SVMRegressor."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import OperatorError
from onnxtrain.lowering.ml.scores import ML, as_float, choose_labels, keep_static, transform, with_opposite
from onnxtrain.lowering.registry import Array, Floats, Ints, op

# As in LIBSVM, which these models come from.
COUPLING_STEPS = 100
SMALLEST_PROBABILITY = 1e-7


@op("SVMRegressor", domain=ML)
def svm_regressor(
    x: Array,
    *,
    coefficients: Floats = (),
    support_vectors: Floats = (),
    n_supports: int,
    rho: Floats = (),
    kernel_type: str,
    kernel_params: Floats = (),
    one_class: bool,
    post_transform: str,
) -> Array:
    x = as_float(jnp.asarray(x))
    weights = jnp.asarray(coefficients, x.dtype)
    if n_supports:
        vectors = jnp.asarray(np.array(support_vectors).reshape(n_supports, -1), x.dtype)
        scores = jnp.matmul(_kernel(x, vectors, kernel_type, kernel_params), weights)
    else:
        scores = jnp.matmul(x, weights)
    scores = (scores + rho[0])[:, None]
    if one_class:
        return jnp.where(scores > 0, 1, -1).astype(np.float32)
    return transform(scores, post_transform).astype(np.float32)


@op("SVMClassifier", domain=ML, folds=True)
def svm_classifier(
    x: Array,
    *,
    coefficients: Floats = (),
    support_vectors: Floats = (),
    vectors_per_class: Ints = (),
    rho: Floats = (),
    prob_a: Floats = (),
    prob_b: Floats = (),
    kernel_type: str,
    kernel_params: Floats = (),
    classlabels_ints: Ints = (),
    classlabels_strings: tuple[str, ...] = (),
    post_transform: str,
) -> tuple[Array, Array]:
    """Unsupported: labels that are strings, unless the input is known while tracing."""
    count = max(len(classlabels_ints), len(classlabels_strings), 1)

    def classify(x: Any) -> tuple[Any, Any]:
        x = as_float(x)
        if not vectors_per_class:
            weights = jnp.asarray(np.array(coefficients).reshape(count, -1).T, x.dtype)
            scores = votes = jnp.matmul(x, weights) + rho[0]
        else:
            vectors = jnp.asarray(np.array(support_vectors).reshape(sum(vectors_per_class), -1), x.dtype)
            kernel = _kernel(x, vectors, kernel_type, kernel_params)
            scores = _compare_pairs(kernel, coefficients, vectors_per_class, rho)
            votes = _count_votes(scores, count)
        chosen = jnp.argmax(votes, axis=1)
        if prob_a and vectors_per_class:
            scores = _couple(_pair_probabilities(scores, prob_a, prob_b), count)
        if scores.shape[1] == 1 and count == 2 and post_transform != "PROBIT":
            scores = with_opposite(scores, post_transform, complement=False)
        else:
            scores = transform(scores, post_transform)
        return chosen, scores.astype(np.float32)

    indices, scores = keep_static(classify, x)
    return choose_labels(indices, classlabels_ints, classlabels_strings), scores


def _kernel(x: Any, vectors: Any, kernel_type: str, parameters: Floats) -> Any:
    """Similarity of rows and support vectors [N, V]."""
    gamma, offset, degree = parameters or (0.0, 0.0, 0.0)
    if kernel_type == "RBF":
        return jnp.exp(-gamma * jnp.sum(jnp.square(x[:, None] - vectors), axis=-1))
    product = jnp.matmul(x, vectors.T)
    if kernel_type == "LINEAR":
        return product
    if kernel_type == "POLY":
        return jnp.power(gamma * product + offset, degree)
    if kernel_type == "SIGMOID":
        return jnp.tanh(gamma * product + offset)
    raise OperatorError(f"Attribute 'kernel_type' is {kernel_type!r}; it must be LINEAR, POLY, RBF or SIGMOID.")


def _compare_pairs(kernel: Any, coefficients: Floats, vectors_per_class: Ints, rho: Floats) -> Any:
    """The score of each pair of classes (0, 1), (0, 2), ... (1, 2), ...; a positive one is for the first."""
    starts = np.cumsum((0, *vectors_per_class))
    rows = np.array(coefficients).reshape(-1, starts[-1])
    pairs = list(combinations(range(len(vectors_per_class)), 2))
    weights = np.zeros((starts[-1], len(pairs)))
    for column, (i, j) in enumerate(pairs):
        weights[starts[i] : starts[i + 1], column] = rows[j - 1, starts[i] : starts[i + 1]]
        weights[starts[j] : starts[j + 1], column] = rows[i, starts[j] : starts[j + 1]]
    return jnp.matmul(kernel, jnp.asarray(weights, kernel.dtype)) + jnp.asarray(rho[: len(pairs)], kernel.dtype)


def _count_votes(scores: Any, count: int) -> Any:
    votes = [jnp.zeros(scores.shape[0], scores.dtype)] * count
    for column, (i, j) in enumerate(combinations(range(count), 2)):
        first = (scores[:, column] > 0).astype(scores.dtype)
        votes[i], votes[j] = votes[i] + first, votes[j] + 1 - first
    return jnp.stack(votes, axis=1)


def _pair_probabilities(scores: Any, prob_a: Floats, prob_b: Floats) -> Any:
    """How likely the first class of each pair is."""
    slope, offset = jnp.asarray(prob_a, scores.dtype), jnp.asarray(prob_b, scores.dtype)
    likely = jax.nn.sigmoid(-(scores * slope + offset))
    return jnp.clip(likely, SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY)


def _couple(pairs: Any, count: int) -> Any:
    """Probabilities of the classes that fit those of their pairs best: Wu, Lin and Weng 2004, their second method."""
    first, second = (np.array(side) for side in zip(*combinations(range(count), 2), strict=True))
    r = jnp.zeros((pairs.shape[0], count, count), pairs.dtype)
    r = r.at[:, first, second].set(pairs).at[:, second, first].set(1 - pairs)
    opposite = jnp.swapaxes(r, 1, 2)
    diagonal = jnp.sum(opposite * opposite, axis=2)
    q = jnp.where(np.eye(count, dtype=bool), diagonal[:, :, None], -opposite * r)

    def improve(_: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        p, done = state
        qp = jnp.einsum("nij,nj->ni", q, p)
        pqp = jnp.sum(p * qp, axis=1)
        done = done | (jnp.max(jnp.abs(qp - pqp[:, None]), axis=1) < 0.005 / count)
        better = p
        for t in range(count):
            change = (pqp - qp[:, t]) / q[:, t, t]
            better = better.at[:, t].add(change)
            pqp = (pqp + change * (change * q[:, t, t] + 2 * qp[:, t])) / (1 + change) ** 2
            qp = (qp + change[:, None] * q[:, t]) / (1 + change)[:, None]
            better = better / (1 + change)[:, None]
        return jnp.where(done[:, None], p, better), done

    start = jnp.full((pairs.shape[0], count), 1 / count, pairs.dtype)
    return jax.lax.fori_loop(0, COUPLING_STEPS, improve, (start, jnp.zeros(pairs.shape[0], bool)))[0]
