"""The initialization graph: what it draws, from which distribution, and that a seed fixes it."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxtrain as ot
from onnxtrain.authoring import make_trainable
from onnxtrain.authoring.schemes import SCHEMES
from tests.authoring.inference_models import OPSETS, convolutional, floats, integers, mlp, model_of, vector, weights
from tests.authoring.training_graphs import attributes, initial_values

node = helper.make_node


def initialization_model(prepared: onnx.ModelProto) -> onnx.ModelProto:
    """The initialization graph as a plain model."""
    graph = prepared.training_info[0].initialization
    return helper.make_model(graph, opset_imports=prepared.opset_import, ir_version=prepared.ir_version)


def drawn(prepared: onnx.ModelProto) -> dict[str, dict[str, object]]:
    """The attributes of the random node behind each state variable."""
    graph = prepared.training_info[0].initialization
    producers = {one.output[0]: one for one in graph.node}
    found = {}
    for variable, value in initial_values(prepared).items():
        one = producers[value]
        one = producers[one.input[0]] if one.op_type == "Cast" else one
        if one.op_type.startswith("Random"):
            found[variable] = {"op_type": one.op_type, **attributes(one)}
    return found


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("initialize", ["keep", *SCHEMES])
def test_the_initialization_graph_is_right_at_every_opset(opset, initialize):
    prepared = make_trainable(convolutional(opset), initialize=initialize)
    onnx.checker.check_model(initialization_model(prepared), full_check=True)
    assert ot.validate(prepared) == []


def test_by_default_weights_are_kept():
    assert set(initial_values(make_trainable(convolutional(), optimizer="momentum", trainable="W"))) == {
        "step",
        "W/momentum",
    }


def test_sgd_with_kept_weights_needs_no_initialization():
    (info,) = make_trainable(mlp(), optimizer="sgd").training_info
    assert not info.HasField("initialization")
    assert not info.initialization_binding


def test_every_weight_and_statistic_is_initialized_by_its_role():
    prepared = make_trainable(convolutional(), optimizer="sgd", initialize="he_normal")
    assert set(drawn(prepared)) == {"kernel1", "kernel2", "W"}
    session = ot.TrainingSession(prepared)
    session.initialize()
    for name, expected in {"scale1": 1, "bias2": 0, "b": 0, "mean1": 0, "variance2": 1}.items():
        np.testing.assert_array_equal(session.variables[name], np.full_like(session.variables[name], expected))


@pytest.mark.parametrize(
    ("initialize", "variance"),
    [
        ("glorot_uniform", 2 / (9 + 36)),
        ("glorot_normal", 2 / (9 + 36)),
        ("he_uniform", 2 / 9),
        ("he_normal", 2 / 9),
    ],
)
def test_the_variance_is_that_of_the_scheme(initialize, variance):
    kernel = drawn(make_trainable(convolutional(), initialize=initialize))["kernel1"]  # [4, 1, 3, 3]
    if initialize.endswith("normal"):
        assert kernel["scale"] == pytest.approx(math.sqrt(variance))
        assert kernel.get("mean", 0) == 0
    else:
        bound = math.sqrt(3 * variance)
        assert [kernel["low"], kernel["high"]] == pytest.approx([-bound, bound])


LAYERS = {
    "MatMul": (node("MatMul", ["x", "W"], ["y"]), [weights("W", 4, 7)], 4),
    "MatMul from the left": (node("MatMul", ["W", "x"], ["y"]), [weights("W", 7, 6)], 6),
    "Gemm": (node("Gemm", ["x", "W", "b"], ["y"]), [weights("W", 4, 7), weights("b", 7)], 4),
    "Gemm, transposed": (node("Gemm", ["x", "W"], ["y"], transB=1), [weights("W", 7, 4)], 4),
    "embedding": (node("Gather", ["W", "indices"], ["y"]), [weights("W", 20, 5), integers("indices", 1)], 5),
}


def layer_model(name: str) -> onnx.ModelProto:
    layer, tensors, _ = LAYERS[name]
    inputs = [floats("x", 6, 4)]
    if layer.op_type == "Gather":
        tensors, inputs = tensors[:1], [helper.make_tensor_value_info("indices", TensorProto.INT64, ["N"])]
    return model_of([layer], inputs, [floats("y", "M", "K")], tensors)


@pytest.mark.parametrize("name", LAYERS)
def test_inputs_are_counted_along_the_right_axis(name):
    prepared = make_trainable(layer_model(name), initialize="he_normal")
    scale = drawn(prepared)["W"]["scale"]
    assert scale == pytest.approx(math.sqrt(2 / LAYERS[name][2]))


def test_a_transposed_weight_is_measured_where_it_is_used():
    nodes = [node("Transpose", ["W"], ["turned"]), node("MatMul", ["x", "turned"], ["y"])]
    model = model_of(nodes, [floats("x", "N", 4)], [floats("y", "N", 7)], [weights("W", 7, 4)])
    assert drawn(make_trainable(model, initialize="he_normal"))["W"]["scale"] == pytest.approx(math.sqrt(2 / 4))


def test_an_lstm_is_measured_by_its_features():
    lstm = node("LSTM", ["x", "W", "R", "B"], ["", "last"], hidden_size=3)
    nodes = [lstm, node("Squeeze", ["last", "first"], ["y"])]
    tensors = [weights("W", 1, 12, 5), weights("R", 1, 12, 3), weights("B", 1, 24), integers("first", 0)]
    model = model_of(nodes, [floats("x", "T", "N", 5)], [floats("y", "N", 3)], tensors)
    found = drawn(make_trainable(model, initialize="he_normal"))
    assert set(found) == {"W", "R"}
    assert found["W"]["scale"] == pytest.approx(math.sqrt(2 / 5))


def test_slopes_start_at_a_quarter():
    model = model_of(
        [node("PRelu", ["x", "slope"], ["y"])], [floats("x", "N", 3)], [floats("y", "N", 3)], [vector("slope", 1, 2, 3)]
    )
    session = ot.TrainingSession(make_trainable(model, initialize="he_normal"))
    session.initialize()
    np.testing.assert_array_equal(session.variables["slope"], np.full(3, 0.25, np.float32))


def test_a_tensor_that_is_no_weight_by_its_place_keeps_its_value():
    model = model_of(
        [node("MatMul", ["x", "W"], ["hidden"]), node("Mul", ["hidden", "factor"], ["y"])],
        [floats("x", "N", 4)],
        [floats("y", "N", 3)],
        [weights("W", 4, 3), vector("factor", 2.5)],
    )
    prepared = make_trainable(model, initialize="he_normal", trainable=["W", "factor"])
    assert "factor" not in initial_values(prepared)


@pytest.mark.spec("R-02")
def test_every_tensor_has_a_seed_of_its_own():
    seeds = [one["seed"] for one in drawn(make_trainable(convolutional(), initialize="he_normal", seed=7)).values()]
    assert len(set(seeds)) == len(seeds)
    again = [one["seed"] for one in drawn(make_trainable(convolutional(), initialize="he_normal", seed=7)).values()]
    assert again == seeds
    other = [one["seed"] for one in drawn(make_trainable(convolutional(), initialize="he_normal", seed=8)).values()]
    assert not set(other) & set(seeds)


def test_without_a_seed_the_session_decides():
    assert all("seed" not in one for one in drawn(make_trainable(mlp(), initialize="he_normal", seed=None)).values())


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_weights_are_drawn_in_their_own_type(dtype):
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    kernel = onnx.numpy_helper.from_array(np.ones((4, 3), kind), "W")
    model = model_of(
        [node("MatMul", ["x", "W"], ["y"])],
        [floats("x", "N", 4, element_type=element_type)],
        [floats("y", "N", 3, element_type=element_type)],
        [kernel],
    )
    prepared = make_trainable(model, initialize="glorot_uniform")
    onnx.checker.check_model(initialization_model(prepared), full_check=True)
    session = ot.TrainingSession(prepared)
    session.initialize()
    assert np.asarray(session.variables["W"]).dtype == np.dtype(kind)
    assert len(np.unique(np.asarray(session.variables["W"], np.float64))) > 4


def test_initialization_resets_the_optimizer_of_a_saved_model():
    prepared = make_trainable(mlp(), optimizer="momentum")
    session = ot.TrainingSession(prepared)
    session.variables["W1/momentum"] = np.ones((4, 5), np.float32)
    session.variables["step"] = np.asarray(5, np.int64)
    session.initialize()
    assert not np.asarray(session.variables["W1/momentum"]).any()
    assert session.variables["step"] == 0
