"""Measuring without changing."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxtrain.authoring import make_trainable
from onnxtrain.authoring.schedules import Cosine
from onnxtrain.errors import InputError, ModelError
from onnxtrain.graph.read import read_model
from onnxtrain.session import TrainingSession
from onnxtrain.training.evaluation import Evaluator, evaluation_model
from tests.authoring.inference_models import mlp
from tests.graph.training_models import edited, linear_with_sgd, mlp_with_momentum, tensor
from tests.training.problems import classification, fix_batch


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(-log_probabilities[np.arange(len(labels)), labels].mean())


def test_loss_and_accuracy_are_those_of_the_inference_outputs() -> None:
    session = TrainingSession(mlp_with_momentum())
    data = classification()
    logits = np.asarray(session.infer({"x": data["x"]})["logits"])
    measures = Evaluator(session, data)()
    assert list(measures) == ["loss", "accuracy"]
    assert measures["loss"] == pytest.approx(cross_entropy(logits, data["labels"]), rel=1e-5)
    assert measures["accuracy"] == pytest.approx(np.mean(logits.argmax(axis=1) == data["labels"]))


def test_the_batch_size_changes_nothing() -> None:
    session = TrainingSession(mlp_with_momentum())
    assert Evaluator(session, classification(), 7)() == pytest.approx(Evaluator(session, classification(), 100)())


def test_evaluating_changes_nothing_and_follows_the_session() -> None:
    session, untouched = TrainingSession(mlp_with_momentum()), TrainingSession(mlp_with_momentum())
    data = classification()
    evaluate = Evaluator(session, data)
    before = evaluate()
    assert evaluate() == before
    for each in (session, untouched):
        each.step(data)
    assert session.step_count == 1
    for name in session.variables:
        np.testing.assert_array_equal(session.variables[name], untouched.variables[name])
    assert evaluate()["loss"] < before["loss"]


def test_without_class_ids_there_is_a_loss_and_no_accuracy() -> None:
    session = TrainingSession(linear_with_sgd())
    x, target = np.ones((5, 3), np.float32), np.zeros((5, 2), np.float32)
    y = np.asarray(session.infer({"x": x})["y"])
    assert Evaluator(session, {"x": x, "target": target})() == {"loss": pytest.approx(np.mean(y**2))}


def classifier_with_dropout() -> onnx.ModelProto:
    """`mlp_with_momentum` whose loss looks at a training-mode twin of the forward pass, named as authoring does."""
    model = mlp_with_momentum()
    algorithm = model.training_info[0].algorithm
    for node in algorithm.node:
        for index, name in enumerate(node.input):
            if name == "logits":
                node.input[index] = "logits/training"
    nodes = [
        helper.make_node("Dropout", ["active", "ratio", "on"], ["active/training"]),
        helper.make_node("Gemm", ["active/training", "W2", "b2"], ["logits/training"]),
        *algorithm.node,
    ]
    del algorithm.node[:]
    algorithm.node.extend(nodes)
    algorithm.initializer.extend([tensor("ratio", 0.5), tensor("on", True, np.bool_)])
    return model


def test_a_training_mode_twin_gives_way_to_the_value_that_it_is_the_twin_of() -> None:
    session, data = TrainingSession(classifier_with_dropout()), classification()
    plain = Evaluator(TrainingSession(mlp_with_momentum()), data)()
    assert Evaluator(session, data)() == pytest.approx(plain)
    assert float(session.step(data)["loss"]) != pytest.approx(plain["loss"])


def test_an_evaluation_model_needs_no_node_of_gradients_or_updates() -> None:
    model = evaluation_model(read_model(classifier_with_dropout()), 0)
    operators = {node.op_type for node in model.graph.nodes}
    assert operators == {"Gemm", "Relu", "Identity", "SoftmaxCrossEntropyLoss"}
    assert model.training_info == ()


def test_a_model_that_fixes_its_batch_is_evaluated_on_whole_batches() -> None:
    session = TrainingSession(edited(mlp_with_momentum(), fix_batch(8)))
    data = classification(20)
    with pytest.warns(UserWarning, match="so 4 of the 20 examples are left out"):
        evaluate = Evaluator(session, data)
    expected = Evaluator(session, {name: array[:16] for name, array in data.items()})()
    assert (evaluate.examples, evaluate()) == (16, expected)


def test_a_model_without_training_information_has_no_loss() -> None:
    model = edited(mlp_with_momentum(), lambda model: model.ClearField("training_info"))
    with pytest.raises(ModelError, match="no training information"):
        Evaluator(TrainingSession(model), classification())


def test_data_without_labels_is_refused_under_its_name() -> None:
    with pytest.raises(InputError, match=r"There is no array 'labels' in test\.npz"):
        Evaluator(TrainingSession(mlp_with_momentum()), {"x": classification()["x"]}, source="test.npz")


def test_what_tells_of_the_step_is_not_measured() -> None:
    """A learning rate depends on no data, and the length of the gradient on gradients that are not taken."""
    model = make_trainable(mlp(), learning_rate=Cosine(0.1, 100), clip=1.0)
    session = TrainingSession(model)
    generator = np.random.default_rng(0)
    data = {"x": generator.normal(size=(8, 4)).astype(np.float32), "labels": generator.integers(0, 3, 8)}
    assert set(session.step(data)) == {"loss", "learning_rate", "gradient_norm"}
    assert set(Evaluator(session, data)()) == {"loss", "accuracy"}
