"""Prepared models train as their twins in PyTorch do, step by step, from the same weights."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain as ot
from onnxtrain.authoring import Adam, Momentum, Sgd, make_trainable
from onnxtrain.authoring.optimizers import Optimizer
from tests.authoring.inference_models import convolutional, floats, mlp, model_of, weights, with_function
from tests.authoring.training_graphs import infer

STEPS = 20


def batches(shape: tuple[int, ...], classes: int, label_shape: tuple[int, ...], seed: int = 0) -> list[tuple[Any, Any]]:
    generator = np.random.default_rng(seed)
    return [
        (generator.normal(size=shape), generator.integers(0, classes, size=label_shape).astype(np.int64))
        for _ in range(STEPS)
    ]


def losses_of(session: ot.TrainingSession, examples: list[tuple[Any, Any]], dtype: str = "float32") -> list[float]:
    return [float(session.step({"x": x.astype(dtype), "labels": labels})["loss"]) for x, labels in examples]


def torch_losses(
    torch: Any, network: Any, optimizer: Any, examples: list[tuple[Any, Any]], loss: Callable[..., Any]
) -> list[float]:
    found = []
    for x, labels in examples:
        optimizer.zero_grad()
        value = loss(network(torch.tensor(x)), torch.tensor(labels))
        value.backward()
        optimizer.step()
        found.append(value.item())
    return found


TWINS: dict[str, tuple[Optimizer, Callable[[Any, Any], Any]]] = {
    "sgd": (Sgd(), lambda torch, weights: torch.optim.SGD(weights, 0.05)),
    "momentum": (Momentum(), lambda torch, weights: torch.optim.SGD(weights, 0.05, momentum=0.9)),
    "nesterov": (
        Momentum(nesterov=True),
        lambda torch, weights: torch.optim.SGD(weights, 0.05, momentum=0.9, nesterov=True),
    ),
    "adam": (Adam(epsilon=0.0), lambda torch, weights: torch.optim.Adam(weights, 0.05, eps=0.0)),
}


def torch_mlp(torch: Any) -> Any:
    """The twin of `mlp`, with its weights, in float64."""
    stored = {
        tensor.name: torch.tensor(numpy_helper.to_array(tensor)) for tensor in mlp(dtype="float64").graph.initializer
    }
    first, second = torch.nn.Linear(4, 5).double(), torch.nn.Linear(5, 3).double()
    with torch.no_grad():
        first.weight.copy_(stored["W1"].T)
        first.bias.copy_(stored["b1"])
        second.weight.copy_(stored["W2"])
        second.bias.copy_(stored["b2"])
    return torch.nn.Sequential(first, torch.nn.ReLU(), second)


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("opset", [8, 17])
def test_every_optimizer_follows_pytorch(name, opset):
    torch = pytest.importorskip("torch", reason="PyTorch is the other side of the comparison")
    optimizer, make_twin = TWINS[name]
    examples = batches((6, 4), 3, (6,))
    network = torch_mlp(torch)
    expected = torch_losses(
        torch, network, make_twin(torch, network.parameters()), examples, torch.nn.functional.cross_entropy
    )
    prepared = make_trainable(mlp(opset, dtype="float64"), optimizer=optimizer, learning_rate=0.05)
    session = ot.TrainingSession(prepared)
    # attributes are float32 in ONNX, also those of an optimizer in float64
    np.testing.assert_allclose(losses_of(session, examples, "float64"), expected, rtol=1e-6)
    np.testing.assert_allclose(session.variables["W2"], network[2].weight.detach().numpy(), rtol=1e-5, atol=1e-8)


def test_the_mean_squared_error_follows_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is the other side of the comparison")
    generator = np.random.default_rng(3)
    examples = [(generator.normal(size=(6, 4)), generator.normal(size=(6, 3))) for _ in range(STEPS)]
    network = torch_mlp(torch)
    twin = torch.optim.SGD(network.parameters(), 0.1)
    expected = torch_losses(torch, network, twin, examples, torch.nn.functional.mse_loss)
    prepared = make_trainable(mlp(dtype="float64"), loss="mean_squared_error", optimizer="sgd", learning_rate=0.1)
    found = losses_of(ot.TrainingSession(prepared), examples, "float64")
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def torch_convolutional(torch: Any) -> Any:
    """The twin of `convolutional`, with its weights; PyTorch's momentum is one minus ONNX's."""
    stored = {tensor.name: torch.tensor(numpy_helper.to_array(tensor)) for tensor in convolutional().graph.initializer}
    layers: list[Any] = []
    with torch.no_grad():
        for index, (channels, filters) in enumerate([(1, 4), (4, 2)], start=1):
            convolution = torch.nn.Conv2d(channels, filters, 3, bias=False)
            convolution.weight.copy_(stored[f"kernel{index}"])
            norm = torch.nn.BatchNorm2d(filters, momentum=0.2)
            norm.weight.copy_(stored[f"scale{index}"])
            norm.bias.copy_(stored[f"bias{index}"])
            norm.running_mean.copy_(stored[f"mean{index}"])
            norm.running_var.copy_(stored[f"variance{index}"])
            layers += [convolution, norm, torch.nn.ReLU()]
        dense = torch.nn.Linear(8, 3)
        dense.weight.copy_(stored["W"].T)
        dense.bias.copy_(stored["b"])
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), dense)


@pytest.mark.parametrize("opset", [9, 17])
def test_batch_normalization_trains_as_in_pytorch(opset):
    torch = pytest.importorskip("torch", reason="PyTorch is the other side of the comparison")
    examples = [(x.astype(np.float32), labels) for x, labels in batches((8, 1, 6, 6), 3, (8,))]
    network = torch_convolutional(torch)
    twin = torch.optim.SGD(network.parameters(), 0.02, momentum=0.9)
    expected = torch_losses(torch, network, twin, examples, torch.nn.functional.cross_entropy)
    prepared = make_trainable(convolutional(opset, ratio=0.0), optimizer="momentum", learning_rate=0.02)
    session = ot.TrainingSession(prepared)
    np.testing.assert_allclose(losses_of(session, examples), expected, rtol=1e-4)
    np.testing.assert_allclose(session.variables["mean1"], network[1].running_mean.numpy(), rtol=1e-3, atol=1e-4)
    # ONNX takes the variance of the population and PyTorch the unbiased one; both forget the first value alike
    count, kept = 8 * 4 * 4, 0.8**STEPS
    start = next(numpy_helper.to_array(one) for one in convolutional().graph.initializer if one.name == "variance1")
    unbiased = (np.asarray(session.variables["variance1"]) - kept * start) * count / (count - 1) + kept * start
    np.testing.assert_allclose(unbiased, network[1].running_var.numpy(), rtol=1e-3)


def test_frozen_normalization_neither_moves_nor_looks_at_the_batch():
    prepared = make_trainable(convolutional(ratio=0.0), trainable=["W", "b"], optimizer="sgd")
    session = ot.TrainingSession(prepared)
    x = np.random.default_rng(0).normal(size=(8, 1, 6, 6)).astype(np.float32)
    before = np.asarray(session.variables["W"]).copy()
    whole = float(session.step({"x": x, "labels": np.zeros(8, np.int64)})["loss"])
    assert np.abs(session.variables["W"] - before).max() > 0
    parts = ot.TrainingSession(prepared)
    alone = []
    for example in x:
        parts.variables["W"] = before
        parts.initialize()
        alone.append(float(parts.step({"x": example[None], "labels": np.zeros(1, np.int64)})["loss"]))
    assert whole == pytest.approx(np.mean(alone), rel=1e-5)


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(("class_axis", "shape"), [(None, (2, 5, 4)), (1, (2, 4, 5))])
def test_cross_entropy_of_sequences_follows_pytorch(opset, class_axis, shape):
    torch = pytest.importorskip("torch", reason="PyTorch is the other side of the comparison")
    model = model_of(
        [helper.make_node("PRelu", ["x", "slope"], ["scores"])],
        [floats("x", "N", *shape[1:])],
        [floats("scores", "N", *shape[1:])],
        [weights("slope", 1)],
        opset=opset,
    )
    session = ot.TrainingSession(make_trainable(model, class_axis=class_axis))
    generator = np.random.default_rng(0)
    x = generator.normal(size=shape).astype(np.float32)
    labels = generator.integers(0, 4, size=(2, 5)).astype(np.int64)
    slope = torch.tensor(numpy_helper.to_array(model.graph.initializer[0]))
    scores = torch.nn.functional.prelu(torch.tensor(x), slope)
    scores = scores if class_axis == 1 else scores.transpose(1, 2)
    expected = torch.nn.functional.cross_entropy(scores, torch.tensor(labels)).item()
    assert float(session.step({"x": x, "labels": labels})["loss"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("opset", [8, 13])
def test_a_model_that_ends_in_softmax_trains_as_one_that_ends_in_its_logits(opset):
    examples = batches((6, 4), 3, (6,))
    runs = [ot.TrainingSession(make_trainable(mlp(opset, softmax=softmax))) for softmax in (False, True)]
    plain, with_softmax = (losses_of(run, examples) for run in runs)
    assert plain == with_softmax


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_changes_of_a_small_type_add_up(dtype):
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    element_type = helper.np_dtype_to_tensor_dtype(kind)
    model = model_of(
        [helper.make_node("MatMul", ["x", "W"], ["y"])],
        [floats("x", "N", 1, element_type=element_type)],
        [floats("y", "N", 1, element_type=element_type)],
        [numpy_helper.from_array(np.ones((1, 1), kind), "W")],
    )
    prepared = make_trainable(model, loss="mean_squared_error", optimizer="sgd", learning_rate=1e-5)
    session = ot.TrainingSession(prepared)
    fed = {"x": np.ones((1, 1), kind), "labels": np.full((1, 1), 6, kind)}
    for _ in range(400):
        session.step(fed)
    # each step moves the weight by 1e-4, less than half of what the type can tell from 1: the residuals carry it
    assert float(np.asarray(session.variables["W"]).astype(np.float32)[0, 0]) == pytest.approx(1.04, abs=0.01)


def test_the_learning_rate_can_be_set_between_two_steps():
    session = ot.TrainingSession(make_trainable(mlp(), optimizer="sgd"))
    session.variables["learning_rate"] = np.asarray(0, np.float32)
    before = np.asarray(session.variables["W1"]).copy()
    session.step({"x": np.ones((2, 4), np.float32), "labels": np.zeros(2, np.int64)})
    np.testing.assert_array_equal(session.variables["W1"], before)


@pytest.mark.parametrize(("exporter", "opset"), [("old", 9), ("old", 17), ("new", 20)])
def test_a_fresh_network_exported_by_pytorch_trains_as_in_pytorch(exporter, opset):
    torch = pytest.importorskip("torch", reason="PyTorch is the other side of the comparison")
    if exporter == "new":
        pytest.importorskip("onnxscript", reason="PyTorch's newer exporter needs it")
    torch.manual_seed(0)
    # the newer exporter folds BatchNormalization into the convolution before it
    norm = torch.nn.BatchNorm1d if exporter == "old" else torch.nn.LayerNorm
    network = torch.nn.Sequential(
        torch.nn.Linear(6, 8, bias=False),
        norm(8),
        torch.nn.ReLU(),
        torch.nn.Linear(8, 8),
        norm(8),
        torch.nn.Linear(8, 3),
    )
    model = exported(torch, network.eval(), torch.zeros(2, 6), exporter, opset)
    examples = [(x.astype(np.float32), labels) for x, labels in batches((8, 6), 3, (8,))]
    network.train()
    twin = torch.optim.Adam(network.parameters(), 0.01)
    expected = torch_losses(torch, network, twin, examples, torch.nn.functional.cross_entropy)
    prepared = make_trainable(model, learning_rate=0.01)
    np.testing.assert_allclose(losses_of(ot.TrainingSession(prepared), examples), expected, rtol=1e-3)


def exported(torch: Any, network: Any, example: Any, exporter: str, opset: int) -> onnx.ModelProto:
    """The model by one of PyTorch's exporters, both of which store tensors of equal values once."""
    options: dict[str, Any] = {"dynamo": True, "verbose": False, "dynamic_shapes": ({0: torch.export.Dim("N")},)}
    if exporter == "old":
        preserve = torch.onnx.TrainingMode.PRESERVE
        options = {"dynamo": False, "training": preserve, "do_constant_folding": False, "dynamic_axes": {"x": {0: "N"}}}
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, (example,), file, opset_version=opset, input_names=["x"], **options)
    return onnx.load_from_string(file.getvalue())


def test_a_trained_model_exports_what_it_infers(tmp_path):
    session = ot.TrainingSession(make_trainable(convolutional()))
    generator = np.random.default_rng(0)
    for _ in range(3):
        x = generator.normal(size=(4, 1, 6, 6)).astype(np.float32)
        session.step({"x": x, "labels": generator.integers(0, 3, size=4)})
    session.export(tmp_path / "trained.onnx")
    x = generator.normal(size=(5, 1, 6, 6)).astype(np.float32)
    (expected,) = infer(onnx.load(tmp_path / "trained.onnx"), {"x": x})
    np.testing.assert_allclose(session.infer({"x": x})["scores"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.spec("R-01")
@pytest.mark.parametrize("opset", [11, 17])
def test_dropout_draws_a_new_mask_in_every_step(opset):
    nodes = [helper.make_node("Dropout", ["x"], ["kept"]), helper.make_node("MatMul", ["kept", "W"], ["y"])]
    model = model_of(nodes, [floats("x", "N", 64)], [floats("y", "N", 1)], [weights("W", 64, 1)], opset=opset)
    prepared = make_trainable(model, loss="mean_squared_error", learning_rate=0.0)
    fed = {"x": np.ones((1, 64), np.float32), "labels": np.zeros((1, 1), np.float32)}
    session = ot.TrainingSession(prepared, seed=1)
    first = [float(session.step(fed)["loss"]) for _ in range(5)]
    assert len(set(first)) == 5
    again = ot.TrainingSession(prepared, seed=1)
    assert [float(again.step(fed)["loss"]) for _ in range(5)] == first


def test_a_function_with_dropout_and_normalization_trains():
    session = ot.TrainingSession(make_trainable(with_function(), learning_rate=0.05))
    generator = np.random.default_rng(0)
    x = generator.normal(size=(64, 4)).astype(np.float32)
    labels = x[:, :3].argmax(1)
    losses = [float(session.step({"x": x, "labels": labels})["loss"]) for _ in range(60)]
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])


def test_tied_weights_have_one_gradient_and_stay_tied():
    nodes = [
        helper.make_node("Gather", ["W", "x"], ["embedded"]),
        helper.make_node("Transpose", ["W"], ["turned"]),
        helper.make_node("MatMul", ["embedded", "turned"], ["scores"]),
    ]
    model = model_of(
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["N"])],
        [floats("scores", "N", 6)],
        [weights("W", 6, 4)],
    )
    session = ot.TrainingSession(make_trainable(model, optimizer="sgd", learning_rate=0.5))
    table = np.asarray(session.variables["W"]).astype(np.float64)
    x, labels = np.array([0, 3]), np.array([2, 3])
    scores = table[x] @ table.T
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    slope = (chances - np.eye(6)[labels]) / 2
    gradient = slope.T @ table[x]
    np.add.at(gradient, x, slope @ table)
    session.step({"x": x, "labels": labels})
    np.testing.assert_allclose(session.variables["W"], table - 0.5 * gradient, rtol=1e-4, atol=1e-6)
