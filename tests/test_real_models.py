"""Real models from many exporters: they give onnxruntime's outputs, and their gradients are right.

The models lie in a folder that the environment variable ONNXTRAIN_MODELS names, each in a folder of its own with
`model.onnx` and `io.npz`: inputs in0, in1, ... and the outputs out0, out1, ... that onnxruntime gave for them. What is
special about one stands in `real_models.toml`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxtrain as ot
from onnxtrain import dtypes
from onnxtrain.errors import ModelWarning, StaticValueError
from tests.double_precision import in_double

TABLE = tomllib.loads(Path(__file__).with_name("real_models.toml").read_text())
FOLDER = Path(os.environ.get("ONNXTRAIN_MODELS", ""))
NAMES = sorted(path.name for path in FOLDER.iterdir() if (path / "io.npz").is_file()) if FOLDER.name else []

# Share of an output's largest value by which it may differ from onnxruntime's.
TOLERANCE = 1e-4
COARSE_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Precision:
    """How far finite differences go, in the size of each weight, and how well they can agree with the gradient."""

    step: float
    tolerance: float


# The step is that small because kinks of Relu lie closely in a network: a larger one crosses some.
DOUBLE = Precision(step=1e-8, tolerance=1e-4)
# XLA's convolutions in double take minutes where those in single precision take a second.
SINGLE = Precision(step=1e-3, tolerance=2e-2)

_REAL = (TensorProto.FLOAT, TensorProto.DOUBLE)

pytestmark = pytest.mark.skipif(not NAMES, reason="set ONNXTRAIN_MODELS to a folder with real models")


def _models(test: str) -> list[Any]:
    """Every model as a parameter of a test, marked as `real_models.toml` says."""
    return [pytest.param(name, marks=_marks(test, name)) for name in NAMES]


def _marks(test: str, name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if name in TABLE[f"{test}_slow"]["models"] else []


@pytest.mark.parametrize("name", _models("inference"))
def test_a_real_model_gives_the_outputs_of_onnxruntime(name: str) -> None:
    model, inputs, expected = read(name)
    warning = TABLE["inference_warns"].get(name)
    with pytest.warns(ModelWarning, match=warning) if warning else nullcontext():
        found = ot.TrainingSession(model).infer(inputs)
    tolerance = COARSE_TOLERANCE if name in TABLE["coarse"] else TOLERANCE
    for output, values in expected.items():
        compare(found[output], values, tolerance, output)


@pytest.mark.parametrize("name", _models("gradient"))
def test_the_gradient_of_a_real_model_equals_finite_differences(name: str, x64: None) -> None:
    model, inputs, _ = read(name)
    precision = SINGLE if name in TABLE["single_precision"] else DOUBLE
    if precision is DOUBLE:
        model, inputs = in_double(model), {key: _widened(value) for key, value in inputs.items()}
    program = ot.lower(weights_as_inputs(model), straight_through=name not in TABLE["rounding"])
    weights = {
        key: jnp.asarray(_moved(program.model.find_initializer(key)))
        for key in program.infer_inputs
        if key not in inputs
    }
    if name in TABLE["no_weights"]:
        assert not weights
    else:
        check_gradient(program, inputs, weights, precision)


def test_the_table_names_models_of_the_folder() -> None:
    listed = {name for key in ("coarse", "no_weights", "single_precision", "rounding") for name in TABLE[key]}
    listed |= {*TABLE["inference_warns"], *TABLE["inference_slow"]["models"], *TABLE["gradient_slow"]["models"]}
    assert listed <= set(NAMES)


def check_gradient(
    program: ot.Program, inputs: Mapping[str, Any], weights: Mapping[str, Any], precision: Precision
) -> None:
    """The gradient of a weighted sum of the float outputs against central differences in random directions."""
    state = program.stored_state(jax.random.key(0))
    traced = {key: jnp.asarray(value) for key, value in inputs.items()}

    def function(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        outputs = program.infer(state, {**inputs, **weights})
        return sum((_weighted_sum(value) for value in outputs.values() if dtypes.is_float(value.dtype)), jnp.zeros(()))

    weights = _differentiable(function, weights, traced)
    evaluate = jax.jit(jax.value_and_grad(function))
    here, gradients = evaluate(weights, traced)
    assert all(bool(jnp.isfinite(gradient).all()) for gradient in gradients.values())
    for seed in range(2):
        direction = {key: precision.step * _direction(value, seed) for key, value in weights.items()}
        ahead, _ = evaluate({key: value + direction[key] for key, value in weights.items()}, traced)
        behind, _ = evaluate({key: value - direction[key] for key, value in weights.items()}, traced)
        shares = [float(jnp.vdot(gradients[key], direction[key])) for key in weights]
        scale = max(map(abs, shares))
        assert scale > 0
        # where a kink lies within the step, one of the sides is still right
        measured = np.array([ahead - behind, 2 * (ahead - here), 2 * (here - behind)]) / 2
        assert np.abs(measured - sum(shares)).min() <= precision.tolerance * scale


def _differentiable(function: Any, weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The weights without those that must be known while tracing, such as the scales of Resize."""
    kept = dict(weights)
    while True:
        try:
            jax.eval_shape(function, kept, inputs)
        except StaticValueError as error:
            del kept[error.source]
        else:
            return kept


def read(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray], dict[str, Any]]:
    """A model with inputs and expected outputs by name."""
    path = FOLDER / name / "model.onnx"
    if not path.is_file():
        pytest.skip(f"{path} is not there: too large for the folder, to be fetched by its fetch.sh")
    model = onnx.load(path)
    stored = {tensor.name for tensor in model.graph.initializer}
    values = np.load(path.with_name("io.npz"))
    inputs = [value.name for value in model.graph.input if value.name not in stored]
    outputs = [value.name for value in model.graph.output]
    return (
        model,
        {input: values[f"in{i}"] for i, input in enumerate(inputs)},
        {output: _expected(values, f"out{i}") for i, output in enumerate(outputs)},
    )


def _expected(values: Mapping[str, np.ndarray], key: str) -> Any:
    """An output; a sequence of maps is stored as an array with one row a map, and their keys."""
    if f"{key}_keys" not in values:
        return values[key]
    keys = values[f"{key}_keys"].tolist()
    return [dict(zip(keys, row, strict=True)) for row in values[key].tolist()]


def compare(found: Any, expected: Any, tolerance: float, output: str) -> None:
    if isinstance(expected, list):
        assert len(found) == len(expected), output
        for one, other in zip(found, expected, strict=True):
            assert list(one) == list(other), output
            compare(np.asarray(list(one.values())), np.asarray(list(other.values()), np.float32), tolerance, output)
        return
    found = np.asarray(found)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), output
    if expected.dtype.kind not in "fc":
        np.testing.assert_array_equal(found, expected, output)
        return
    scale = float(np.abs(expected).max(initial=0)) or 1.0
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale, err_msg=output)


def weights_as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every float tensor of more than one element as an input: a value that a feed can replace."""
    graph = model.graph
    model.ir_version = max(model.ir_version, 8)
    for node in [node for node in graph.node if node.op_type == "Constant"]:
        (attribute,) = node.attribute
        if attribute.t.data_type in _REAL:
            graph.initializer.add().CopyFrom(attribute.t)
            graph.initializer[-1].name = node.output[0]
            graph.node.remove(node)
    stored = {tensor.name for tensor in graph.initializer}
    kept = [value for value in graph.input if value.name not in stored]
    weights = [
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
        if tensor.data_type in _REAL and int(np.prod(tensor.dims)) > 1
    ]
    del graph.input[:]
    graph.input.extend([*kept, *weights])
    return model


def _weighted_sum(value: Any) -> Any:
    # the plain sum of a Softmax is 1 whatever the weights are
    weights = np.cos(np.arange(value.size, dtype=np.float64)).reshape(value.shape)
    return jnp.sum(jnp.asarray(value).astype(np.float64) * weights)


def _direction(value: Any, seed: int) -> Any:
    """Random numbers in the shape, type and size of a weight."""
    size = float(np.sqrt(np.mean(np.square(value)))) or 1.0
    return (np.random.default_rng(seed).standard_normal(value.shape) * size).astype(value.dtype)


def _moved(value: Any) -> Any:
    """A weight moved a little: channels that pruning or training left at exactly 0 sit on the kink of their Relu."""
    return value + np.abs(_direction(value, 7)) * value.dtype.type(1e-3)


def _widened(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float64) if dtypes.is_float(value.dtype) else value
