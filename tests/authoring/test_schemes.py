"""How weights are drawn: by the distributions of `jax.nn.initializers`, as ONNX operators."""

from __future__ import annotations

import jax
import numpy as np
import onnx
import pytest
from onnx import helper

import onnxtrain as ot
from onnxtrain.authoring import make_trainable
from onnxtrain.authoring.initializers import Initialization, draw
from onnxtrain.authoring.schemes import Orthogonal, TruncatedNormal, find_scheme
from onnxtrain.authoring.survey import find_uses
from onnxtrain.authoring.value_types import infer_types
from onnxtrain.authoring.weights import Weight
from onnxtrain.errors import ModelError, UnsupportedError
from tests.authoring.inference_models import OPSETS, convolutional, floats, model_of, weights
from tests.authoring.training_graphs import initial_values

node = helper.make_node


def dense(*shape: int, opset: int = 17, dtype: str = "float32") -> onnx.ModelProto:
    kernel = weights("W", *shape, dtype=dtype)
    inputs, outputs = (*shape[:-2], "M", shape[-2]), (*shape[:-2], "M", shape[-1])
    return model_of(
        [node("MatMul", ["x", "W"], ["y"])],
        [floats("x", *inputs, element_type=kernel.data_type)],
        [floats("y", *outputs, element_type=kernel.data_type)],
        [kernel],
        opset=opset,
    )


def convolution(*shape: int) -> onnx.ModelProto:
    return model_of(
        [node("Conv", ["x", "W"], ["y"])],
        [floats("x", "N", shape[1], 9, 9)],
        [floats("y", "N", shape[0], "H", "V")],
        [weights("W", *shape)],
    )


def reset(model: onnx.ModelProto, initialize: Initialization, seed: int | None = 0) -> dict[str, np.ndarray]:
    """The weights after the initialization graph ran."""
    session = ot.TrainingSession(make_trainable(model, loss="mean_squared_error", initialize=initialize, seed=seed))
    session.initialize()
    return dict(session.variables)


JAX = {
    "glorot_uniform": jax.nn.initializers.glorot_uniform(),
    "he_uniform": jax.nn.initializers.he_uniform(),
    "lecun_uniform": jax.nn.initializers.lecun_uniform(),
    "normal:0.3": jax.nn.initializers.normal(0.3),
    "truncated_normal:0.3": jax.nn.initializers.truncated_normal(0.3),
    "uniform:0.4": lambda key, shape: 0.8 * jax.random.uniform(key, shape) - 0.4,
    "orthogonal:1.5": jax.nn.initializers.orthogonal(1.5),
}


@pytest.mark.parametrize("name", JAX)
def test_the_distribution_is_that_of_jax(name):
    shape = (300, 200)
    found = np.quantile(reset(dense(*shape), name)["W"], np.linspace(0, 1, 41)[1:-1])
    expected = np.quantile(JAX[name](jax.random.key(0), shape), np.linspace(0, 1, 41)[1:-1])
    np.testing.assert_allclose(found, expected, atol=0.03 * np.abs(expected).max())


def test_nothing_lies_beyond_two_deviations_of_a_truncated_normal():
    value = reset(dense(300, 200), TruncatedNormal(0.5))["W"]
    assert 0.98 < np.abs(value).max() <= 1.0


@pytest.mark.parametrize(("name", "variance"), [("lecun_normal", 1 / 300), ("glorot_normal", 2 / 500)])
def test_the_variance_of_a_normal_scheme_counts_inputs_and_outputs(name, variance):
    assert reset(dense(300, 200), name)["W"].var() == pytest.approx(variance, rel=0.03)


@pytest.mark.parametrize("shape", [(4, 4), (64, 64), (100, 7), (7, 100), (1, 5)])
def test_the_fewer_of_rows_and_columns_are_orthonormal(shape):
    value = reset(dense(*shape), "orthogonal")["W"]
    value = value if shape[0] >= shape[1] else value.T
    np.testing.assert_allclose(value.T @ value, np.eye(min(shape)), atol=1e-5)


def test_the_filters_of_a_convolution_are_orthonormal():
    value = reset(convolution(8, 3, 3, 3), Orthogonal(2.0))["W"].reshape(8, -1)
    np.testing.assert_allclose(value @ value.T, 4 * np.eye(8), atol=4e-5)


def test_every_matrix_of_a_stack_is_orthogonal():
    for value in reset(dense(5, 6, 4), "orthogonal")["W"]:
        np.testing.assert_allclose(value.T @ value, np.eye(4), atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_a_matrix_that_is_nearly_singular_becomes_orthogonal_too(seed):
    value = draw([weight_of(dense(40, 40, dtype="float64"))], {"W": Orthogonal()}, seed)["W"]
    np.testing.assert_allclose(value.T @ value, np.eye(40), atol=1e-12)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("initialize", ["orthogonal", "truncated_normal"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_computed_schemes_are_written_for_every_opset_and_element_type(opset, initialize, dtype):
    prepared = make_trainable(dense(3, 4, opset=opset, dtype=dtype), loss="mean_squared_error", initialize=initialize)
    graph = prepared.training_info[0].initialization
    model = helper.make_model(graph, opset_imports=prepared.opset_import, ir_version=prepared.ir_version)
    onnx.checker.check_model(model, full_check=True)
    assert ot.validate(prepared) == []


def test_an_initialization_without_a_seed_follows_the_session():
    prepared = make_trainable(dense(5, 4), loss="mean_squared_error", initialize="orthogonal", seed=None)
    values = []
    for seed in (1, 1, 2):
        session = ot.TrainingSession(prepared, seed=seed)
        session.initialize()
        values.append(session.variables["W"])
    np.testing.assert_array_equal(values[0], values[1])
    assert np.abs(values[0] - values[2]).max() > 0.1


def test_constants_fill_biases_and_scales_too():
    found = reset(convolutional(), "constant:0.25")
    for name in ("kernel1", "scale1", "bias1", "W", "b"):
        np.testing.assert_array_equal(found[name], np.full_like(found[name], 0.25))


def test_only_the_weights_of_a_pattern_get_new_values():
    prepared = make_trainable(convolutional(), initialize={"last:1": "glorot_uniform"}, optimizer="sgd")
    assert set(initial_values(prepared)) == {"W", "b"}


def test_the_first_pattern_that_matches_counts():
    prepared = make_trainable(
        convolutional(), initialize={"kernel1": "keep", "kernel*": "he_normal", "*": "zeros"}, optimizer="sgd"
    )
    assert "kernel1" not in initial_values(prepared)
    session = ot.TrainingSession(prepared)
    session.initialize()
    assert session.variables["kernel2"].std() > 0
    assert not session.variables["W"].any()


def test_running_statistics_start_afresh_with_their_normalization():
    prepared = make_trainable(convolutional(), initialize={"kernel*": "he_normal", "scale2": "ones"}, optimizer="sgd")
    assert set(initial_values(prepared)) == {"kernel1", "kernel2", "scale2", "mean2", "variance2"}


def test_a_float_that_is_no_weight_takes_a_constant():
    model = dense(3, 4)
    model.graph.node[0].output[0] = "product"
    model.graph.node.append(node("Mul", ["product", "factor"], ["y"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(3, "float32"), "factor"))
    prepared = make_trainable(
        model, loss="mean_squared_error", trainable=["W", "factor"], initialize={"factor": "ones"}, optimizer="sgd"
    )
    assert set(initial_values(prepared)) == {"factor"}


@pytest.mark.parametrize("name", ["he", "normal:wide", "glorot_uniform:2", "zeros:1"])
def test_an_unknown_scheme_is_refused_with_those_that_there_are(name):
    with pytest.raises(UnsupportedError, match=r"orthogonal.*'normal:NUMBER'"):
        find_scheme(name)


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(ModelError, match="initialize='head"):
        make_trainable(convolutional(), initialize={"head.*": "ones"})


@pytest.mark.parametrize("name", ["glorot_uniform", "orthogonal", "truncated_normal:0.1"])
def test_what_is_drawn_at_once_has_the_distribution_of_the_graph(name):
    model = dense(300, 200)
    at_once = draw([weight_of(model)], {"W": find_scheme(name)}, seed=3)["W"]  # pyright: ignore[reportArgumentType]
    in_graph = reset(model, name)["W"]
    levels = np.linspace(0, 1, 21)[1:-1]
    np.testing.assert_allclose(np.quantile(at_once, levels), np.quantile(in_graph, levels), atol=0.03 * in_graph.max())


def weight_of(model: onnx.ModelProto) -> Weight:
    (tensor,) = model.graph.initializer
    uses = find_uses(model, {tensor.name: tensor}, infer_types(model))
    return Weight(tensor.name, tensor.data_type, tuple(tensor.dims), uses[tensor.name])
