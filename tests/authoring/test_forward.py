"""The training-mode forward pass: what is copied, what is changed in it, and what stays with the inference graph."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxtrain.authoring import make_trainable
from onnxtrain.authoring.protos import needed_nodes
from onnxtrain.errors import UnsupportedError
from tests.authoring.inference_models import (
    convolutional,
    floats,
    integers,
    mlp,
    model_of,
    vector,
    weights,
    with_function,
)
from tests.authoring.training_graphs import (
    algorithm,
    attributes,
    combined,
    infer,
    inference_part,
    nodes_of,
    trained,
    updates,
)

node = helper.make_node
STATISTICS = {"mean1", "variance1", "mean2", "variance2"}


def test_a_model_without_either_reads_the_inference_graph_directly():
    kinds = [one.op_type for one in algorithm(make_trainable(mlp())).node]
    assert "Gemm" not in kinds
    assert "Relu" not in kinds


def test_the_copy_begins_at_the_first_batch_normalization():
    prepared = make_trainable(convolutional())
    (copied,) = nodes_of(prepared, "Conv")  # the second one; the first is read from the inference graph
    first, second = nodes_of(prepared, "BatchNormalization")
    assert first.input[0] == "conv1"
    assert second.input[0] == copied.output[0] != "conv2"
    assert [one.name for one in (first, second)] == ["training/norm1", "training/norm2"]
    assert attributes(first) == pytest.approx({"training_mode": 1, "epsilon": 1e-5, "momentum": 0.8})


@pytest.mark.spec("T-21")
def test_the_inference_graph_stays_in_inference_mode():
    prepared = make_trainable(convolutional())
    norms = [one for one in prepared.graph.node if one.op_type == "BatchNormalization"]
    assert all(len(norm.output) == 1 and "training_mode" not in attributes(norm) for norm in norms)


def test_running_statistics_are_updated_by_the_copy():
    prepared = make_trainable(convolutional())
    first, second = nodes_of(prepared, "BatchNormalization")
    bound = updates(prepared)
    assert [bound["mean1"], bound["variance1"]] == list(first.output[1:])
    assert [bound["mean2"], bound["variance2"]] == list(second.output[1:])


def test_dropout_is_in_training_mode_in_the_copy_alone():
    prepared = make_trainable(convolutional())
    (dropout,) = nodes_of(prepared, "Dropout")
    mode = next(one for one in algorithm(prepared).initializer if one.name == dropout.input[2])
    assert numpy_helper.to_array(mode) == np.asarray(True)
    assert dropout.input[1] == "ratio"


@pytest.mark.parametrize("opset", [11, 17])
def test_a_dropout_that_drops_nothing_is_not_copied(opset):
    prepared = make_trainable(convolutional(opset, ratio=0.0), frozen=["scale*", "bias*"])
    assert not nodes_of(prepared, "Dropout")
    assert not nodes_of(prepared, "RandomUniformLike")
    assert not nodes_of(prepared, "Gemm")


@pytest.mark.parametrize("frozen", [["scale1", "bias1"], ["scale*", "bias*"]])
def test_freezing_scale_and_bias_freezes_the_statistics(frozen):
    kept = {"mean1", "variance1"} if "scale1" in frozen else STATISTICS
    assert STATISTICS - set(updates(make_trainable(convolutional(), frozen=frozen))) == kept


def test_a_normalization_with_one_trained_parameter_is_in_training_mode():
    assert set(updates(make_trainable(convolutional(), frozen=["scale1", "scale2"]))) >= STATISTICS


def test_training_only_the_last_layer_freezes_every_statistic():
    assert not STATISTICS & set(updates(make_trainable(convolutional(), trainable=["W", "b"])))


def test_a_function_is_written_out_in_the_copy_and_called_by_the_inference_graph():
    prepared = make_trainable(with_function())
    assert [one.op_type for one in prepared.graph.node] == ["MatMul", "Block", "MatMul"]
    assert not nodes_of(prepared, "Block")
    (norm,) = nodes_of(prepared, "BatchNormalization")
    assert list(norm.input) == ["hidden", "scale", "bias", "mean", "variance"]
    assert {"mean", "variance"} <= set(updates(prepared))


def in_branch(inner: list, outputs: list) -> list:
    """An If with these nodes in its first branch and the plain value in its second."""
    other = helper.make_graph([node("Identity", ["hidden"], ["plain"])], "else", [], [floats("plain", "N", 3)])
    first = helper.make_graph(inner, "then", [], outputs)
    return [
        node("MatMul", ["x", "W"], ["hidden"]),
        node("If", ["choice"], ["scores"], then_branch=first, else_branch=other),
    ]


CHOICE = helper.make_tensor_value_info("choice", TensorProto.BOOL, [])


@pytest.mark.parametrize("opset", [11, 17])
def test_dropout_inside_a_branch_is_in_training_mode_in_the_copy(opset):
    nodes = in_branch([node("Dropout", ["hidden"], ["kept"])], [floats("kept", "N", 3)])
    model = model_of(
        nodes, [CHOICE, floats("x", "N", 4)], [floats("scores", "N", 3)], [weights("W", 4, 3)], opset=opset
    )
    (choice,) = nodes_of(make_trainable(model), "If")
    kinds = [one.op_type for one in attributes(choice)["then_branch"].node]  # pyright: ignore[reportAttributeAccessIssue]
    assert kinds == (["Dropout"] if opset >= 12 else ["RandomUniformLike", "Less", "Not", "Cast", "Mul", "Mul"])


def normalization_in_branch():
    inner = [node("BatchNormalization", ["hidden", "s", "t", "m", "v"], ["normal"], "norm")]
    tensors = [weights("W", 4, 3), vector("s", 1, 1, 1), weights("t", 3), weights("m", 3), vector("v", 1, 1, 1)]
    nodes = in_branch(inner, [floats("normal", "N", 3)])
    return model_of(nodes, [CHOICE, floats("x", "N", 4)], [floats("scores", "N", 3)], tensors)


def test_a_normalization_inside_a_branch_says_how_to_go_on():
    with pytest.raises(UnsupportedError, match=r"'norm'.*frozen=\['s', 't'\]"):
        make_trainable(normalization_in_branch())
    assert trained(make_trainable(normalization_in_branch(), frozen=["s", "t"])) == ["W"]


def test_a_model_exported_in_training_mode_infers_in_inference_mode():
    model = convolutional(17)
    for one in model.graph.node:
        if one.op_type == "BatchNormalization":
            one.attribute.append(helper.make_attribute("training_mode", 1))
            one.output.extend([f"{one.name}_mean", f"{one.name}_variance"])
        if one.op_type == "Dropout":
            one.input.append("mode")
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(True), "mode"))
    x = np.random.default_rng(0).normal(size=(3, 1, 6, 6)).astype(np.float32)
    prepared = make_trainable(model)
    np.testing.assert_array_equal(infer(prepared, {"x": x})[0], infer(convolutional(17), {"x": x})[0])
    assert set(updates(prepared)) >= STATISTICS


def test_a_dropout_that_is_switched_by_an_input_is_left_to_it():
    nodes = [node("MatMul", ["x", "W"], ["hidden"]), node("Dropout", ["hidden", "", "mode"], ["scores"])]
    mode = helper.make_tensor_value_info("mode", TensorProto.BOOL, [])
    model = model_of(nodes, [floats("x", "N", 4), mode], [floats("scores", "N", 3)], [weights("W", 4, 3)])
    assert not nodes_of(make_trainable(model), "Dropout")


def test_statistics_that_are_computed_are_no_running_statistics():
    nodes = [
        node("MatMul", ["x", "W"], ["hidden"]),
        node("ReduceMean", ["hidden"], ["average"], axes=[0], keepdims=0),
        node("BatchNormalization", ["hidden", "s", "t", "average", "v"], ["scores"]),
    ]
    tensors = [weights("W", 4, 3), vector("s", 1, 1, 1), weights("t", 3), vector("v", 1, 1, 1)]
    prepared = make_trainable(model_of(nodes, [floats("x", "N", 4)], [floats("scores", "N", 3)], tensors))
    assert not nodes_of(prepared, "BatchNormalization")
    assert "v" not in updates(prepared)


def test_normalization_per_activation_is_refused_by_name():
    nodes = [
        node("MatMul", ["x", "W"], ["hidden"]),
        node("BatchNormalization", ["hidden", "s", "t", "m", "v"], ["scores"], "norm", spatial=0),
    ]
    tensors = [weights("W", 4, 3), vector("s", 1, 1, 1), weights("t", 3), weights("m", 3), vector("v", 1, 1, 1)]
    model = model_of(nodes, [floats("x", "N", 4)], [floats("scores", "N", 3)], tensors, opset=8)
    with pytest.raises(UnsupportedError, match="spatial=0"):
        make_trainable(model)


def evaluate(prepared, values: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX's reference evaluator computes for values of the combined graph."""
    graph = combined(prepared)
    kept = model_of(
        needed_nodes(graph.graph.node, values)[0],
        [value for value in graph.graph.input if value.name != "labels"],
        [helper.make_empty_tensor_value_info(name) for name in values],
        list(graph.graph.initializer),
        opset=graph.opset_import[0].version,
    )
    kept.opset_import.extend(graph.opset_import[1:])
    return ReferenceEvaluator(kept).run(None, inputs)  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("opset", [7, 9, 13, 14, 15, 20])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (2, 3, 2, 2)])
@pytest.mark.spec("T-11")
def test_batch_normalization_in_training_mode_is_the_same_at_every_opset(opset, shape):
    tensors = [vector("slope", 1.0), vector("s", 1, 2, 3), weights("t", 3), weights("m", 3), vector("v", 1, 2, 3)]
    nodes = [
        node("PRelu", ["x", "slope"], ["same"]),
        node("BatchNormalization", ["same", "s", "t", "m", "v"], ["scores"], "norm", momentum=0.7, epsilon=1e-3),
    ]
    declared = ["N", *shape[1:]]
    model = model_of(nodes, [floats("x", *declared)], [floats("scores", *declared)], tensors, opset=opset)
    prepared = make_trainable(model, loss="mean_squared_error")
    bound = updates(prepared)
    x = np.random.default_rng(1).normal(1, 2, size=shape).astype(np.float32)
    y, mean, variance = evaluate(prepared, ["scores/training", bound["m"], bound["v"]], {"x": x})

    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}
    axes, by_channel = (0, *range(2, x.ndim)), (1, 3) + (1,) * (x.ndim - 2)
    batch_mean, batch_variance = x.mean(axes), x.var(axes)  # of the population, as ONNX has it
    normal = (x - batch_mean.reshape(by_channel)) / np.sqrt(batch_variance.reshape(by_channel) + 1e-3)
    expected = normal * stored["s"].reshape(by_channel) + stored["t"].reshape(by_channel)
    np.testing.assert_allclose(y, expected, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(mean, 0.7 * stored["m"] + 0.3 * batch_mean, rtol=1e-5)
    np.testing.assert_allclose(variance, 0.7 * stored["v"] + 0.3 * batch_variance, rtol=1e-5)


@pytest.mark.parametrize("opset", [7, 9, 11])
def test_dropout_in_parts_keeps_the_expectation(opset):
    nodes = [node("Dropout", ["x"], ["kept"], ratio=0.25), node("MatMul", ["kept", "W"], ["scores"])]
    model = model_of(nodes, [floats("x", "N", 8)], [floats("scores", "N", 3)], [weights("W", 8, 3)], opset=opset)
    x = np.random.default_rng(2).normal(size=(500, 8)).astype(np.float32)
    (kept,) = evaluate(make_trainable(model), ["kept/training"], {"x": x})
    is_kept = kept != 0
    np.testing.assert_allclose(kept[is_kept], x[is_kept] / 0.75, rtol=1e-6)
    assert np.mean(is_kept) == pytest.approx(0.75, abs=0.05)


def test_what_follows_a_shape_is_copied_with_its_subgraphs():
    body = helper.make_graph([node("Add", ["kept", "hidden"], ["sum"])], "then", [], [floats("sum", "N", 3)])
    other = helper.make_graph([node("Identity", ["kept"], ["same"])], "else", [], [floats("same", "N", 3)])
    nodes = [
        node("MatMul", ["x", "W"], ["hidden"]),
        node("Dropout", ["hidden"], ["kept"]),
        node("If", ["choice"], ["chosen"], then_branch=body, else_branch=other),
        node("Reshape", ["chosen", "shape"], ["scores"]),
    ]
    model = model_of(
        nodes,
        [CHOICE, floats("x", "N", 4)],
        [floats("scores", "N", 3)],
        [weights("W", 4, 3), integers("shape", -1, 3)],
    )
    prepared = make_trainable(model)
    (choice,) = nodes_of(prepared, "If")
    branches = attributes(choice)
    (added,) = branches["then_branch"].node  # pyright: ignore[reportAttributeAccessIssue]
    assert list(added.input) == ["kept/training", "hidden"]
    assert inference_part(prepared).graph.node[2].attribute[0].g.node[0].input[0] == "kept"
