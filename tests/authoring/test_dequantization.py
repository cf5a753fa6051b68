"""Weights that are stored as integers are trained once they are floats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxtrain as ot
from onnxtrain.authoring import make_trainable
from onnxtrain.errors import ModelError
from tests.authoring.inference_models import floats, model_of
from tests.authoring.training_graphs import combined, infer, trained

node = helper.make_node
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def quantized(
    dtype: type, scale: np.ndarray, *, zero_point: bool = True, attributes: Mapping[str, Any] | None = None
) -> onnx.ModelProto:
    """A dense layer whose kernel [4, 3] stands behind DequantizeLinear, and whose input is rounded too."""
    values = np.random.default_rng(1).integers(0, 7, size=(4, 3)).astype(dtype)
    tensors = [numpy_helper.from_array(values, "W_int"), numpy_helper.from_array(scale, "scale")]
    if zero_point:
        tensors.append(numpy_helper.from_array(np.full(scale.shape, 3).astype(dtype), "zero"))
    tensors += [
        numpy_helper.from_array(np.asarray(0.05, np.float32), "step"),
        numpy_helper.from_array(np.asarray(0, np.int8), "middle"),
    ]
    nodes = [
        node("DequantizeLinear", ["W_int", "scale", *(["zero"] if zero_point else [])], ["W"], **(attributes or {})),
        node("QuantizeLinear", ["x", "step", "middle"], ["x_int"]),
        node("DequantizeLinear", ["x_int", "step", "middle"], ["x_rounded"]),
        node("MatMul", ["x_rounded", "W"], ["scores"]),
    ]
    return model_of(nodes, [floats("x", "N", 4)], [floats("scores", "N", 3)], tensors, opset=21, ir_version=10)


PER_TENSOR = np.asarray(0.25, np.float32)
PER_AXIS = np.asarray([0.25, 0.5, 1.0], np.float32)
BLOCKS = np.asarray([[0.25, 0.5, 1.0], [2.0, 0.125, 0.5]], np.float32)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, ml_dtypes.int4])
@pytest.mark.parametrize(
    ("scale", "attributes"),
    [(PER_TENSOR, {}), (PER_AXIS, {"axis": 1}), (BLOCKS, {"axis": 0, "block_size": 2}), (PER_AXIS, {"axis": -1})],
)
@pytest.mark.parametrize("zero_point", [True, False])
def test_integers_become_the_floats_that_they_stand_for(dtype, scale, attributes, zero_point):
    model = quantized(dtype, scale, zero_point=zero_point, attributes=attributes)
    prepared = make_trainable(model, dequantize=True)
    onnx.checker.check_model(prepared)
    onnx.checker.check_model(combined(prepared), full_check=True)
    assert trained(prepared) == ["W"]
    assert {tensor.name for tensor in prepared.graph.initializer} == {"W", "step", "middle"}
    kernel = numpy_helper.to_array(next(tensor for tensor in prepared.graph.initializer if tensor.name == "W"))
    np.testing.assert_array_equal(kernel, dequantized_by_onnxruntime(model))


def dequantized_by_onnxruntime(model: onnx.ModelProto) -> np.ndarray:
    """The kernel alone: with the product behind it, onnxruntime fuses the two, and cannot do so with blocks."""
    alone = onnx.ModelProto()
    alone.CopyFrom(model)
    del alone.graph.node[1:]
    del alone.graph.input[:]
    alone.graph.output[0].CopyFrom(floats("W", 4, 3))
    return infer(alone, {})[0]


def test_what_is_inferred_stays_the_same():
    model = quantized(np.int8, PER_AXIS, attributes={"axis": 1})
    prepared = make_trainable(model, dequantize=True)
    np.testing.assert_allclose(infer(prepared, {"x": X})[0], infer(model, {"x": X})[0], rtol=1e-5, atol=1e-6)


def test_they_stay_integers_by_default_and_the_error_says_how_to_train_them():
    with pytest.raises(ModelError, match="dequantize=True"):
        make_trainable(quantized(np.int8, PER_TENSOR))


def test_a_real_quantized_model_trains(models_dir: Path):
    prepared = make_trainable(models_dir / "mnist_qdq_u8s8" / "model.onnx", dequantize=True, learning_rate=1e-3)
    session = ot.TrainingSession(prepared)
    data = np.load(models_dir / "mnist_qdq_u8s8" / "io.npz")
    fed = {prepared.graph.input[0].name: data["in0"], "labels": (data["out0"].argmax(1) + 1) % 10}
    losses = [float(session.step(fed)["loss"]) for _ in range(4)]
    assert losses[-1] < losses[0]
