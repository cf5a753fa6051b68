"""A classifier on features: scores of a new linear layer, behind a model that stays what it was."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxtrain.authoring import add_classifier, cut, make_trainable
from onnxtrain.errors import ModelError, UnsupportedError
from tests.authoring.inference_models import convolutional, mlp
from tests.authoring.training_graphs import infer

IMAGE = np.random.default_rng(0).normal(size=(2, 1, 6, 6)).astype(np.float32)


def stored(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_scores_are_a_linear_map_of_the_features():
    features = cut(convolutional(), "flat")
    model = add_classifier(convolutional(), "flat", 3, seed=1)
    onnx.checker.check_model(model, full_check=True)
    (given,), (scores,) = infer(features, {"x": IMAGE}), infer(model, {"x": IMAGE})
    weight, bias = (stored(model)[f"classifier.{part}"] for part in ("weight", "bias"))
    assert weight.any()
    assert not bias.any()
    np.testing.assert_allclose(scores, given @ weight + bias, rtol=1e-5, atol=1e-6)
    assert [value.name for value in model.graph.output] == ["logits"]


def test_what_leads_to_the_features_is_byte_identical():
    features = cut(convolutional(), "flat")
    model = add_classifier(convolutional(), "flat", 3)
    assert list(model.graph.node[:-2]) == list(features.graph.node)
    assert list(model.graph.initializer[:-2]) == list(features.graph.initializer)


def test_features_may_have_places_and_each_place_gets_scores():
    model = add_classifier(convolutional(), "active1", 3)
    (scores,) = infer(model, {"x": IMAGE})
    assert scores.shape == (2, 4, 4, 3)


def test_the_seed_decides_what_is_drawn():
    first, again, other = (stored(add_classifier(mlp(), "active", 2, seed=seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first["classifier.weight"], again["classifier.weight"])
    assert not np.array_equal(first["classifier.weight"], other["classifier.weight"])


def test_names_that_are_taken_get_a_number():
    model = add_classifier(add_classifier(mlp(), "active", 4), "logits", 2)
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.output] == ["logits_1"]
    assert stored(model)["classifier.weight_1"].shape == (4, 2)


def test_an_old_file_lists_the_new_tensors_as_inputs():
    model = mlp()
    model.ir_version = 3
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in model.graph.initializer
    )
    onnx.checker.check_model(add_classifier(model, "active", 2), full_check=True)


def test_the_new_layer_alone_can_be_trained():
    prepared = make_trainable(add_classifier(mlp(), "active", 2), trainable="classifier.*")
    assert {binding.key for binding in prepared.training_info[0].update_binding} >= {"classifier.weight"}
    assert not {binding.key for binding in prepared.training_info[0].update_binding} & {"W1", "b1"}


@pytest.mark.parametrize(
    ("features", "options", "error", "message"),
    [
        ("nowhere", {}, ModelError, "computes no value 'nowhere'"),
        ("active", {"classes": 0}, ModelError, "must be 1 or more"),
        ("active", {"initialize": "keep"}, UnsupportedError, "has nothing to keep"),
    ],
)
def test_what_cannot_be_is_refused(features, options, error, message):
    with pytest.raises(error, match=message):
        add_classifier(mlp(), features, **{"classes": 2, **options})


def test_features_of_an_unknown_size_are_refused():
    model = mlp()
    model.graph.input[0].type.tensor_type.shape.dim[-1].dim_param = "size"
    with pytest.raises(ModelError, match="known size along the last axis, but 'x'"):
        add_classifier(model, "x", 2)


def test_an_opset_without_broadcasting_is_refused():
    model = mlp()
    model.opset_import[0].version = 6
    with pytest.raises(UnsupportedError, match="needs operators of opset 7"):
        add_classifier(model, "active", 2)
