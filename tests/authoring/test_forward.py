"""The training-mode forward pass: what is copied, what is changed in it, and what stays with the inference graph."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnxtrain as ot
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


def test_freezing_a_normalization_inside_a_branch_keeps_its_statistics():
    prepared = make_trainable(normalization_in_branch(), frozen=["s", "t"])
    assert trained(prepared) == ["W"]
    assert {"m", "v"}.isdisjoint(updates(prepared))


NORMALIZATION = [weights("W", 4, 3), vector("s", 1, 2, 3), weights("t", 3), weights("m", 3), vector("v", 1, 2, 1)]
BODY_INPUTS = [helper.make_tensor_value_info("index", TensorProto.INT64, []), CHOICE]
X = np.random.default_rng(3).normal(size=(6, 4)).astype(np.float32)


def normalization_in_loop(count: int) -> onnx.ModelProto:
    """A Loop that normalizes a value `count` times with one set of statistics, and also gives every value."""
    inner = [
        node("Identity", ["choice"], ["go_on"]),
        node("BatchNormalization", ["value", "s", "t", "m", "v"], ["normal"], "norm", momentum=0.5),
        node("Identity", ["normal"], ["row"]),
    ]
    outputs = [helper.make_tensor_value_info("go_on", TensorProto.BOOL, []), floats("normal", "N", 3)]
    body = helper.make_graph(inner, "body", [*BODY_INPUTS, floats("value", "N", 3)], [*outputs, floats("row", "N", 3)])
    nodes = [
        node("MatMul", ["x", "W"], ["hidden"]),
        node("Loop", ["count", "", "hidden"], ["scores", "rows"], body=body),
    ]
    tensors = [*NORMALIZATION, numpy_helper.from_array(np.asarray(count, np.int64), "count")]
    return model_of(nodes, [floats("x", "N", 4)], [floats("scores", "N", 3)], tensors)


def normalization_in_scan() -> onnx.ModelProto:
    """A Scan over three rows, which normalizes each and adds them up."""
    inner = [
        node("BatchNormalization", ["row", "s", "t", "m", "v"], ["normal"], "norm", momentum=0.5),
        node("Add", ["total", "normal"], ["next"]),
    ]
    body = helper.make_graph(inner, "body", [floats("total", "N", 3), floats("row", "N", 3)], [floats("next", "N", 3)])
    nodes = [
        node("MatMul", ["x", "W"], ["hidden"]),
        node("Mul", ["hidden", "nothing"], ["zeros"]),
        node("Unsqueeze", ["hidden", "first"], ["row"]),
        node("Concat", ["row", "row", "row"], ["rows"], axis=0),
        node("Scan", ["zeros", "rows"], ["scores"], body=body, num_scan_inputs=1),
    ]
    tensors = [*NORMALIZATION, integers("first", 0), numpy_helper.from_array(np.asarray(0, np.float32), "nothing")]
    return model_of(nodes, [floats("x", "N", 4)], [floats("scores", "N", 3)], tensors)


def stepped(model: onnx.ModelProto, **inputs: object) -> tuple[onnx.ModelProto, ot.TrainingSession]:
    """The prepared model, checked, and a session after one step that moves no weight."""
    prepared = make_trainable(model, loss="mean_squared_error", optimizer="sgd", learning_rate=0.0)
    onnx.checker.check_model(combined(prepared), full_check=True)
    assert ot.validate(prepared) == []
    session = ot.TrainingSession(prepared)
    session.step({"x": X, "labels": np.zeros((6, 3), np.float32), **inputs})
    return prepared, session


def running(value: np.ndarray, times: int, momentum: float) -> tuple[np.ndarray, np.ndarray]:
    """The running statistics after normalizing the same values some times."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in NORMALIZATION}
    mean, variance = stored["m"], stored["v"]
    for _ in range(times):
        mean = momentum * mean + (1 - momentum) * value.mean(0)
        variance = momentum * variance + (1 - momentum) * value.var(0)
    return mean, variance


HIDDEN = X @ numpy_helper.to_array(NORMALIZATION[0])


@pytest.mark.parametrize("chosen", [True, False])
def test_a_branch_updates_its_statistics_when_it_is_taken(chosen):
    _, session = stepped(normalization_in_branch(), choice=np.asarray(chosen))
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in normalization_in_branch().graph.initializer}
    mean = 0.9 * stored["m"] + 0.1 * (X @ stored["W"]).mean(0)
    np.testing.assert_allclose(session.variables["m"], mean if chosen else stored["m"], rtol=1e-5)


def test_statistics_that_a_branch_stores_itself_are_updated():
    model = normalization_in_branch()
    branch = next(one.g for one in model.graph.node[1].attribute if one.name == "then_branch")
    for tensor in list(model.graph.initializer)[1:]:
        branch.initializer.add().CopyFrom(tensor)
        model.graph.initializer.remove(tensor)
    prepared, session = stepped(model, choice=np.asarray(True))
    assert {"m", "v"} <= set(updates(prepared))
    assert {"s", "t"} <= set(trained(prepared))
    assert (session.variables["m"] != numpy_helper.to_array(branch.initializer[2])).all()


@pytest.mark.parametrize("count", [0, 1])
def test_a_loop_updates_the_statistics_in_every_iteration(count):
    prepared, session = stepped(normalization_in_loop(count))
    mean, variance = running(HIDDEN, count, 0.5)
    np.testing.assert_allclose(session.variables["m"], mean, rtol=1e-5)
    np.testing.assert_allclose(session.variables["v"], variance, rtol=1e-5)
    (loop,) = nodes_of(prepared, "Loop")
    assert list(loop.input) == ["count", "", "hidden", "m", "v"]


def test_a_loop_carries_the_statistics_from_one_iteration_to_the_next():
    _, session = stepped(normalization_in_loop(3))
    # after the first iteration the values are normal: their mean is the bias, their variance the square of the scale
    mean, variance = running(HIDDEN, 1, 0.5)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in NORMALIZATION}
    for _ in range(2):
        mean, variance = 0.5 * (mean + stored["t"]), 0.5 * (variance + stored["s"] ** 2)
    np.testing.assert_allclose(session.variables["m"], mean, rtol=1e-4)
    np.testing.assert_allclose(session.variables["v"], variance, rtol=1e-3)


def test_a_scan_updates_the_statistics_with_every_row():
    _, session = stepped(normalization_in_scan())
    mean, variance = running(HIDDEN, 3, 0.5)
    np.testing.assert_allclose(session.variables["m"], mean, rtol=1e-5)
    np.testing.assert_allclose(session.variables["v"], variance, rtol=1e-5)


def test_a_normalization_that_stands_in_a_branch_of_a_loop_is_updated():
    inner = [node("BatchNormalization", ["value", "s", "t", "m", "v"], ["taken"], "norm", momentum=0.5)]
    then = helper.make_graph(inner, "then", [], [floats("taken", "N", 3)])
    other = helper.make_graph([node("Identity", ["value"], ["same"])], "else", [], [floats("same", "N", 3)])
    steps = [
        node("Identity", ["choice"], ["go_on"]),
        node("Equal", ["index", "zero"], ["is_first"]),
        node("If", ["is_first"], ["next"], then_branch=then, else_branch=other),
    ]
    outputs = [helper.make_tensor_value_info("go_on", TensorProto.BOOL, []), floats("next", "N", 3)]
    body = helper.make_graph(steps, "body", [*BODY_INPUTS, floats("value", "N", 3)], outputs)
    nodes = [
        node("MatMul", ["x", "W"], ["hidden"]),
        node("Loop", ["count", "", "hidden"], ["scores"], body=body),
    ]
    tensors = [*NORMALIZATION, numpy_helper.from_array(np.asarray(2, np.int64), "count")]
    tensors.append(numpy_helper.from_array(np.asarray(0, np.int64), "zero"))
    _, session = stepped(model_of(nodes, [floats("x", "N", 4)], [floats("scores", "N", 3)], tensors))
    mean, variance = running(HIDDEN, 1, 0.5)
    np.testing.assert_allclose(session.variables["m"], mean, rtol=1e-5)
    np.testing.assert_allclose(session.variables["v"], variance, rtol=1e-5)


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
