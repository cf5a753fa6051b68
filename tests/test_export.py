"""A trained state becomes a model again: one that resumes, and one that other runtimes infer with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxtrain.export import SEED_KEY, STEP_KEY, inference_model, training_model
from onnxtrain.graph.read import read_model
from onnxtrain.graph.write import save_proto
from tests.graph.training_models import (
    TRAINING_DOMAIN,
    floats,
    linear_with_sgd,
    mlp_with_momentum,
    tensor,
    training_info,
)
from tests.graph.training_models import training_model as build_model

WEIGHT = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
RATE = np.array(0.5, np.float32)


@pytest.mark.spec("M-08")
def test_a_training_model_holds_the_state_the_step_and_the_random_stream(tmp_path: Path) -> None:
    variables = {"W": WEIGHT, "learning_rate": RATE}
    save_proto(training_model(read_model(linear_with_sgd()), variables, step=12, seed="7:abc"), tmp_path / "m.onnx")
    model = read_model(tmp_path / "m.onnx")
    np.testing.assert_array_equal(model.graph.initializers["W"], WEIGHT)
    np.testing.assert_array_equal(model.training_info[0].algorithm.initializers["learning_rate"], RATE)
    assert (model.metadata[STEP_KEY], model.metadata[SEED_KEY]) == ("12", "7:abc")
    again = training_model(model, {}, step=13, seed="7:abc")
    assert [entry.value for entry in again.metadata_props if entry.key == STEP_KEY] == ["13"]


@pytest.mark.spec("M-08")
def test_an_inference_model_infers_with_the_current_values_in_other_runtimes() -> None:
    trained = training_model(read_model(linear_with_sgd()), {}, step=1, seed="0")
    proto = inference_model(read_model(trained), {"W": WEIGHT, "learning_rate": RATE})
    onnx.checker.check_model(proto, full_check=True)
    x = np.array([[1, 0, -1], [0, 2, 0]], np.float32)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for (y,) in (session.run(None, {"x": x}), ReferenceEvaluator(proto).run(None, {"x": x})):
        np.testing.assert_allclose(np.asarray(y), x @ WEIGHT, rtol=1e-6)


@pytest.mark.spec("M-08")
def test_an_inference_model_keeps_nothing_of_training() -> None:
    trained = training_model(read_model(mlp_with_momentum()), {}, step=1, seed="0")
    proto = inference_model(read_model(trained), {})
    assert not proto.training_info
    assert not proto.metadata_props
    assert TRAINING_DOMAIN not in {entry.domain for entry in proto.opset_import}
    assert proto.graph == trained.graph


@pytest.mark.spec("T-21")
def test_nodes_in_training_mode_stay_as_their_author_wrote_them() -> None:
    normalize = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "m2", "v2"], training_mode=1)
    drop = helper.make_node("Dropout", ["y", "ratio", "yes"], ["z"])
    initializers = [tensor(name, [1.0]) for name in "sbmv"]
    graph = helper.make_graph(
        [normalize, drop],
        "g",
        [floats("x", "N", 1)],
        [floats("z", "N", 1)],
        [*initializers, tensor("ratio", 0.5), tensor("yes", True, np.bool_)],
    )
    info = training_info(onnx.GraphProto(name="empty"), {"m": "m2", "v": "v2"})
    proto = inference_model(read_model(build_model(graph, info)), {"m": np.array([3], np.float32)})
    assert list(proto.graph.node) == [normalize, drop]
    values = {one.name: numpy_helper.to_array(one).tolist() for one in proto.graph.initializer}
    assert values == {"s": [1], "b": [1], "m": [3], "v": [1], "ratio": 0.5, "yes": True}


def test_an_inference_model_too_large_for_one_file_runs_in_other_runtimes(tmp_path: Path) -> None:
    model = read_model(mlp_with_momentum(hidden=200))
    path = tmp_path / "model.onnx"
    save_proto(inference_model(model, {}), path, limit=2000)
    x = np.ones((2, 4), np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (expected,) = ReferenceEvaluator(inference_model(model, {})).run(None, {"x": x})
    np.testing.assert_allclose(np.asarray(session.run(None, {"x": x})[0]), np.asarray(expected), rtol=1e-4)
    onnx.checker.check_model(path, full_check=True)
