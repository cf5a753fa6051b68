"""Losses: their values and gradients beside PyTorch's, and everything that can be one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain as ot
from onnxtrain.authoring import losses, make_trainable
from onnxtrain.authoring.losses import (
    BinaryCrossEntropy,
    Ctc,
    FunctionLoss,
    Huber,
    JaxLoss,
    NegativeLogLikelihood,
    OnnxLoss,
    SoftmaxCrossEntropy,
    Term,
    Triplet,
)
from onnxtrain.errors import ModelError, UnsupportedError
from tests.authoring.inference_models import floats, mlp, model_of, weights
from tests.authoring.training_graphs import combined

GENERATOR = np.random.default_rng(0)
SCORES = GENERATOR.normal(size=(5, 4)) * 3
IMAGE = GENERATOR.normal(size=(2, 4, 3, 2))
CLASSES = np.array([0, 3, 1, 1, 2])
PIXELS = GENERATOR.integers(0, 4, size=(2, 3, 2))
SHARES = GENERATOR.dirichlet(np.ones(4), 5)
CLASS_WEIGHTS = [0.5, 2.0, 1.0, 0.1]


def shifted(
    shape: Sequence[int], opset: int = 17, tail: Sequence[str] = (), dtype: type = np.float64, outputs: int = 1
) -> onnx.ModelProto:
    """A model that gives its input plus a weight, whose gradient is therefore that of the output."""
    names = [f"y{index}" for index in range(outputs)]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes, stored, inputs = [], [], []
    for index, name in enumerate(names):
        value = f"sum{index}"
        nodes.append(helper.make_node("Add", [f"x{index}", f"W{index}"], [value]))
        for op_type in tail:
            nodes.append(helper.make_node(op_type, [value], [f"{value}_{op_type}"]))
            value = f"{value}_{op_type}"
        nodes.append(helper.make_node("Identity", [value], [name]))
        stored.append(numpy_helper.from_array(np.zeros(shape, dtype), f"W{index}"))
        inputs.append(floats(f"x{index}", *shape, element_type=kind))
    given = [floats(name, *shape, element_type=kind) for name in names]
    return model_of(nodes, inputs, given, stored, opset=opset)


def measure(model: onnx.ModelProto, fed: Mapping[str, Any], loss: Any, **options: Any) -> tuple[Any, list[Any]]:
    """The loss of a step, and the gradients of the outputs."""
    stored = [tensor.name for tensor in model.graph.initializer]
    prepared = make_trainable(model, loss=loss, trainable=stored, optimizer="sgd", **options)
    assert ot.validate(prepared) == []
    onnx.checker.check_model(combined(prepared), full_check=True)
    session = ot.TrainingSession(prepared)
    found = session.step(fed, outputs=["loss", *(f"{name}/gradient" for name in stored)])
    return np.asarray(found["loss"]), [np.asarray(found[f"{name}/gradient"]) for name in stored]


@dataclass(frozen=True)
class Case:
    """A loss, what it is fed, and PyTorch's function of the scores and the labels."""

    loss: Any
    scores: np.ndarray
    labels: np.ndarray
    twin: Callable[[Any, Any, Any], Any]


def functional(name: str, **options: Any) -> Callable[[Any, Any, Any], Any]:
    return lambda torch, scores, labels: getattr(torch.nn.functional, name)(scores, labels, **options)


def weighted(name: str, **options: Any) -> Callable[[Any, Any, Any], Any]:
    def twin(torch: Any, scores: Any, labels: Any) -> Any:
        weight = torch.tensor(CLASS_WEIGHTS, dtype=torch.float64)
        return getattr(torch.nn.functional, name)(scores, labels, weight=weight, **options)

    return twin


def logarithms(scores: np.ndarray) -> np.ndarray:
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


HARD = np.array([[100.0, -100.0, 0.0, 0.0], [-100.0, 100.0, 5.0, 0.0]])

CASES = {
    "cross entropy": Case("softmax_cross_entropy", SCORES, CLASSES, functional("cross_entropy")),
    "cross entropy of images": Case("softmax_cross_entropy", IMAGE, PIXELS, functional("cross_entropy")),
    "cross entropy of certain scores": Case(
        "softmax_cross_entropy", HARD, np.array([1, 1]), functional("cross_entropy")
    ),
    "weighted cross entropy": Case(
        SoftmaxCrossEntropy(class_weights=CLASS_WEIGHTS), SCORES, CLASSES, weighted("cross_entropy")
    ),
    "cross entropy without a class": Case(
        SoftmaxCrossEntropy(ignore_index=1), SCORES, CLASSES, functional("cross_entropy", ignore_index=1)
    ),
    "smoothed cross entropy": Case(
        SoftmaxCrossEntropy(label_smoothing=0.2), SCORES, CLASSES, functional("cross_entropy", label_smoothing=0.2)
    ),
    "cross entropy of images with everything": Case(
        SoftmaxCrossEntropy(CLASS_WEIGHTS, ignore_index=2, label_smoothing=0.1),
        IMAGE,
        PIXELS,
        weighted("cross_entropy", ignore_index=2, label_smoothing=0.1),
    ),
    "negative log likelihood": Case("negative_log_likelihood", logarithms(SCORES), CLASSES, functional("nll_loss")),
    "weighted negative log likelihood": Case(
        NegativeLogLikelihood(CLASS_WEIGHTS, ignore_index=3),
        logarithms(SCORES),
        CLASSES,
        weighted("nll_loss", ignore_index=3),
    ),
    "binary cross entropy": Case(
        "binary_cross_entropy", SCORES, SHARES, functional("binary_cross_entropy_with_logits")
    ),
    "binary cross entropy of certain scores": Case(
        "binary_cross_entropy",
        HARD,
        np.array([[0.0, 1, 0, 1], [1, 0, 0.5, 1]]),
        functional("binary_cross_entropy_with_logits"),
    ),
    "binary cross entropy with a positive weight": Case(
        BinaryCrossEntropy(3.0),
        SCORES,
        SHARES,
        lambda torch, scores, labels: torch.nn.functional.binary_cross_entropy_with_logits(
            scores, labels, pos_weight=torch.tensor(3.0)
        ),
    ),
    "binary cross entropy with a weight for each": Case(
        BinaryCrossEntropy(CLASS_WEIGHTS),
        SCORES,
        SHARES,
        lambda torch, scores, labels: torch.nn.functional.binary_cross_entropy_with_logits(
            scores, labels, pos_weight=torch.tensor(CLASS_WEIGHTS, dtype=torch.float64)
        ),
    ),
    "mean squared error": Case("mean_squared_error", SCORES, SHARES, functional("mse_loss")),
    "mean absolute error": Case("mean_absolute_error", SCORES, SHARES, functional("l1_loss")),
    "mean absolute error at ties": Case("mean_absolute_error", SHARES, SHARES, functional("l1_loss")),
    "huber": Case("huber", SCORES, SHARES, functional("huber_loss")),
    "huber with a small delta": Case(Huber(0.25), SCORES, SHARES, functional("huber_loss", delta=0.25)),
    "huber on its bounds": Case("huber", np.array([[1.0, -1.0, 0.0]]), np.zeros((1, 3)), functional("huber_loss")),
    "kl divergence": Case(
        "kl_divergence",
        SCORES,
        np.where(SHARES > 0.2, SHARES, 0.0),
        lambda torch, scores, labels: torch.nn.functional.kl_div(
            torch.log_softmax(scores, 1), labels, reduction="batchmean"
        ),
    ),
    "cosine": Case(
        "cosine",
        SCORES,
        SHARES,
        lambda torch, scores, labels: (1 - torch.nn.functional.cosine_similarity(scores, labels, -1)).mean(),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("opset", [9, 17, 23])
def test_a_loss_and_its_gradient_are_those_of_pytorch(name: str, opset: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the other side of the comparison")
    case = CASES[name]
    found, (gradient,) = measure(
        shifted(case.scores.shape, opset), {"x0": case.scores, "labels": case.labels}, case.loss
    )
    scores = torch.tensor(case.scores, requires_grad=True)
    expected = case.twin(torch, scores, torch.tensor(case.labels))
    expected.backward()
    np.testing.assert_allclose(found, expected.item(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gradient, scores.grad.numpy(), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_training_with_a_loss_follows_pytorch_for_a_hundred_steps(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the other side of the comparison")
    case = CASES[name]
    model = shifted(case.scores.shape)
    model = make_trainable(model, loss=case.loss, trainable="W0", optimizer="sgd", learning_rate=0.1)
    session, fed = ot.TrainingSession(model), {"x0": case.scores, "labels": case.labels}
    weight = torch.zeros(case.scores.shape, dtype=torch.float64, requires_grad=True)
    scores, target = torch.tensor(case.scores), torch.tensor(case.labels)
    for _ in range(100):
        found = session.step(fed)["loss"]
        loss = case.twin(torch, scores + weight, target)
        np.testing.assert_allclose(found, loss.item(), rtol=1e-9, atol=1e-12)
        (gradient,) = torch.autograd.grad(loss, weight)
        weight = (weight - 0.1 * gradient).detach().requires_grad_()


@pytest.mark.parametrize("outputs", [1, 3])
def test_triplets_are_those_of_pytorch(outputs: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the other side of the comparison")
    parts = GENERATOR.normal(size=(3, 4, 5))
    parts[1, 0] = parts[0, 0]  # an anchor that is its positive
    if outputs == 1:
        fed, loss = {"x0": parts.reshape(12, 5)}, Triplet(0.7)
        found, gradients = measure(shifted((12, 5)), fed, loss)
        gradients = np.split(gradients[0], 3)
    else:
        terms = [Term(Triplet(0.7), outputs=["y0", "y1", "y2"])]
        found, gradients = measure(shifted((4, 5), outputs=3), {f"x{i}": parts[i] for i in range(3)}, terms)
    tensors = [torch.tensor(part, requires_grad=True) for part in parts]
    expected = torch.nn.functional.triplet_margin_loss(*tensors, margin=0.7)
    expected.backward()
    np.testing.assert_allclose(found, expected.item(), rtol=1e-9)
    for gradient, tensor in zip(gradients, tensors, strict=True):
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(
    ("loss", "opset"),
    [(Ctc(), 11), (Ctc(), 17), (Ctc(blank=2), 23), (Ctc(time_first=True), 17), (Ctc(input_lengths=True), 13)],
    ids=str,
)
def test_ctc_is_that_of_pytorch(loss: Ctc, opset: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the other side of the comparison")
    steps, batch, classes = 9, 5, 6
    scores = GENERATOR.normal(size=(steps, batch, classes)) * 2
    # repeated labels, none at all, as many as fit, and padding of any kind
    labels = np.array([[1, 1, 3, -1], [4, 5, -1, -1], [-7, 99, 0, 0], [3, 4, 3, 4], [5, 5, 5, 5]])
    lengths = np.array([3, 2, 0, 4, 4])
    input_lengths = np.array([9, 4, 3, 9, 9])
    fed = {"x0": scores if loss.time_first else scores.transpose(1, 0, 2), "labels": labels, "labels_lengths": lengths}
    if loss.input_lengths:
        fed["labels_input_lengths"] = input_lengths
    found, (gradient,) = measure(shifted(fed["x0"].shape, opset), fed, loss)

    tensor = torch.tensor(scores, requires_grad=True)
    expected = torch.nn.functional.ctc_loss(
        torch.log_softmax(tensor, 2),
        torch.tensor(np.where(labels < 0, 1, np.minimum(labels, 5))),
        torch.tensor(input_lengths if loss.input_lengths else np.full(batch, steps)),
        torch.tensor(lengths),
        blank=loss.blank,
    )
    expected.backward()
    gradient = gradient if loss.time_first else gradient.transpose(1, 0, 2)
    np.testing.assert_allclose(found, expected.item(), rtol=1e-9)
    np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-6, atol=1e-10)


def test_labels_that_do_not_fit_into_the_steps_count_as_nothing() -> None:
    scores = GENERATOR.normal(size=(2, 3, 4))
    fed = {"x0": scores, "labels": np.array([[1, 1, 1], [1, 2, 3]]), "labels_lengths": np.array([3, 3])}
    found, (gradient,) = measure(shifted(scores.shape), fed, "ctc")
    assert 0 < found < np.inf
    assert not gradient[0].any()
    assert gradient[1].any()


def test_ctc_follows_pytorch_over_a_hundred_steps_in_float32() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the other side of the comparison")
    scores = GENERATOR.normal(size=(2, 12, 5)).astype(np.float32)
    labels, lengths = np.array([[1, 2, 2], [4, 3, 1]]), np.array([3, 3])
    session = ot.TrainingSession(
        make_trainable(
            shifted(scores.shape, dtype=np.float32), loss="ctc", trainable="W0", optimizer="sgd", learning_rate=0.5
        )
    )
    weight = torch.zeros(scores.shape, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.5)
    for _ in range(100):
        found = session.step({"x0": scores, "labels": labels, "labels_lengths": lengths})["loss"]
        log_probability = torch.log_softmax(torch.tensor(scores) + weight, 2).transpose(0, 1)
        loss = torch.nn.functional.ctc_loss(
            log_probability, torch.tensor(labels), torch.tensor([12, 12]), torch.tensor(lengths)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(found, loss.item(), rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "activation"),
    [("softmax_cross_entropy", "Softmax"), ("binary_cross_entropy", "Sigmoid"), ("kl_divergence", "LogSoftmax")],
)
def test_what_the_loss_has_in_itself_is_left_out_at_the_end_of_the_model(loss: str, activation: str) -> None:
    labels = CLASSES if loss == "softmax_cross_entropy" else SHARES
    plain = measure(shifted(SCORES.shape), {"x0": SCORES, "labels": labels}, loss)
    active = measure(shifted(SCORES.shape, tail=[activation]), {"x0": SCORES, "labels": labels}, loss)
    np.testing.assert_allclose(active[0], plain[0], rtol=1e-12)
    np.testing.assert_allclose(active[1][0], plain[1][0], rtol=1e-12)


def test_mean_squared_error_looks_at_what_the_model_gives() -> None:
    """A Sigmoid belongs to binary cross entropy, not to other losses."""
    found, _ = measure(shifted(SCORES.shape, tail=["Sigmoid"]), {"x0": SCORES, "labels": SHARES}, "mean_squared_error")
    np.testing.assert_allclose(found, np.mean((1 / (1 + np.exp(-SCORES)) - SHARES) ** 2), rtol=1e-9)


# Several terms


def test_terms_add_up_with_their_weights_and_a_step_gives_each() -> None:
    model = shifted(SCORES.shape, outputs=2)
    terms = [
        Term("softmax_cross_entropy", outputs="y0", weight=0.25, labels="class"),
        Term("huber", outputs="y1", labels="target"),
        Term("mean_squared_error", outputs="y1", weight=2.0, labels="target"),
    ]
    fed = {"x0": SCORES, "x1": SCORES, "class": CLASSES, "target": SHARES}
    session = ot.TrainingSession(make_trainable(model, loss=terms, trainable=["W0", "W1"], optimizer="sgd"))
    assert set(session.program.step_inputs()) == {"x0", "x1", "class", "target"}
    found = {name: float(value) for name, value in session.step(fed).items()}
    assert set(found) == {"loss", "loss/y0", "loss/y1", "loss/y1_1"}
    expected = 0.25 * found["loss/y0"] + found["loss/y1"] + 2.0 * found["loss/y1_1"]
    assert found["loss"] == pytest.approx(expected, rel=1e-12)
    assert found["loss/y1_1"] == pytest.approx(np.mean((SCORES - SHARES) ** 2), rel=1e-9)


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ([], "no term"),
        ([Term(outputs="y0"), Term("huber", "y1")], "fed 'labels', of different types"),
        ([Term("huber", ["y0", "y1"])], "looks at one output, and was given 2"),
        ([Term("huber", "y7")], "no output 'y7'"),
        ([Term("triplet", ["y0", "y1"])], "not 2"),
    ],
)
def test_terms_that_make_no_sense_are_refused(terms: list[Term], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        make_trainable(shifted(SCORES.shape, outputs=2), loss=terms, trainable=["W0", "W1"])


# Losses of one's own


def squared_model(opset: int) -> onnx.ModelProto:
    """A loss in ONNX: the mean of a stored number times the squared difference."""
    nodes = [
        helper.make_node("Sub", ["prediction", "goal"], ["d"]),
        helper.make_node("Mul", ["d", "d"], ["squared"]),
        helper.make_node("Mul", ["squared", "factor"], ["scaled"]),
        helper.make_node("ReduceMean", ["scaled"], ["loss"], keepdims=0),
    ]
    inputs = [floats("prediction", "N", 4, element_type=TensorProto.DOUBLE)]
    inputs.append(floats("goal", "N", 4, element_type=TensorProto.DOUBLE))
    stored = numpy_helper.from_array(np.array(3.0), "factor")
    model = model_of(
        nodes, inputs, [helper.make_tensor_value_info("loss", TensorProto.DOUBLE, [])], [stored], opset=opset
    )
    model.graph.name = "three_times_squared"
    return model


@pytest.mark.parametrize("opset", [13, 17])
def test_a_model_is_a_loss_in_its_own_opset(opset: int, tmp_path: Any) -> None:
    onnx.save(squared_model(opset), tmp_path / "loss.onnx")
    for loss in (squared_model(opset), OnnxLoss(tmp_path / "loss.onnx"), str(tmp_path / "loss.onnx")):
        found, (gradient,) = measure(shifted(SCORES.shape), {"x0": SCORES, "goal": SHARES}, loss)
        np.testing.assert_allclose(found, 3 * np.mean((SCORES - SHARES) ** 2), rtol=1e-12)
        np.testing.assert_allclose(gradient, 6 * (SCORES - SHARES) / SCORES.size, rtol=1e-12)


def test_two_loss_models_may_have_one_name() -> None:
    model = shifted(SCORES.shape, outputs=2)
    terms = [Term(squared_model(17), outputs="y0"), Term(squared_model(17), outputs="y1")]
    prepared = make_trainable(model, loss=terms, trainable=["W0", "W1"])
    assert ot.validate(prepared) == []
    assert [body.name for body in prepared.functions[:2]] == ["three_times_squared", "three_times_squared_1"]
    found = ot.TrainingSession(prepared).step({"x0": SCORES, "x1": 2 * SCORES, "goal": SHARES})
    expected = [3 * np.mean((scale * SCORES - SHARES) ** 2) for scale in (1, 2)]
    np.testing.assert_allclose([found["loss/y0"], found["loss/y1"]], expected, rtol=1e-9)


def test_a_loss_model_leaves_nothing_in_the_exported_file(tmp_path: Any) -> None:
    session = ot.TrainingSession(make_trainable(shifted(SCORES.shape), loss=squared_model(17), trainable="W0"))
    session.export(tmp_path / "out.onnx")
    exported = onnx.load(tmp_path / "out.onnx")
    assert not exported.functions
    assert [entry.domain for entry in exported.opset_import] == [""]


def test_a_local_function_of_the_model_is_a_loss() -> None:
    model = shifted(SCORES.shape)
    nodes = [
        helper.make_node("Sub", ["a", "b"], ["d"]),
        helper.make_node("Abs", ["d"], ["e"]),
        helper.make_node("ReduceMean", ["e"], ["l"], keepdims=0),
    ]
    model.functions.append(helper.make_function("mine", "distance", ["a", "b"], ["l"], nodes, model.opset_import))
    model.opset_import.append(helper.make_opsetid("mine", 1))
    found, _ = measure(model, {"x0": SCORES, "labels": SHARES}, FunctionLoss("mine", "distance"))
    np.testing.assert_allclose(found, np.mean(np.abs(SCORES - SHARES)), rtol=1e-12)
    with pytest.raises(ModelError, match=r"no function mine:other\. Its functions are \['mine:distance'\]"):
        make_trainable(model, loss=FunctionLoss("mine", "other"), trainable="W0")


def test_a_jax_function_is_a_loss() -> None:
    def log_cosh(prediction: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.mean(jnp.log(jnp.cosh(prediction - labels)))

    found, (gradient,) = measure(shifted(SCORES.shape), {"x0": SCORES, "labels": SHARES}, log_cosh)
    np.testing.assert_allclose(found, np.mean(np.log(np.cosh(SCORES - SHARES))), rtol=1e-9)
    np.testing.assert_allclose(gradient, np.tanh(SCORES - SHARES) / SCORES.size, rtol=1e-7)


def test_a_jax_function_of_class_numbers_takes_batches_of_any_size() -> None:
    def cross_entropy(scores: jax.Array, labels: jax.Array) -> jax.Array:
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1))

    loss = JaxLoss(cross_entropy, labels_type="int64", labels_dims=["batch"])
    session = ot.TrainingSession(make_trainable(mlp(), loss=loss, optimizer="sgd"))
    plain = ot.TrainingSession(make_trainable(mlp(), optimizer="sgd"))
    for size in (3, 7):
        inputs = {"x": GENERATOR.normal(size=(size, 4)).astype(np.float32), "labels": np.arange(size) % 3}
        np.testing.assert_allclose(session.step(inputs)["loss"], plain.step(inputs)["loss"], rtol=1e-5)


def test_a_jax_function_that_gives_no_scalar_is_refused() -> None:
    with pytest.raises(ModelError, match="must return a scalar"):
        make_trainable(shifted(SCORES.shape), loss=lambda prediction, labels: prediction - labels, trainable="W0")


@pytest.mark.parametrize(
    ("loss", "error", "words"),
    [
        ("hinge", UnsupportedError, "Known are 'softmax_cross_entropy'"),
        (3, UnsupportedError, "3 is no loss"),
        (SoftmaxCrossEntropy(class_weights=[1.0, 2.0]), ModelError, "class_weights has 2 numbers.*4 classes"),
        ("ctc", ModelError, r"needs scores \[N, T, C\]"),
        (OnnxLoss(mlp()), ModelError, "at least one input|one output"),
    ],
)
def test_a_loss_that_does_not_fit_is_refused(loss: Any, error: type[Exception], words: str) -> None:
    model = shifted(SCORES.shape)
    if isinstance(loss, OnnxLoss):
        loss = OnnxLoss(model_of([], [], [], [weights("v", 2)]))
    with pytest.raises(error, match=words):
        make_trainable(model, loss=loss, trainable="W0")


def test_ctc_needs_opset_11() -> None:
    with pytest.raises(UnsupportedError, match="needs operators of opset 11, and the model imports 9"):
        make_trainable(shifted((2, 3, 4), 9), loss="ctc", trainable="W0")


@pytest.mark.parametrize("name", [name for name in losses.LOSSES if name not in ("ctc", "triplet")])
def test_losses_of_float16_models_are_computed_in_float32(name: str) -> None:
    labels = CLASSES if name in ("softmax_cross_entropy", "negative_log_likelihood") else SHARES.astype(np.float16)
    model = shifted(SCORES.shape, dtype=np.float16)
    found, _ = measure(model, {"x0": SCORES.astype(np.float16), "labels": labels}, name)
    assert found.dtype == np.float32
    wide = labels.astype(np.float64) if labels.dtype == np.float16 else labels
    exact, _ = measure(shifted(SCORES.shape), {"x0": SCORES, "labels": wide}, name)
    np.testing.assert_allclose(found, exact, rtol=3e-3, atol=3e-3)


def test_the_file_tells_what_is_minimized() -> None:
    terms = [
        Term(SoftmaxCrossEntropy(label_smoothing=0.1), outputs="y0", labels="class"),
        Term(JaxLoss(lambda prediction, labels: jnp.mean(prediction - labels)), outputs="y1", weight=0.5),
    ]
    text = make_trainable(shifted(SCORES.shape, outputs=2), loss=terms, trainable=["W0", "W1"]).training_info[0]
    assert (
        "'loss' is softmax cross entropy (label_smoothing=0.1) of 'y0' + 0.5 times jax loss of 'y1', "
        "against 'class', 'labels'" in text.algorithm.doc_string
    )


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_batch_of_ignored_labels_alone_changes_nothing(opset: int, smoothing: float) -> None:
    loss = SoftmaxCrossEntropy(ignore_index=-100, label_smoothing=smoothing)
    session = ot.TrainingSession(ot.make_trainable(mlp(opset), loss=loss, optimizer="sgd"))
    before = {name: np.array(session.variables[name]) for name in ("W1", "b1", "W2", "b2")}
    outputs = session.step({"x": np.ones((2, 4), np.float32), "labels": np.full(2, -100)})
    assert outputs["loss"] == 0
    for name, value in before.items():
        np.testing.assert_array_equal(session.variables[name], value)
