"""Weights in Constant nodes are initializers while they train, and Constant nodes again in the exported model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxtrain as ot
from onnxtrain.authoring import make_trainable
from tests.authoring.inference_models import mlp, with_constant_nodes
from tests.authoring.training_graphs import infer

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def original() -> onnx.ModelProto:
    model = with_constant_nodes(mlp())
    for index, node in enumerate(model.graph.node):
        node.name = f"node_{index}"
    return model


def export(path, **options: bool) -> tuple[ot.TrainingSession, onnx.ModelProto]:
    session = ot.TrainingSession(make_trainable(original(), learning_rate=0.1, **options))  # pyright: ignore[reportArgumentType]
    session.step({"x": X, "labels": np.zeros(5, np.int64)})
    session.save(path)  # which keeps what export needs to know
    session = ot.TrainingSession(path)
    session.export(path)
    return session, onnx.load(path)


def test_constant_nodes_are_written_again_with_the_trained_values(tmp_path):
    session, exported = export(tmp_path / "exported.onnx", keep_constants=True)
    assert not exported.graph.initializer
    assert not exported.metadata_props
    stands = [(node.op_type, node.name, list(node.output)) for node in exported.graph.node]
    assert sorted(stands) == sorted((node.op_type, node.name, list(node.output)) for node in original().graph.node)
    values = {node.output[0]: numpy_helper.to_array(node.attribute[0].t) for node in exported.graph.node[:4]}
    for name in ("W1", "b1", "W2", "b2"):
        np.testing.assert_array_equal(values[name], session.variables[name])
    np.testing.assert_allclose(infer(exported, {"x": X})[0], session.infer({"x": X})["scores"], rtol=1e-5, atol=1e-6)


def test_by_default_they_stay_initializers(tmp_path):
    _, exported = export(tmp_path / "exported.onnx")
    assert sorted(tensor.name for tensor in exported.graph.initializer) == ["W1", "W2", "b1", "b2"]


@pytest.mark.parametrize(("frozen", "expected"), [("W1", ["W1"]), ("*1", ["W1", "b1"])])
def test_what_is_not_trained_was_never_promoted(frozen, expected):
    prepared = make_trainable(original(), frozen=frozen, keep_constants=True)
    assert [node.output[0] for node in prepared.graph.node if node.op_type == "Constant"] == expected
