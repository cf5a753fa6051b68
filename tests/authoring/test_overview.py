"""What would be trained is shown before anything is written."""

from __future__ import annotations

import pytest

from onnxtrain.authoring import make_trainable
from onnxtrain.authoring.overview import byte_size, describe_weight, weights_of
from onnxtrain.authoring.tying import Tie
from onnxtrain.errors import ModelError
from tests.authoring.inference_models import convolutional, with_branches, with_function
from tests.authoring.test_tying import language_model
from tests.authoring.training_graphs import trained


@pytest.mark.parametrize("network", [convolutional, with_branches, with_function, language_model])
@pytest.mark.parametrize("options", [{}, {"trainable": "last:1"}, {"frozen": "first:1"}])
def test_the_overview_names_what_is_trained(network, options):
    weights = weights_of(network(), **options).weights
    assert [weight.name for weight in weights] == trained(make_trainable(network(), **options))


def test_every_weight_has_a_layer_whether_it_is_trained_or_not():
    found = weights_of(convolutional(), trainable="W")
    numbers = {"kernel1": 1, "scale1": 1, "bias1": 1, "kernel2": 2, "scale2": 2, "bias2": 2, "W": 3, "b": 3}
    assert found.layers == numbers


def test_sizes_are_those_of_the_values():
    found = weights_of(convolutional(), trainable="W")
    (weight,) = found.weights
    assert (describe_weight(weight), byte_size(weight)) == ("float32[8, 3]", 96)
    assert found.constant["kernel1"] == 4 * 1 * 9 * 4
    assert found.constant["mean2"] == 2 * 4
    assert "ratio" not in found.constant


def test_ties_are_found():
    assert weights_of(language_model()).ties == (Tie("table", "head", transposed=True),)


def test_what_cannot_be_prepared_is_refused_alike():
    with pytest.raises(ModelError, match="already"):
        weights_of(make_trainable(convolutional()))
