"""Dropout and BatchNormalization that an inference model has lost are put back on request."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain as ot
from onnxtrain.authoring import make_trainable
from onnxtrain.errors import ModelError
from tests.authoring.inference_models import convolutional, floats, mlp, model_of, with_constant_nodes
from tests.authoring.training_graphs import (
    algorithm,
    attributes,
    combined,
    infer,
    inference_part,
    node_of,
    nodes_of,
    trained,
    updates,
)

node = helper.make_node
X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)


def ratio_of(prepared: onnx.ModelProto, dropout: onnx.NodeProto) -> float:
    stored = [*prepared.graph.initializer, *algorithm(prepared).initializer]
    return float(next(numpy_helper.to_array(tensor) for tensor in stored if tensor.name == dropout.input[1]))


@pytest.mark.parametrize("pattern", ["act*", "node:relu", "active"])
def test_a_pattern_names_the_value_that_is_dropped(pattern):
    model = mlp()
    model.graph.node[1].name = "relu"
    prepared = make_trainable(model, dropout={pattern: 0.75})
    assert node_of(prepared, "Dropout").input[0] == "active"
    assert inference_part(prepared).graph == model.graph


@pytest.mark.parametrize("opset", [7, 12, 22])
def test_a_share_of_a_value_is_dropped(opset):
    prepared = make_trainable(mlp(opset), dropout={"active": 0.75})
    onnx.checker.check_model(combined(prepared), full_check=True)
    assert ot.validate(prepared) == []
    assert [one.input[0] for one in nodes_of(prepared, "Gemm")] == ["active/training"]
    fed = {"x": X, "labels": np.zeros(64, np.int64)}
    found = ot.TrainingSession(prepared, seed=1).step(fed, outputs=["active", "active/training"])
    plain, kept = np.asarray(found["active"]), np.asarray(found["active/training"])
    assert np.mean(kept[plain > 0] == 0) == pytest.approx(0.75, abs=0.1)


def test_dropout_may_stand_at_the_input_and_at_the_output():
    prepared = make_trainable(mlp(), dropout={"x": 0.1, "scores": 0.2})
    first, last = nodes_of(prepared, "Dropout")
    assert (first.input[0], ratio_of(prepared, first)) == ("x", pytest.approx(0.1))
    assert ratio_of(prepared, last) == pytest.approx(0.2)
    assert node_of(prepared, "SoftmaxCrossEntropyLoss").input[0] == last.output[0]


@pytest.mark.parametrize("opset", [11, 17])
def test_a_dropout_of_the_model_takes_another_ratio(opset):
    prepared = make_trainable(convolutional(opset), dropout={"node:dropout": 0.0}, frozen=["scale*", "bias*"])
    assert not nodes_of(prepared, "Dropout")
    assert not nodes_of(prepared, "RandomUniformLike")
    prepared = make_trainable(convolutional(), dropout={"kept": 0.5})
    assert ratio_of(prepared, node_of(prepared, "Dropout")) == 0.5


def test_a_dropout_that_was_exported_switched_off_is_switched_on():
    model = convolutional()
    model.graph.node[-2].input.append("mode")
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(False), "mode"))
    assert ratio_of(make_trainable(model), node_of(make_trainable(model), "Dropout")) == 0.25


def test_the_first_pattern_counts():
    prepared = make_trainable(mlp(), dropout={"active": 0.1, "*": 0.2})
    ratios = {dropout.name: ratio_of(prepared, dropout) for dropout in nodes_of(prepared, "Dropout")}
    assert ratios == pytest.approx(
        {f"training/dropout/{name}": 0.1 if name == "active" else 0.2 for name in ("x", "hidden", "active", "scores")}
    )


@pytest.mark.parametrize(
    ("dropout", "words"),
    [
        ({"relu*": 0.5}, r"There are 'x', 'hidden', 'active', 'scores'"),
        ({"W1": 0.5}, "depends on the data"),
        ({"active": 1.0}, r"0 <= ratio < 1"),
        ({"active": -0.1}, r"0 <= ratio < 1"),
    ],
)
def test_a_wrong_dropout_is_refused(dropout, words):
    with pytest.raises(ModelError, match=words):
        make_trainable(mlp(), dropout=dropout)


def folded(element_type: int = TensorProto.FLOAT, opset: int = 17) -> onnx.ModelProto:
    """A convolution, a transposed one in two groups, and two dense layers, all without normalization."""
    dtype = helper.tensor_dtype_to_np_dtype(element_type)
    nodes = [
        node("Conv", ["x", "K", "k"], ["a"], "conv"),
        node("Relu", ["a"], ["b"]),
        node("ConvTranspose", ["b", "T"], ["c"], "transposed", group=2),
        node("Flatten", ["c"], ["d"]),
        node("Gemm", ["d", "V", "v"], ["e"], "dense", transB=1),
        node("Gemm", ["e", "W"], ["scores"], "head") if opset > 10 else node("MatMul", ["e", "W"], ["scores"], "head"),
    ]
    shapes = {"K": (4, 2, 3, 3), "k": (4,), "T": (4, 3, 3, 3), "V": (5, 216), "v": (5,), "W": (5, 3)}
    tensors = []
    for name, shape in shapes.items():
        values = np.random.default_rng(sum(name.encode())).normal(0, 0.3, shape)
        tensors.append(numpy_helper.from_array(values.astype(dtype), name))
    x, scores = (
        floats("x", "N", 2, 6, 6, element_type=element_type),
        floats("scores", "N", 3, element_type=element_type),
    )
    return model_of(nodes, [x], [scores], tensors, opset=opset)


@pytest.mark.parametrize("opset", [8, 9, 14, 17])
def test_normalization_is_put_back_without_changing_what_is_inferred(opset):
    prepared = make_trainable(folded(opset=opset), normalize=["node:conv", "T", "node:dense"])
    onnx.checker.check_model(combined(prepared), full_check=True)
    assert ot.validate(prepared) == []
    x = np.random.default_rng(1).normal(size=(3, 2, 6, 6)).astype(np.float32)
    np.testing.assert_allclose(
        infer(prepared, {"x": x})[0], infer(folded(opset=opset), {"x": x})[0], rtol=1e-5, atol=1e-5
    )
    norms = [one for one in prepared.graph.node if one.op_type == "BatchNormalization"]
    assert [one.name for one in norms] == [f"{layer}/normalization" for layer in ("conv", "transposed", "dense")]
    sizes = {tensor.name: list(tensor.dims) for tensor in prepared.graph.initializer}
    assert [sizes[norm.input[3]] for norm in norms] == [[4], [6], [5]]
    added = {f"{layer}/{what}" for layer in ("conv", "transposed", "dense") for what in ("scale", "bias")}
    assert set(trained(prepared)) == {"K", "k", "T", "V", "v", "W"} | added
    assert {f"conv/{what}" for what in ("running_mean", "running_variance")} <= set(updates(prepared))


def test_normalization_is_put_back_in_the_type_of_its_layer():
    prepared = make_trainable(folded(TensorProto.DOUBLE), normalize="K")
    onnx.checker.check_model(combined(prepared), full_check=True)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in prepared.graph.initializer}
    assert stored["conv/scale"].dtype == np.float64


def test_normalization_trains_with_the_statistics_of_the_batch():
    prepared = make_trainable(folded(), normalize="node:conv")
    (norm,) = nodes_of(prepared, "BatchNormalization")
    assert attributes(norm)["training_mode"] == 1
    session = ot.TrainingSession(prepared)
    x = np.random.default_rng(1).normal(5, 1, size=(8, 2, 6, 6)).astype(np.float32)
    before = session.variables["conv/running_mean"]
    session.step({"x": x, "labels": np.zeros(8, np.int64)})
    assert np.abs(session.variables["conv/running_mean"] - before).min() > 0


@pytest.mark.parametrize("keep_constants", [False, True])
def test_normalization_that_was_put_back_is_folded_at_export(tmp_path, keep_constants):
    model = with_constant_nodes(folded()) if keep_constants else folded()
    prepared = make_trainable(model, normalize=["K", "V"], keep_constants=keep_constants, learning_rate=0.05)
    session = ot.TrainingSession(prepared)
    x = np.random.default_rng(1).normal(2, 3, size=(8, 2, 6, 6)).astype(np.float32)
    for _ in range(3):
        session.step({"x": x, "labels": np.arange(8) % 3})
    session.save(tmp_path / "saved.onnx")
    session = ot.TrainingSession(tmp_path / "saved.onnx")
    session.export(tmp_path / "exported.onnx")
    exported = onnx.load(tmp_path / "exported.onnx")
    kinds = [one.op_type for one in exported.graph.node]
    assert sorted(kinds) == sorted(one.op_type for one in model.graph.node)
    assert [value.name for value in exported.graph.output] == ["scores"]
    expected = np.asarray(session.infer({"x": x})["scores"])
    np.testing.assert_allclose(infer(exported, {"x": x})[0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("pattern", ["v", "node:norm1", "conv*"])
def test_only_kernels_of_layers_without_normalization_can_get_one(pattern):
    model = convolutional() if pattern == "node:norm1" else folded()
    with pytest.raises(ModelError, match="matches no"):
        make_trainable(model, normalize=pattern)


def test_a_layer_that_has_a_normalization_gets_no_second_one():
    prepared = make_trainable(convolutional(), normalize="*")
    kinds = [one.op_type for one in prepared.graph.node]
    assert kinds.count("BatchNormalization") == 3  # its own two, and one after the dense layer


def test_a_model_without_such_layers_says_so():
    model = model_of(
        [node("MatMul", ["x", "W"], ["scores"])],
        [floats("x", "N", 4)],
        [floats("scores", "N", 3)],
        [numpy_helper.from_array(np.ones((4, 3), np.float32), "W")],
    )
    with pytest.raises(ModelError, match="no Conv, ConvTranspose or Gemm"):
        make_trainable(model, normalize="*")
