"""Data show whether freeing a batch left each example's output as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain as ot
from onnxtrain.authoring import free_batch
from onnxtrain.errors import InputError, ModelError
from onnxtrain.training.free_batch_proof import BATCHES, prove_free_batch
from tests.authoring.inference_models import floats, integers, model_of, weights

node = helper.make_node


def fixed(batch: int = 2) -> onnx.ModelProto:
    """Rows of numbers and a table row for each example, with the batch inside a Reshape; one output has it last."""
    nodes = [
        node("Reshape", ["x", "shape"], ["flat"]),
        node("MatMul", ["flat", "W"], ["hidden"]),
        node("Gather", ["table", "ids"], ["row"]),
        node("Squeeze", ["row", "axis"], ["rows"]),
        node("Add", ["hidden", "rows"], ["scores"]),
        node("Transpose", ["scores"], ["turned"]),
        node("ArgMax", ["scores"], ["winner"], axis=1),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [batch, 1])
    winner = helper.make_tensor_value_info("winner", TensorProto.INT64, [batch, 1])
    return model_of(
        nodes,
        [floats("x", batch, 2, 2), ids],
        [floats("scores", batch, 3), floats("turned", 3, batch), winner],
        [weights("W", 4, 3), weights("table", 2, 3), integers("shape", batch, 4), integers("axis", 1)],
    )


def proven(original: onnx.ModelProto, freed: onnx.ModelProto, **options) -> float:
    return prove_free_batch(ot.TrainingSession(original), ot.TrainingSession(freed), **options)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_batch_that_was_freed_rightly_is_proven(batch):
    assert proven(fixed(batch), free_batch(fixed(batch))) < 1e-6


def test_own_data_may_be_given():
    x = np.random.default_rng(0).normal(size=(2 * BATCHES, 2, 2)).astype(np.float32)
    ids = np.ones((2 * BATCHES, 1), np.int64)
    assert proven(fixed(), free_batch(fixed()), data={"x": x, "ids": ids}) < 1e-6
    with pytest.raises(InputError):
        proven(fixed(), free_batch(fixed()), data={"x": x[:1], "ids": ids})


@pytest.mark.parametrize("change", ["mixes examples", "repeats examples"])
def test_a_batch_that_was_freed_wrongly_is_refused(change):
    wrong = free_batch(fixed())
    if change == "mixes examples":
        wrong.graph.node[4].CopyFrom(node("CumSum", ["hidden", "first"], ["scores"]))
        wrong.graph.initializer.append(numpy_helper.from_array(np.asarray(0), "first"))
    else:
        wrong.graph.node[4].CopyFrom(node("Concat", ["hidden", "hidden"], ["scores"], axis=0))
        del wrong.graph.output[:]
        wrong.graph.output.append(helper.make_empty_tensor_value_info("scores"))
    with pytest.raises(ModelError, match="Freeing the batch"):
        proven(fixed(), wrong)


def test_real_models_are_proven(models_dir: Path):
    for name in ("mnist_cntk_op8", "espcn_subpixel", "gh_cifar_resnet20_op7"):
        path = models_dir / name / "model.onnx"
        assert prove_free_batch(ot.TrainingSession(path), ot.TrainingSession(free_batch(path))) < 1e-5
