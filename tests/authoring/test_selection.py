"""Weights are chosen by name, by node and by layer."""

from __future__ import annotations

import pytest
from onnx import helper

from onnxtrain.authoring import make_trainable
from onnxtrain.errors import ModelError
from tests.authoring.inference_models import convolutional, mlp, with_branches, with_function
from tests.authoring.training_graphs import trained, updates

LAST_CONVOLUTION = ["kernel2", "scale2", "bias2"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("node:conv2", ["kernel2"]),
        ("node:norm*", ["scale1", "bias1", "scale2", "bias2"]),
        ("node:scores", ["W", "b"]),  # a node without a name goes by its output
        ("last:1", ["W", "b"]),
        ("last:2", [*LAST_CONVOLUTION, "W", "b"]),
        ("first:1", ["kernel1", "scale1", "bias1"]),
        (["first:1", "node:scores", "bias2"], ["kernel1", "scale1", "bias1", "bias2", "W", "b"]),
    ],
)
def test_a_pattern_means_weights(pattern, expected):
    assert trained(make_trainable(convolutional(), trainable=pattern)) == expected


def test_layers_are_frozen_alike():
    prepared = make_trainable(convolutional(), frozen="first:1")
    assert trained(prepared) == [*LAST_CONVOLUTION, "W", "b"]
    assert {"mean1", "variance1"}.isdisjoint(updates(prepared))


def test_freezing_a_normalization_by_its_node_freezes_its_statistics():
    prepared = make_trainable(convolutional(), frozen="node:norm1")
    assert {"mean1", "variance1"}.isdisjoint(updates(prepared))
    assert {"mean2", "variance2"} <= set(updates(prepared))


def test_a_node_has_the_weights_of_all_that_stands_inside():
    branches, call = with_branches(), with_function()
    branches.graph.node[0].name, call.graph.node[1].name = "choice", "block"
    assert len(trained(make_trainable(branches, trainable="node:choice"))) == 4
    assert trained(make_trainable(call, trainable="node:block")) == ["scale", "bias"]


def test_a_shared_weight_belongs_to_every_node_that_uses_it():
    model = mlp()
    model.graph.node.append(helper.make_node("Gemm", ["x", "W1"], ["hidden_again"], "again"))
    model.graph.node.append(helper.make_node("Gemm", ["hidden_again", "W2"], ["second"], transB=1))
    model.graph.node.append(helper.make_node("Add", ["scores", "second"], ["total"]))
    model.graph.output[0].name = "total"
    assert trained(make_trainable(model, trainable="node:again")) == ["W1"]
    assert trained(make_trainable(model, trainable="node:hidden")) == ["W1", "b1"]


def test_a_weight_whose_name_reads_like_a_pattern_means_itself():
    model = mlp()
    model.graph.initializer[0].name = model.graph.node[0].input[1] = "last:1"
    assert trained(make_trainable(model, trainable="last:1")) == ["last:1"]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("node:conv", "Did you mean 'conv2', 'conv1'"),
        ("node:?", "The nodes are 'conv1'"),
        ("last:0", "must be 1 to 3"),
        ("first:4", "must be 1 to 3"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused_with_what_there_is(pattern, words):
    with pytest.raises(ModelError, match=words):
        make_trainable(convolutional(), trainable=pattern)
