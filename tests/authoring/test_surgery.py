"""Cutting a model and adding outputs: what stays is what it was."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxtrain as ot
from onnxtrain.authoring import add_outputs, cut, make_trainable
from onnxtrain.errors import ModelError
from tests.authoring.inference_models import (
    convolutional,
    floats,
    mlp,
    with_branches,
    with_constant_nodes,
    with_function,
)
from tests.authoring.training_graphs import infer

IMAGE = np.random.default_rng(0).normal(size=(2, 1, 6, 6)).astype(np.float32)


def named(model: onnx.ModelProto) -> set[str]:
    return {tensor.name for tensor in model.graph.initializer}


def test_a_cut_model_gives_the_value_at_which_it_ends():
    model = convolutional()
    expected = infer(add_outputs(model, "active1"), {"x": IMAGE})[1]
    shortened = cut(model, "active1")
    onnx.checker.check_model(shortened, full_check=True)
    (found,) = infer(shortened, {"x": IMAGE})
    np.testing.assert_array_equal(found, expected)


def test_a_cut_drops_what_the_new_outputs_do_not_need():
    model = convolutional()
    model.graph.input.append(floats("unused", 3))
    model.graph.value_info.extend([floats("active1", "N", 4, 4, 4), floats("flat", "N", 8)])
    shortened = cut(model, "active1")
    assert named(shortened) == {"kernel1", "scale1", "bias1", "mean1", "variance1"}
    assert [node.op_type for node in shortened.graph.node] == ["Conv", "BatchNormalization", "Relu"]
    assert [value.name for value in shortened.graph.input] == ["x"]
    assert [value.name for value in shortened.graph.value_info] == ["active1"]


def test_what_a_cut_keeps_is_byte_identical():
    model = convolutional()
    model.graph.node[0].doc_string = "the first layer"
    model.metadata_props.add(key="author", value="someone")
    shortened = cut(model, ["active1", "conv1"])
    assert [value.name for value in shortened.graph.output] == ["active1", "conv1"]
    assert list(shortened.graph.node) == list(model.graph.node[:3])
    assert list(shortened.graph.initializer) == list(model.graph.initializer[1:6])
    assert shortened.metadata_props == model.metadata_props
    assert shortened.opset_import == model.opset_import


@pytest.mark.parametrize(("value", "count"), [("inner", 1), ("hidden", 0)])
def test_functions_go_when_nothing_calls_them(value, count):
    assert len(cut(with_function(), value).functions) == count


def test_what_a_branch_captures_is_kept():
    shortened = cut(with_branches(), "chosen")
    assert {value.name for value in shortened.graph.input} == {"choice", "x"}


def test_weights_in_constant_nodes_are_dropped_too():
    shortened = cut(with_constant_nodes(mlp()), "active")
    assert [node.output[0] for node in shortened.graph.node] == ["W1", "b1", "hidden", "active"]


def test_an_output_is_added_after_those_that_there_are():
    model = mlp()
    added = add_outputs(model, ["active", "scores"])
    assert [value.name for value in added.graph.output] == ["scores", "active"]
    assert added.graph.output[1].type.tensor_type.elem_type == TensorProto.FLOAT
    del added.graph.output[1]
    assert added == model


def test_a_training_model_keeps_its_training_information_when_it_gets_an_output():
    prepared = make_trainable(mlp())
    added = add_outputs(prepared, "active")
    assert added.training_info == prepared.training_info
    assert ot.validate(added) == []
    session = ot.TrainingSession(added)
    assert set(session.infer({"x": np.ones((2, 4), np.float32)})) == {"scores", "active"}


def test_a_training_model_is_not_cut():
    with pytest.raises(ModelError, match="Export it for inference first"):
        cut(make_trainable(mlp()), "active")


@pytest.mark.parametrize("change", [add_outputs, cut])
def test_a_value_that_does_not_exist_is_refused_with_those_like_it(change):
    with pytest.raises(ModelError, match="Did you mean 'active1'"):
        change(convolutional(), "activ1")


def test_a_value_of_unknown_type_is_refused():
    model = mlp()
    model.graph.node.append(helper.make_node("Mystery", ["active"], ["secret"], domain="vendor"))
    model.opset_import.append(helper.make_opsetid("vendor", 1))
    with pytest.raises(ModelError, match="nothing says of which type"):
        cut(model, "secret")


@pytest.mark.parametrize("change", [add_outputs, cut])
def test_the_given_model_is_never_changed(change):
    model = convolutional()
    before = model.SerializeToString(deterministic=True)
    change(model, "active1")
    assert model.SerializeToString(deterministic=True) == before
