"""Weights that an exporter stored twice are found, and trained as one on request."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain as ot
from onnxtrain.authoring import make_trainable
from onnxtrain.authoring.source import load
from onnxtrain.authoring.tying import Tie, find_ties
from onnxtrain.authoring.value_types import infer_types
from tests.authoring.inference_models import floats, model_of, weights, with_constant_nodes
from tests.authoring.training_graphs import combined, infer, trained

node = helper.make_node
IDS = np.array([0, 3, 5, 1])


def language_model(*, transposed: bool = True, dtype: str = "float32") -> onnx.ModelProto:
    """Words looked up in a table, and scored by the same table, which is stored a second time."""
    table = np.random.default_rng(0).normal(size=(6, 4)).astype(dtype)
    head = table.T if transposed else table
    tensors = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.ascontiguousarray(head), "head")]
    nodes = [
        node("Gather", ["table", "ids"], ["words"]),
        node("MatMul", ["words", "W"], ["hidden"]),
        node("Gemm", ["hidden", "head"], ["scores"], transB=0 if transposed else 1),
    ]
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["N"])
    scores = floats("scores", "N", 6, element_type=element_type)
    return model_of(nodes, [ids], [scores], [*tensors, weights("W", 4, 4, dtype=dtype)])


def ties_of(model: onnx.ModelProto) -> list[Tie]:
    return find_ties(load(model), infer_types(model))


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("form", [lambda model: model, with_constant_nodes], ids=["initializers", "constants"])
def test_a_table_that_is_stored_twice_is_trained_as_one(transposed, dtype, form):
    model = form(language_model(transposed=transposed, dtype=dtype))
    assert ties_of(model) == [Tie("table", "head", transposed)]
    assert trained(make_trainable(model)) == ["table", "W", "head"]

    prepared = make_trainable(model, tie=True)
    onnx.checker.check_model(combined(prepared), full_check=True)
    assert ot.validate(prepared) == []
    assert trained(prepared) == ["table", "W"]
    np.testing.assert_array_equal(infer(prepared, {"ids": IDS})[0], infer(model, {"ids": IDS})[0])


def test_both_uses_move_the_one_weight(tmp_path):
    session = ot.TrainingSession(make_trainable(language_model(), tie=True, optimizer="sgd", learning_rate=0.1))
    before = session.variables["table"]
    session.step({"ids": IDS, "labels": np.array([2, 2, 2, 2])})
    moved = np.abs(session.variables["table"] - before).max(axis=1)
    assert (moved > 0).all()  # looked up are four rows, scored are all
    session.export(tmp_path / "exported.onnx")
    exported = infer(onnx.load(tmp_path / "exported.onnx"), {"ids": IDS})[0]
    np.testing.assert_allclose(exported, session.infer({"ids": IDS})["scores"], rtol=1e-5, atol=1e-6)


def test_vectors_constant_tables_and_other_values_are_not_tied():
    ones = np.ones((4, 4), np.float32)
    nodes = [
        node("MatMul", ["x", "A"], ["a"]),
        node("MatMul", ["a", "B"], ["b"]),
        node("MatMul", ["b", "C"], ["c"]),
        node("Add", ["c", "p"], ["d"]),
        node("Add", ["d", "q"], ["scores"]),
    ]
    tensors = [numpy_helper.from_array(ones, "A"), numpy_helper.from_array(ones, "B"), weights("C", 4, 4)]
    tensors += [weights("p", 4, seed=1), weights("q", 4, seed=1)]
    assert ties_of(model_of(nodes, [floats("x", "N", 4)], [floats("scores", "N", 4)], tensors)) == []
