"""Linear models of ai.onnx.ml are trained: what they hold in attributes becomes tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxtrain as ot
from onnxtrain.authoring import make_trainable
from onnxtrain.errors import ModelError
from tests.authoring.inference_models import floats
from tests.authoring.training_graphs import combined, infer, inference_part, trained

X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
WEIGHTS: dict[str, Any] = {"coefficients": np.linspace(-1, 1, 12).tolist(), "intercepts": [0.5, 0.0, -0.5]}
INTEGERS: dict[str, Any] = {"classlabels_ints": [3, 5, 9]}
STRINGS: dict[str, Any] = {"classlabels_strings": ["a", "b", "c"]}


def classifier(
    labels: dict[str, Any], transform: str, *, element_type: int = TensorProto.FLOAT, imports_standard: bool = True
) -> onnx.ModelProto:
    """What skl2onnx writes for a LogisticRegression, without its ZipMap."""
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["x"],
            ["label", "scores"],
            "classifier",
            domain="ai.onnx.ml",
            post_transform=transform,
            **WEIGHTS,
            **labels,
        ),
        helper.make_node("Normalizer", ["scores"], ["probabilities"], domain="ai.onnx.ml", norm="L1"),
    ]
    label_type = TensorProto.INT64 if labels is INTEGERS else TensorProto.STRING
    outputs = [helper.make_tensor_value_info("label", label_type, ["N"]), floats("probabilities", "N", 3)]
    return ml_model(nodes, floats("x", "N", 4, element_type=element_type), outputs, imports_standard=imports_standard)


def ml_model(
    nodes: list[onnx.NodeProto],
    x: onnx.ValueInfoProto,
    outputs: list[onnx.ValueInfoProto],
    *,
    imports_standard: bool = True,
) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("ai.onnx.ml", 1)]
    opsets += [helper.make_opsetid("", 17)] if imports_standard else []
    return helper.make_model(helper.make_graph(nodes, "network", [x], outputs), opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("labels", [INTEGERS, STRINGS], ids=["ints", "strings"])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("imports_standard", [True, False])
def test_a_linear_classifier_is_trained_and_infers_what_it_inferred(labels, transform, imports_standard):
    model = classifier(labels, transform, imports_standard=imports_standard)
    prepared = make_trainable(model)
    onnx.checker.check_model(combined(prepared), full_check=True)
    assert ot.validate(prepared) == []
    assert trained(prepared) == ["classifier/coefficients", "classifier/intercepts"]
    for before, after in zip(infer(model, {"x": X}), infer(prepared, {"x": X}), strict=True):
        if before.dtype == np.float32:
            np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(after, before)


def test_logistic_regression_learns_by_cross_entropy_over_its_scores():
    prepared = make_trainable(classifier(INTEGERS, "SOFTMAX"), learning_rate=0.1)
    kinds = [node.op_type for node in inference_part(prepared).graph.node]
    assert "Normalizer" not in kinds
    session = ot.TrainingSession(prepared)
    wanted = X[:, :3].argmax(1)
    losses = [float(session.step({"x": X, "labels": wanted})["loss"]) for _ in range(60)]
    found = np.asarray(session.infer({"x": X})["probabilities"])
    assert losses[0] == pytest.approx(float(-np.log(start(wanted)).mean()), rel=1e-5)
    assert np.mean(found.argmax(1) == wanted) > 0.9


def start(wanted: np.ndarray) -> np.ndarray:
    """The probability of the wanted classes before training."""
    return infer(classifier(INTEGERS, "SOFTMAX"), {"x": X})[1][np.arange(len(X)), wanted]


@pytest.mark.parametrize("element_type", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64])
@pytest.mark.parametrize("weights", [WEIGHTS, {"coefficients": WEIGHTS["coefficients"]}], ids=["with", "without"])
def test_a_linear_regressor_is_trained(element_type, weights):
    node = helper.make_node("LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml", targets=3, **weights)
    model = ml_model([node], floats("x", "N", 4, element_type=element_type), [floats("y", "N", 3)])
    prepared = make_trainable(model, loss="mean_squared_error")
    onnx.checker.check_model(combined(prepared), full_check=True)
    assert trained(prepared) == ["y/coefficients", "y/intercepts"]
    x = (10 * X).astype(helper.tensor_dtype_to_np_dtype(element_type))
    after = infer(prepared, {"x": x})[0]
    expected = x.astype(np.float32) @ np.reshape(WEIGHTS["coefficients"], (3, 4)).T + weights.get("intercepts", 0)
    np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "change", [{"post_transform": "PROBIT"}, {"coefficients": [1.0] * 11}, {"classlabels_ints": [1, 2]}]
)
def test_what_no_standard_operator_says_stays_as_it_is(change):
    attributes = {**WEIGHTS, **INTEGERS, **change}
    node = helper.make_node("LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", **attributes)
    model = ml_model([node], floats("x", "N", 4), [floats("scores", "N", 3)])
    with pytest.raises(ModelError, match="nothing to train"):
        make_trainable(model)
