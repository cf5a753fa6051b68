"""Every optimizer follows its twin in optax, step by step, from the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import optax
import pytest

import onnxtrain as ot
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
from tests.authoring.inference_models import mlp
from tests.authoring.training_graphs import combined

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


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_a_transformation_of_optax_is_written_as_it_is(name: str) -> None:
    model = ot.make_trainable(mlp(opset=18), optimizer=TRANSFORMATIONS[name]())
    assert_is_right(model)
    assert_follows(model, TRANSFORMATIONS[name]())
