from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lowering.elsewhere import Case, assert_equal_to_onnxruntime
from tests.lowering.one_node import run_node

LABELS = np.array([[1, 0, 4], [2, 2, 1]])
WEIGHTS = np.array([1, 0.5, 2, 3, 0.25], np.float32)

CASES = [
    Case(op_type, 13, [(2, 5, 3), LABELS, *weights], {"reduction": reduction, **ignored}, outputs)
    for op_type, outputs in (("SoftmaxCrossEntropyLoss", 2), ("NegativeLogLikelihoodLoss", 1))
    for reduction in ("none", "sum", "mean")
    for weights in ([], [WEIGHTS])
    for ignored in ({}, {"ignore_index": 2})
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {len(case.inputs)} inputs")
def test_loss_agrees_with_onnxruntime(case: Case, x64: None) -> None:
    assert_equal_to_onnxruntime(case)


def cross_entropy(scores: Any, labels: Any, **attributes: Any) -> Any:
    return run_node("SoftmaxCrossEntropyLoss", [scores, np.asarray(labels)], opset=13, attributes=attributes)[0]


def test_the_mean_divides_by_the_labels_that_count(x64: None) -> None:
    loss = cross_entropy(np.zeros((2, 3), np.float32), [0, -100], ignore_index=-100)
    np.testing.assert_allclose(loss, np.log(3), rtol=1e-6)


def test_with_no_label_left_the_mean_and_its_gradient_are_zero(x64: None) -> None:
    def loss(scores: Any) -> Any:
        return cross_entropy(scores, [-1, -1], ignore_index=-1)

    scores = jnp.ones((2, 3), jnp.float32)
    assert loss(scores) == 0
    np.testing.assert_array_equal(jax.grad(loss)(scores), np.zeros((2, 3)))


def test_an_ignored_class_stays_in_the_softmax(x64: None) -> None:
    scores = np.array([[9, 0, 0], [0, 0, 0]], np.float32)
    loss = cross_entropy(scores, [1, 0], ignore_index=0)
    np.testing.assert_allclose(loss, np.log(2 + np.exp(9)), rtol=1e-6)


@pytest.mark.parametrize("label", [3, -1])
def test_a_label_outside_the_classes_gives_nan(label: int, x64: None) -> None:
    assert np.isnan(cross_entropy(np.zeros((1, 3), np.float32), [label]))


def test_an_ignored_row_has_no_gradient_even_where_its_scores_are_infinite(x64: None) -> None:
    scores = jnp.array([[0.0, 1.0], [-jnp.inf, 0.0]], jnp.float32)
    gradient = jax.grad(lambda scores: cross_entropy(scores, [0, 7], ignore_index=7))(scores)
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[1], [0, 0])


@pytest.mark.parametrize("size", [100, 1e4])
def test_gradient_of_large_scores_is_finite(size: float, x64: None) -> None:
    scores = jnp.array([[size, -size], [-size, size]], jnp.float32)
    gradient = jax.grad(lambda scores: cross_entropy(scores, [0, 0]))(scores)
    np.testing.assert_allclose(gradient, [[0, 0], [-0.5, 0.5]], atol=1e-6)


def test_half_precision_losses_are_summed_in_single_precision(x64: None) -> None:
    scores = np.zeros((4096, 2), np.float16)
    loss = cross_entropy(scores, np.zeros(4096, np.int64), reduction="mean")
    assert loss.dtype == np.float16
    np.testing.assert_allclose(loss, np.log(2), rtol=1e-3)
