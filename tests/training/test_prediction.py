"""Inference over many examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxtrain.errors import InputError, UnsupportedError
from onnxtrain.session import TrainingSession
from onnxtrain.training.prediction import predict
from tests.graph.training_models import edited, floats, mlp_with_momentum, training_model
from tests.training.problems import classification, fix_batch


def mean_model() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0), helper.make_node("Neg", ["x"], ["negative"])],
        "mean",
        [floats("x", "N", 4)],
        [floats("mean"), floats("negative", "N", 4)],
    )
    return training_model(graph)


@pytest.mark.parametrize("batch_size", [None, 7, 100, 1000])
def test_outputs_are_those_of_one_large_batch(batch_size: int | None) -> None:
    session, x = TrainingSession(mlp_with_momentum()), classification()["x"]
    found = predict(session, {"x": x}, batch_size=batch_size)
    np.testing.assert_allclose(found["logits"], session.infer({"x": x})["logits"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [3, 16, 18])
def test_a_model_that_fixes_its_batch_gives_a_row_for_every_example(size: int) -> None:
    data = classification(size)
    found = predict(TrainingSession(edited(mlp_with_momentum(), fix_batch(8))), data)
    expected = predict(TrainingSession(mlp_with_momentum()), data)
    np.testing.assert_allclose(found["logits"], expected["logits"], rtol=1e-5, atol=1e-6)


def test_labels_may_be_there_and_are_not_fed() -> None:
    found = predict(TrainingSession(mlp_with_momentum()), classification(5))
    assert found["logits"].shape == (5, 3)


def test_other_names_are_refused_with_the_closest_one() -> None:
    with pytest.raises(InputError, match="The array 'X' in the data feeds no input"):
        predict(TrainingSession(mlp_with_momentum()), {"X": classification()["x"]})


def test_an_output_without_rows_is_refused_when_it_would_have_to_be_joined() -> None:
    x = classification(10)["x"]
    session = TrainingSession(mean_model())
    with pytest.raises(UnsupportedError, match=r"Output 'mean' has shape \[\] for a batch of 4 examples"):
        predict(session, {"x": x}, batch_size=4)
    found = predict(session, {"x": x}, batch_size=10)
    np.testing.assert_allclose(found["mean"], x.mean(), rtol=1e-5)
    np.testing.assert_array_equal(found["negative"], -x)


def test_an_output_that_is_no_tensor_is_refused() -> None:
    class Sequences(TrainingSession):
        def infer(self, inputs: Any, outputs: Any = None) -> Any:
            return {"parts": [np.zeros(2), np.zeros(3)]}

    with pytest.raises(UnsupportedError, match="Output 'parts' is no tensor"):
        predict(Sequences(mean_model()), {"x": classification()["x"]})


def test_element_types_stay_as_they_are() -> None:
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.INT64)],
        "cast",
        [floats("x", "N")],
        [helper.make_tensor_value_info("whole", TensorProto.INT64, ["N"])],
    )
    found = predict(TrainingSession(training_model(graph)), {"x": np.array([1.5, 2.5, 3.5], np.float32)}, batch_size=2)
    assert found["whole"].dtype == np.int64
    assert found["whole"].tolist() == [1, 2, 3]
