"""Every optimizer follows its twin in optax, step by step, from the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import optax
import pytest

import onnxtrain as ot
from onnxtrain.authoring import Group
from onnxtrain.authoring.optimizers import (
    OPTIMIZERS,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Lamb,
    Lion,
    Momentum,
    NAdam,
    Optimizer,
    RAdam,
    RmsProp,
    Sgd,
)
from onnxtrain.errors import UnsupportedError
from tests.authoring.inference_models import mlp
from tests.authoring.training_graphs import combined, nodes_of

STEPS = 100
RATE = 0.01
NAMES = ("W1", "b1", "W2", "b2")


def batch(seed: int, dtype: str = "float32") -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {"x": generator.normal(size=(6, 4)).astype(dtype), "labels": generator.integers(0, 3, size=6)}


def twin_loss(weights: Any, inputs: Any) -> Any:
    """The mlp of these tests in JAX."""
    hidden = jax.nn.relu(inputs["x"] @ weights["W1"] + weights["b1"])
    logits = hidden @ weights["W2"].T + weights["b2"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, inputs["labels"]).mean()


@contextmanager
def settings_of_twins(dtype: str) -> Iterator[None]:
    """Those in which optax runs: it mixes types."""
    with jax.enable_x64(dtype == "float64"), jax.numpy_dtype_promotion("standard"):
        yield


def assert_follows(model: onnx.ModelProto, twin: Any, dtype: str = "float32", rtol: float = 1e-5) -> None:
    """The losses and the weights of a session are those of optax over the steps."""
    session = ot.TrainingSession(model)
    twin = optax.with_extra_args_support(twin)

    @jax.jit
    def step(weights: Any, memory: Any, inputs: Any) -> Any:
        loss, gradients = jax.value_and_grad(twin_loss)(weights, inputs)
        updates, memory = twin.update(gradients, memory, weights, value=loss)
        return optax.apply_updates(weights, updates), memory, loss

    with settings_of_twins(dtype):
        weights: Any = {name: jnp.asarray(np.asarray(session.variables[name])) for name in NAMES}
        memory = twin.init(weights)
    for seed in range(STEPS):
        inputs = batch(seed, dtype)
        loss = session.step(inputs)["loss"]
        with settings_of_twins(dtype):
            weights, memory, expected = step(weights, memory, inputs)
        np.testing.assert_allclose(loss, expected, rtol=rtol)
    for name in NAMES:
        np.testing.assert_allclose(session.variables[name], weights[name], rtol=rtol, atol=rtol / 10)


def assert_is_right(model: onnx.ModelProto) -> None:
    assert ot.validate(model) == []
    onnx.checker.check_model(combined(model))
    onnx.shape_inference.infer_shapes(combined(model), strict_mode=True)


def decayed(decay: float, twin: Any) -> Any:
    return optax.chain(optax.add_decayed_weights(decay), twin)


TWINS: dict[str, tuple[Optimizer, Any]] = {
    "sgd": (Sgd(weight_decay=0.1), decayed(0.1, optax.sgd(RATE))),
    "momentum": (Momentum(weight_decay=0.1), decayed(0.1, optax.sgd(RATE, 0.9))),
    "nesterov": (Momentum(nesterov=True), optax.sgd(RATE, 0.9, nesterov=True)),
    "adagrad": (Adagrad(epsilon=0.0, weight_decay=0.1), decayed(0.1, optax.adagrad(RATE, eps=0.0))),
    "rmsprop": (RmsProp(), optax.rmsprop(RATE)),
    # attributes of operators are float32, and 1 - beta2 follows them
    "adam": (
        Adam(epsilon=0.0, weight_decay=0.1),
        decayed(0.1, optax.adam(RATE, float(np.float32(0.9)), float(np.float32(0.999)), eps=0.0)),
    ),
    "adamw": (AdamW(weight_decay=0.1), optax.adamw(RATE, weight_decay=0.1)),
    "nadam": (NAdam(weight_decay=0.1), optax.nadamw(RATE, weight_decay=0.1)),
    "radam": (RAdam(), optax.radam(RATE)),
    "lamb": (Lamb(weight_decay=0.1), optax.lamb(RATE, weight_decay=0.1)),
    "lion": (Lion(), optax.lion(RATE)),
    "adafactor": (Adafactor(4, weight_decay=1e-3), optax.adafactor(RATE, 4, weight_decay_rate=1e-3)),
}
OPERATORS = ("sgd", "momentum", "nesterov", "adagrad", "adam")


def test_every_optimizer_has_a_twin() -> None:
    assert TWINS.keys() == OPTIMIZERS.keys()


@pytest.mark.parametrize("name", TWINS)
def test_an_optimizer_follows_its_twin_in_optax(name: str) -> None:
    optimizer, twin = TWINS[name]
    model = ot.make_trainable(mlp(opset=12), optimizer=optimizer, learning_rate=RATE)
    assert_is_right(model)
    assert_follows(model, twin, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in TWINS if name not in OPERATORS])
def test_a_function_has_coefficients_of_the_type_of_the_weights(name: str) -> None:
    optimizer, twin = TWINS[name]
    model = ot.make_trainable(mlp(opset=18, dtype="float64"), optimizer=optimizer, learning_rate=RATE)
    assert_is_right(model)
    # optax computes the decay of Adafactor in float32
    assert_follows(model, twin, "float64", 1e-7 if name == "adafactor" else 1e-9)


SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, RATE, 10, STEPS)
WITHOUT_BIASES: dict[str, Any] = {"W1": True, "W2": True, "b1": False, "b2": False}
TRANSFORMATIONS: dict[str, Callable[[], Any]] = {
    "adamw, with a mask": lambda: optax.adamw(RATE, mask=WITHOUT_BIASES, weight_decay=0.1),
    "lion": lambda: optax.lion(RATE),
    "lamb": lambda: optax.lamb(RATE, weight_decay=0.1),
    "lars": lambda: optax.lars(RATE),
    "adafactor": lambda: optax.adafactor(RATE, 4),
    "rmsprop, centered": lambda: optax.rmsprop(RATE, centered=True, momentum=0.9),
    "muon": lambda: optax.contrib.muon(RATE),
    "novograd": lambda: optax.novograd(RATE),
    "yogi": lambda: optax.yogi(RATE),
    "adabelief": lambda: optax.adabelief(RATE),
    "adamax": lambda: optax.adamax(RATE),
    "amsgrad": lambda: optax.amsgrad(RATE),
    "adan": lambda: optax.adan(RATE),
    "sm3": lambda: optax.sm3(RATE),
    "prodigy": lambda: optax.contrib.prodigy(0.1),
    "schedule-free": lambda: optax.contrib.schedule_free_adamw(RATE),
    "a chain": lambda: optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.add_decayed_weights(0.1, lambda weights: jax.tree.map(lambda value: value.ndim > 1, weights)),
        optax.scale_by_adam(),
        optax.scale_by_schedule(SCHEDULE),
        optax.scale(-1.0),
    ),
    "several steps": lambda: optax.MultiSteps(optax.adam(RATE), 3).gradient_transformation(),
    "finite only": lambda: optax.apply_if_finite(optax.sgd(RATE), 3),
    "ema": lambda: optax.chain(optax.sgd(RATE), optax.ema(0.9)),
    "several transformations": lambda: optax.multi_transform(
        {"matrix": optax.adam(RATE), "bias": optax.set_to_zero()},
        {"W1": "matrix", "W2": "matrix", "b1": "bias", "b2": "bias"},
    ),
    "injected": lambda: optax.inject_hyperparams(optax.adam)(SCHEDULE),
    "noisy": lambda: optax.noisy_sgd(RATE, key=3),
    "plateau": lambda: optax.chain(optax.sgd(RATE), optax.contrib.reduce_on_plateau(patience=3, cooldown=1)),
    "clipped by weight": lambda: optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(0.1, momentum=0.9)),
}


QUICK = ("a chain", "adafactor", "finite only", "muon", "plateau", "several steps", "several transformations", "yogi")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in TRANSFORMATIONS]
)
def test_a_transformation_of_optax_is_written_as_it_is(name: str) -> None:
    model = ot.make_trainable(mlp(opset=18), optimizer=TRANSFORMATIONS[name]())
    assert_is_right(model)
    assert_follows(model, TRANSFORMATIONS[name]())


def test_the_rate_of_a_transformation_is_its_own() -> None:
    with pytest.raises(UnsupportedError, match="has its own learning rate"):
        ot.make_trainable(mlp(), optimizer=optax.sgd(RATE), learning_rate=0.1)
    with pytest.raises(UnsupportedError, match="multi_transform"):
        ot.make_trainable(mlp(), optimizer=optax.sgd(RATE), groups=[Group("W1", 0.1)])


def test_a_transformation_that_wants_more_than_a_step_has_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="'value_fn'"):
        ot.make_trainable(mlp(), optimizer=optax.lbfgs())
    with pytest.raises(UnsupportedError, match="primitive 'svd'"):
        ot.make_trainable(mlp(), optimizer=optax.contrib.galore(RATE))


def test_the_state_of_a_transformation_is_named_after_its_path_and_can_be_set() -> None:
    session = ot.TrainingSession(ot.make_trainable(mlp(), optimizer=optax.inject_hyperparams(optax.sgd)(RATE)))
    assert set(session.variables) == {*NAMES, "optax/count", "optax/hyperparams/learning_rate"}
    session.variables["optax/hyperparams/learning_rate"] = np.asarray(0, np.float32)
    before = np.asarray(session.variables["W1"]).copy()
    session.step(batch(0))
    np.testing.assert_array_equal(session.variables["W1"], before)


@pytest.mark.parametrize("initialize", ["keep", "glorot_uniform", {"W1": "he_normal"}])
def test_a_reset_starts_a_transformation_from_the_weights_that_it_gives(initialize: Any) -> None:
    twin = optax.contrib.schedule_free_adamw(RATE)
    session = ot.TrainingSession(ot.make_trainable(mlp(), optimizer=twin, initialize=initialize))
    for seed in range(3):
        session.step(batch(seed))
    session.initialize()
    with settings_of_twins("float32"):
        expected: Any = twin.init({name: jnp.asarray(session.variables[name]) for name in NAMES})
    for name in NAMES:
        np.testing.assert_array_equal(session.variables[f"optax/z/{name}"], expected.z[name])
        np.testing.assert_array_equal(session.variables[f"optax/base_optimizer_state/0/nu/{name}"], 0)


def test_a_run_with_a_transformation_resumes_exactly(tmp_path: Any) -> None:
    session = ot.TrainingSession(ot.make_trainable(mlp(), optimizer=optax.adafactor(SCHEDULE, 4)))
    for seed in range(3):
        session.step(batch(seed))
    session.save(tmp_path / "saved.onnx")
    again = ot.TrainingSession(tmp_path / "saved.onnx")
    assert float(session.step(batch(3))["loss"]) == float(again.step(batch(3))["loss"])
    for name, value in session.variables.items():
        np.testing.assert_array_equal(value, again.variables[name])


@pytest.mark.parametrize("optimizer", [AdamW(weight_decay=0.5), Lamb(), Lion(), RmsProp(), Sgd(), Adam(), Adagrad()])
def test_a_group_has_a_weight_decay_of_its_own(optimizer: Any) -> None:
    groups = [Group("W*", weight_decay=0.3), Group("b*", weight_decay=0.0)]
    model = ot.make_trainable(mlp(), optimizer=optimizer, groups=groups, learning_rate=RATE)
    alike = replace(optimizer, weight_decay=0.3)
    other = ot.make_trainable(mlp(), optimizer=alike, groups=groups[1:], learning_rate=RATE)
    sessions = [ot.TrainingSession(one) for one in (model, other)]
    for seed in range(3):
        losses = [float(session.step(batch(seed))["loss"]) for session in sessions]
        assert losses[0] == losses[1]


def test_an_optimizer_is_one_function_that_is_called_for_every_weight() -> None:
    model = ot.make_trainable(mlp(), optimizer="adamw")
    (function,) = model.functions
    assert (function.domain, function.name) == ("onnxtrain.optimizers", "AdamW")
    assert "Decoupled Weight Decay" in function.doc_string
    assert len(nodes_of(model, "AdamW")) == len(NAMES)
    assert model.ir_version >= 8


def test_only_functions_raise_the_ir_version() -> None:
    model = mlp(opset=7)
    model.ir_version = 3
    assert ot.make_trainable(model, optimizer="adam").ir_version == 7
    assert ot.make_trainable(model, optimizer="adamw").ir_version == 8


@pytest.mark.parametrize("opset", [7, 22])
@pytest.mark.parametrize("name", [name for name in TWINS if name != "lion"])
def test_an_optimizer_is_written_for_the_opset_of_the_model(name: str, opset: int) -> None:
    model = ot.make_trainable(mlp(opset), optimizer=name)
    assert_is_right(model)
    assert np.isfinite(float(ot.TrainingSession(model).step(batch(0))["loss"]))


def test_what_an_opset_does_not_have_is_named() -> None:
    with pytest.raises(UnsupportedError, match="Lion needs Sign, which opset 8 does not have"):
        ot.make_trainable(mlp(opset=8), optimizer="lion")


def test_an_exported_model_has_no_functions_of_optimizers(tmp_path: Any) -> None:
    session = ot.TrainingSession(ot.make_trainable(mlp(), optimizer="lamb"))
    session.export(tmp_path / "trained.onnx")
    exported = onnx.load(tmp_path / "trained.onnx")
    assert not exported.functions
    assert [entry.domain for entry in exported.opset_import] == [""]
