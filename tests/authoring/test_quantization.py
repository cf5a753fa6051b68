"""Quantization-aware training: the model rounds as the int8 model that export writes, and learns to live with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain as ot
from onnxtrain.authoring import fake_quantize, make_trainable
from onnxtrain.authoring.quantization import quantize, values_to_calibrate
from onnxtrain.errors import ModelError, UnsupportedError
from onnxtrain.training.calibration import calibrate
from tests.authoring.inference_models import (
    as_ir_3,
    convolutional,
    floats,
    mlp,
    model_of,
    vector,
    weights,
    with_constant_nodes,
)
from tests.authoring.training_graphs import combined, infer, trained

node = helper.make_node


def matmul_and_add(opset: int = 17) -> onnx.ModelProto:
    nodes = [
        node("MatMul", ["x", "W1"], ["product"]),
        node("Add", ["product", "b1"], ["hidden"]),
        node("Relu", ["hidden"], ["active"]),
        node("MatMul", ["active", "W2"], ["scores"]),
    ]
    tensors = [weights("W1", 4, 8), weights("b1", 8), weights("W2", 8, 3)]
    return model_of(nodes, [floats("x", "N", 4)], [floats("scores", "N", 3)], tensors, opset=opset)


def separable() -> onnx.ModelProto:
    """A convolution with groups, a residual connection and a bounded activation."""
    nodes = [
        node("Conv", ["x", "K1", "b1"], ["maps"], group=4, pads=[1, 1, 1, 1]),
        node("Clip", ["maps", "low", "high"], ["bounded"]),
        node("Conv", ["bounded", "K2"], ["mixed"]),
        node("Add", ["mixed", "x"], ["sum"]),
        node("GlobalAveragePool", ["sum"], ["pooled"]),
        node("Flatten", ["pooled"], ["flat"]),
        node("Gemm", ["flat", "W", "b"], ["scores"], transB=1),
    ]
    tensors = [weights("K1", 4, 1, 3, 3), weights("b1", 4), weights("K2", 4, 4, 1, 1), weights("W", 3, 4)]
    tensors += [
        weights("b", 3),
        *(numpy_helper.from_array(np.asarray(value, "float32"), name) for name, value in (("low", 0), ("high", 6))),
    ]
    return model_of(nodes, [floats("x", "N", 4, 6, 6)], [floats("scores", "N", 3)], tensors)


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "Gemm": mlp,
    "convolutions with BatchNormalization and Dropout": convolutional,
    "MatMul and Add": matmul_and_add,
    "groups and a residual connection": separable,
    "Constant nodes": lambda: with_constant_nodes(mlp()),
    "IR 3": lambda: as_ir_3(mlp(opset=8)),
}


def examples(model: onnx.ModelProto, count: int = 40) -> dict[str, np.ndarray]:
    dims = [dim.dim_value or count for dim in model.graph.input[0].type.tensor_type.shape.dim]
    return {model.graph.input[0].name: np.random.default_rng(0).normal(size=dims).astype(np.float32)}


def quantized(model: onnx.ModelProto, weights: str = "*") -> onnx.ModelProto:
    return fake_quantize(model, calibrate(model, examples(model), weights), weights)


def trained_session(model: onnx.ModelProto) -> ot.TrainingSession:
    session = ot.TrainingSession(make_trainable(model, learning_rate=1e-3), seed=0)
    inputs = examples(model)
    labels = np.random.default_rng(1).integers(3, size=40)
    for _ in range(2):
        session.step({**inputs, "labels": labels})
    return session


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_rounding_changes_outputs_by_little(network):
    model = network()
    rounded = quantized(model)
    onnx.checker.check_model(rounded, full_check=True)
    inputs = examples(model)
    (before,), (after,) = infer(model, inputs), infer(rounded, inputs)
    assert 0 < np.abs(after - before).max() < 0.05 * np.abs(before).max()


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_the_weights_under_the_rounding_are_trained(network):
    model = network()
    names = set(trained(make_trainable(model)))
    folded = {f"{kind}{index}" for kind in ("scale", "bias") for index in (1, 2)}
    prepared = make_trainable(quantized(model))
    onnx.checker.check_model(combined(prepared), full_check=True)
    assert ot.validate(prepared) == []
    assert {name for name in trained(prepared) if "/" not in name} == names - folded


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_export_stores_integers_with_which_the_model_infers_the_same(network, tmp_path):
    session = trained_session(quantized(network()))
    session.export(tmp_path / "int8.onnx")
    exported = onnx.load(tmp_path / "int8.onnx")
    onnx.checker.check_model(exported, full_check=True)
    kinds = [tensor.data_type for tensor in exported.graph.initializer if len(tensor.dims) > 1]
    assert kinds
    assert set(kinds) == {TensorProto.INT8}
    inputs = examples(exported)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (found,) = onnxruntime.InferenceSession(exported.SerializeToString(), options).run(None, inputs)
    (expected,) = session.infer(inputs).values()
    np.testing.assert_allclose(np.asarray(found), expected, atol=0.01 * np.abs(expected).max())


INTEGER_OPERATORS = {
    "Gemm": {"QGemm"},
    "convolutions with BatchNormalization and Dropout": {"QLinearConv", "QGemm"},
    "MatMul and Add": {"MatMulIntegerToFloat"},
    "groups and a residual connection": {"QLinearConv", "QGemm"},
}


@pytest.mark.parametrize(("network", "operators"), INTEGER_OPERATORS.items())
def test_onnxruntime_runs_the_exported_layers_as_integer_operators(network, operators, tmp_path):
    session = trained_session(quantized(NETWORKS[network]()))
    session.export(tmp_path / "int8.onnx")
    found = operators_in_onnxruntime(tmp_path / "int8.onnx")
    assert operators <= found
    assert found.isdisjoint({"Conv", "FusedConv", "Gemm", "MatMul"})


def operators_in_onnxruntime(path: Path) -> set[str]:
    """The operators that onnxruntime runs a file with, after its own optimization."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return {one.op_type for one in onnx.load(options.optimized_model_filepath).graph.node}


@pytest.mark.parametrize("opset", [13, 18, 21])
def test_scales_follow_the_weights_at_every_opset(opset):
    rounded = quantized(matmul_and_add(opset))
    onnx.checker.check_model(rounded, full_check=True)
    session = ot.TrainingSession(make_trainable(rounded))
    value = session.variables["W2"] * np.float32(3)
    session.variables["W2"] = value
    found = session.infer(examples(rounded), outputs=["W2/scale", "W2/quantized"])
    integers, scale = quantize(value, axis=1)
    np.testing.assert_array_equal(found["W2/scale"], scale)
    np.testing.assert_array_equal(found["W2/quantized"], integers)
    assert np.abs(integers).max() == 127


def test_weights_that_are_not_chosen_stay_floats(tmp_path):
    session = trained_session(quantized(mlp(), "W1"))
    session.export(tmp_path / "mixed.onnx")
    kinds = {tensor.name: tensor.data_type for tensor in onnx.load(tmp_path / "mixed.onnx").graph.initializer}
    assert kinds["W2"] == TensorProto.FLOAT
    assert kinds["W1/quantized"] == TensorProto.INT8
    assert "W1" not in kinds


def test_a_training_run_of_a_rounded_model_resumes(tmp_path):
    session = trained_session(quantized(mlp()))
    session.save(tmp_path / "trained.onnx")
    again = ot.TrainingSession(tmp_path / "trained.onnx")
    inputs = {**examples(mlp()), "labels": np.zeros(40, np.int64)}
    assert session.step(inputs)["loss"] == again.step(inputs)["loss"]
    for name, value in session.variables.items():
        np.testing.assert_array_equal(value, again.variables[name])


def test_values_in_training_are_rounded_before_dropout():
    assert values_to_calibrate(convolutional())[1] == ("x", "active1", "flat", "active2")


def test_calibration_finds_the_ends_over_all_examples():
    model = mlp()
    data = {"x": np.zeros((70, 4), np.float32)}
    data["x"][0, 0], data["x"][69, 3] = -3, 5
    assert calibrate(model, data)["x"] == (-3, 5)


def test_a_range_that_was_not_measured_is_named():
    with pytest.raises(ModelError, match=r"range of 'active' is not known"):
        fake_quantize(mlp(), {"x": (0, 1)})


def test_a_model_of_an_old_opset_is_converted():
    model = convolutional(opset=9)
    model.metadata_props.add(key="author", value="someone")
    rounded = quantized(model)
    assert rounded.opset_import[0].version == 13
    assert rounded.metadata_props[0].value == "someone"
    (before,), (after,) = infer(model, examples(model)), infer(rounded, examples(model))
    assert 0 < np.abs(after - before).max() < 0.05 * np.abs(before).max()


def test_a_model_that_onnx_cannot_convert_is_refused():
    model = mlp(opset=9)
    model.graph.node[1].op_type = "Mystery"
    with pytest.raises(UnsupportedError, match="begins with opset 13"):
        fake_quantize(model, {})


def test_a_model_with_nothing_to_quantize_is_refused():
    with pytest.raises(ModelError, match="no layer to quantize"):
        fake_quantize(model_of([node("Relu", ["x"], ["y"])], [floats("x", 3)], [floats("y", 3)]), {})


def test_a_training_model_is_refused():
    with pytest.raises(ModelError, match="Export it for inference first"):
        fake_quantize(make_trainable(mlp()), {})


def test_the_given_model_is_never_changed():
    model = convolutional()
    before = model.SerializeToString(deterministic=True)
    quantized(model)
    assert model.SerializeToString(deterministic=True) == before


def test_a_value_of_one_sign_keeps_zero_exact():
    rounded = fake_quantize(mlp(), {"x": (2.0, 4.0), "active": (-3.0, -1.0)})
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in rounded.graph.initializer}
    assert (stored["x/zero_point"], stored["active/zero_point"]) == (0, 255)
    assert stored["x/scale"] == pytest.approx(4 / 255)


NORMALIZED = {
    "Conv": (node("Conv", ["x", "W"], ["h"]), weights("W", 5, 4, 3, 3), ["N", 4, 6, 6]),
    "Conv with groups": (node("Conv", ["x", "W"], ["h"], group=2), weights("W", 6, 2, 3, 3), ["N", 4, 6, 6]),
    "ConvTranspose": (node("ConvTranspose", ["x", "W"], ["h"]), weights("W", 4, 5, 3, 3), ["N", 4, 6, 6]),
    "Gemm": (node("Gemm", ["x", "W"], ["h"]), weights("W", 4, 5), ["N", 4]),
    "Gemm, transposed": (node("Gemm", ["x", "W"], ["h"], transB=1), weights("W", 5, 4), ["N", 4]),
}


@pytest.mark.parametrize("layer", NORMALIZED)
@pytest.mark.parametrize("bias", [False, True])
def test_a_folded_normalization_changes_nothing(layer, bias):
    from onnxtrain.authoring.folding import fold_normalizations
    from onnxtrain.authoring.names import Names

    first, kernel, dims = NORMALIZED[layer]
    channels = 6 if "groups" in layer else 5
    values = {
        "scale": weights("scale", channels),
        "shift": weights("shift", channels),
        "mean": weights("mean", channels),
    }
    tensors = [kernel, *values.values(), vector("variance", *np.linspace(0.5, 2, channels))]
    layer_node = onnx.NodeProto()
    layer_node.CopyFrom(first)
    if bias:
        layer_node.input.append("b")
        tensors.append(weights("b", channels))
    norm = node("BatchNormalization", ["h", "scale", "shift", "mean", "variance"], ["y"], epsilon=0.01)
    output = onnx.ValueInfoProto(name="y", type=onnx.TypeProto(tensor_type={"elem_type": TensorProto.FLOAT}))  # pyright: ignore[reportArgumentType]
    model = model_of([layer_node, norm], [floats("x", *dims)], [output], tensors)
    folded = onnx.ModelProto()
    folded.CopyFrom(model)
    fold_normalizations(folded.graph, Names(folded))
    assert [one.op_type for one in folded.graph.node] == [first.op_type]
    assert len(folded.graph.initializer) == 2
    inputs = examples(model, 3)
    np.testing.assert_allclose(infer(folded, inputs)[0], infer(model, inputs)[0], rtol=1e-4, atol=1e-5)


def test_digits_in_int8_are_recognised_as_well_as_in_floats(tmp_path):
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    from onnxtrain import demo
    from onnxtrain.training.fit import fit

    training, held_out = demo.load_digits()
    session = ot.TrainingSession(make_trainable(demo.build_network(), initialize="he_normal", learning_rate=2e-3))
    session.initialize()
    fit(session, training, epochs=4, batch_size=64)
    session.export(tmp_path / "float.onnx")
    ranges = calibrate(tmp_path / "float.onnx", {name: array[:200] for name, array in training.items()})
    rounded = ot.TrainingSession(make_trainable(fake_quantize(tmp_path / "float.onnx", ranges), learning_rate=2e-4))
    fit(rounded, training, epochs=1, batch_size=64)
    rounded.export(tmp_path / "int8.onnx")

    right = {}
    for name in ("float", "int8"):
        _, logits = demo.run_elsewhere(tmp_path / f"{name}.onnx", held_out["image"])
        right[name] = np.mean(logits.argmax(axis=1) == held_out["labels"])
    assert right["float"] > 0.95
    assert right["int8"] > right["float"] - 0.01
    assert operators_in_onnxruntime(tmp_path / "int8.onnx") >= {"QLinearConv", "QGemm"}
    assert (tmp_path / "int8.onnx").stat().st_size < (tmp_path / "float.onnx").stat().st_size / 3
