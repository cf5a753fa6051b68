"""Means of scalar outputs, and accuracy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from onnxtrain.training.metrics import RunningMeans, accuracy, matches_classes


def test_means_weigh_each_batch_by_its_examples() -> None:
    means = RunningMeans()
    means.add(3, {"loss": jnp.float32(1.0)})
    means.add(1, {"loss": jnp.float32(5.0)})
    assert means.fetch() == {"loss": 2.0}


def test_means_go_on_after_they_were_fetched() -> None:
    means = RunningMeans()
    means.add(1, {"loss": np.float32(2.0)})
    assert means.fetch() == {"loss": 2.0}
    means.add(1, {"loss": np.float32(4.0)})
    assert means.fetch() == {"loss": 3.0}


def test_an_output_with_one_element_in_one_dimension_counts_as_a_scalar() -> None:
    means = RunningMeans()
    means.add(2, {"loss": jnp.array([0.5])})
    assert means.fetch() == {"loss": 0.5}


@pytest.mark.parametrize("value", [jnp.ones((2, 3)), jnp.int32(3), [jnp.float32(1.0)]])
def test_outputs_that_are_no_floating_scalars_are_passed_over(value: object) -> None:
    means = RunningMeans()
    means.add(2, {"loss": jnp.float32(1.0), "other": value})
    assert means.fetch() == {"loss": 1.0}


def test_nothing_added_means_nothing_measured() -> None:
    assert RunningMeans().fetch() == {}


@pytest.mark.parametrize(
    ("scores", "labels", "answer"),
    [
        (np.zeros((4, 3), np.float32), np.zeros(4, np.int64), True),
        (np.zeros((4, 3, 5), np.float32), np.zeros((4, 5), np.int32), True),
        (np.zeros((4, 3), np.float32), np.zeros(4, np.float32), False),
        (np.zeros((4, 3), np.int64), np.zeros(4, np.int64), False),
        (np.zeros((4, 1), np.float32), np.zeros(4, np.int64), False),
        (np.zeros((4, 3), np.float32), np.zeros((4, 3), np.int64), False),
        (np.zeros(4, np.float32), np.zeros(4, np.int64), False),
    ],
)
def test_class_ids_are_integers_with_one_place_for_each_list_of_scores(
    scores: np.ndarray, labels: np.ndarray, answer: bool
) -> None:
    assert matches_classes(scores, labels) is answer


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_accuracy_is_the_share_of_labels_hit_by_the_highest_score(dtype: type) -> None:
    scores = jnp.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    assert float(accuracy(scores, jnp.asarray(np.array([1, 0, 1, 0], dtype)))) == 0.75


def test_accuracy_of_images_counts_every_place() -> None:
    scores = jnp.zeros((1, 2, 2)).at[0, 1, 0].set(1.0)  # class 1 in the first place, class 0 in the second
    assert float(accuracy(scores, jnp.array([[1, 1]]))) == 0.5
