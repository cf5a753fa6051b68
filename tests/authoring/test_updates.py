"""What stands around an optimizer: schedules, clipping, accumulation, averages, loss scaling and groups."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
import onnx
import optax
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

import onnxtrain as ot
from onnxtrain.authoring import (
    ClipByGlobalNorm,
    ClipByNorm,
    ClipByValue,
    FedRate,
    Group,
    LossScale,
    Sgd,
    make_trainable,
    schedules,
)
from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.expressions import Expression
from onnxtrain.authoring.names import Names
from onnxtrain.errors import ModelError, UnsupportedError
from tests.authoring.inference_models import floats, mlp, model_of
from tests.authoring.training_graphs import combined, infer

STEPS = 100


def batch(size: int = 6, seed: int = 0, scale: float = 1.0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = (scale * generator.normal(size=(size, 4))).astype(np.float32)
    return {"x": x, "labels": generator.integers(0, 3, size=size)}


def weights_of(session: ot.TrainingSession) -> dict[str, np.ndarray]:
    return {name: session.variables[name] for name in ("W1", "b1", "W2", "b2")}


def twin_loss(weights: Any, inputs: Any) -> Any:
    """The mlp of these tests in JAX."""
    hidden = jax.nn.relu(inputs["x"] @ weights["W1"] + weights["b1"])
    logits = hidden @ weights["W2"].T + weights["b2"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, inputs["labels"]).mean()


SCHEDULES: dict[str, tuple[schedules.Schedule, optax.Schedule]] = {
    "linear": (schedules.linear(0.3, 0.1, 50), optax.linear_schedule(0.3, 0.1, 50)),
    "polynomial": (schedules.Polynomial(0.3, 0.1, 60, 2.0), optax.polynomial_schedule(0.3, 0.1, 2.0, 60)),
    "cosine": (schedules.Cosine(0.3, 80, 0.03), optax.cosine_decay_schedule(0.3, 80, 0.1)),
    "exponential": (schedules.Exponential(0.3, 0.5, 30), optax.exponential_decay(0.3, 30, 0.5)),
    "exponential in stairs": (
        schedules.Exponential(0.3, 0.5, 20, staircase=True, end=0.05),
        optax.exponential_decay(0.3, 20, 0.5, staircase=True, end_value=0.05),
    ),
    "stairs": (
        schedules.Stairs(0.3, {60: 0.1, 30: 0.5}),
        optax.piecewise_constant_schedule(0.3, {30: 0.5, 60: 0.1}),
    ),
    "one cycle": (schedules.OneCycle(0.3, 90), optax.cosine_onecycle_schedule(90, 0.3)),
    "warm-up and cosine": (
        schedules.WarmUp(20, schedules.Cosine(0.3, 60, 0.03)),
        optax.warmup_cosine_decay_schedule(0.0, 0.3, 20, 80, 0.03),
    ),
    "warm-up": (schedules.WarmUp(10, 0.3, start=0.1), optax.linear_schedule(0.1, 0.3, 10)),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("opset", [8, 17])
def test_a_schedule_gives_the_rates_of_optax_from_its_first_value_on(name: str, opset: int) -> None:
    schedule, twin = SCHEDULES[name]
    (given,) = ReferenceEvaluator(graph_of(schedule, opset)).run(None, {"step": np.arange(STEPS, dtype=np.float32)})
    found = np.asarray(given)
    with jax.numpy_dtype_promotion("standard"):
        expected = [float(np.asarray(twin(step))) for step in range(STEPS)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    assert found[0] == pytest.approx(schedule.first, rel=1e-5)


def graph_of(schedule: schedules.Schedule, opset: int) -> onnx.ModelProto:
    """A model that computes the rates for a vector of steps."""
    empty = model_of([], [floats("step", STEPS)], [])
    builder = GraphBuilder(Names(empty), opset)
    rate = schedule.write(Expression(builder, "step", TensorProto.FLOAT, "rate")).value
    return model_of(builder.nodes, [floats("step", STEPS)], [floats(rate, STEPS)], builder.initializers, opset=opset)


def test_training_under_a_schedule_follows_optax() -> None:
    schedule, twin = SCHEDULES["warm-up and cosine"]
    model = make_trainable(mlp(), optimizer="sgd", learning_rate=schedule)
    assert_follows(model, optax.sgd(twin))
    session = ot.TrainingSession(model)
    rates = [float(session.step(batch())["learning_rate"]) for _ in range(3)]
    np.testing.assert_allclose(rates, [0.0, 0.015, 0.03], rtol=1e-6)


CLIPS = {
    "by value": (ClipByValue(0.02), optax.clip(0.02)),
    "by the global norm": (ClipByGlobalNorm(0.1), optax.clip_by_global_norm(0.1)),
}


@pytest.mark.parametrize("name", CLIPS)
def test_clipped_training_follows_optax(name: str) -> None:
    clip, twin = CLIPS[name]
    assert_follows(
        make_trainable(mlp(), optimizer="sgd", learning_rate=0.5, clip=clip), optax.chain(twin, optax.sgd(0.5))
    )


def assert_follows(model: onnx.ModelProto, transformation: optax.GradientTransformation) -> None:
    """The weights and losses of the session are those of optax, step by step."""
    session = ot.TrainingSession(model)
    weights: Any = weights_of(session)
    memory = transformation.init(weights)

    @jax.jit
    @jax.numpy_dtype_promotion("standard")
    def step(weights: Any, memory: Any, inputs: Any) -> Any:
        loss, gradients = jax.value_and_grad(twin_loss)(weights, inputs)
        updates, memory = transformation.update(gradients, memory, weights)
        return optax.apply_updates(weights, updates), memory, loss

    for seed in range(STEPS):
        inputs = batch(seed=seed)
        loss = session.step(inputs)["loss"]
        weights, memory, expected = step(weights, memory, inputs)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for name, value in weights_of(session).items():
        np.testing.assert_allclose(value, weights[name], rtol=1e-4, atol=1e-6)


def test_the_norm_of_each_gradient_is_cut_to_the_limit() -> None:
    limit = 0.05
    session = ot.TrainingSession(make_trainable(mlp(), optimizer="sgd", learning_rate=1.0, clip=ClipByNorm(limit)))
    before = weights_of(session)
    gradients = session.step(batch(), outputs=[f"{name}/gradient" for name in before])
    for name, value in weights_of(session).items():
        gradient = np.asarray(gradients[f"{name}/gradient"])
        expected = gradient * min(1.0, limit / np.linalg.norm(gradient))
        np.testing.assert_allclose(before[name] - value, expected, rtol=1e-4, atol=1e-7)


def test_a_zero_gradient_stays_zero_when_it_is_clipped() -> None:
    nothing = {"x": np.zeros((6, 4), np.float32), "labels": np.zeros(6, np.int64)}
    for clip in (ClipByNorm(0.1), ClipByGlobalNorm(0.1), ClipByValue(0.1)):
        session = ot.TrainingSession(make_trainable(mlp(), optimizer="sgd", trainable="W1", clip=clip))
        before = session.variables["W1"]
        session.step(nothing)
        np.testing.assert_array_equal(session.variables["W1"], before)


def test_a_number_clips_by_the_global_norm_and_the_step_gives_that_norm() -> None:
    session = ot.TrainingSession(make_trainable(mlp(), clip=0.1))
    names = [f"{name}/gradient" for name in weights_of(session)]
    found = session.step(batch(), outputs=[*names, "gradient_norm"])
    expected = np.sqrt(sum(np.sum(np.asarray(found[name]) ** 2) for name in names))
    np.testing.assert_allclose(found["gradient_norm"], expected, rtol=1e-5)
    assert set(session.step(batch())) == {"loss", "gradient_norm"}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_steps_that_accumulate_make_the_update_of_the_large_batch(optimizer: str) -> None:
    whole = ot.TrainingSession(make_trainable(mlp(dtype="float64"), optimizer=optimizer, learning_rate=0.1))
    parts = ot.TrainingSession(
        make_trainable(mlp(dtype="float64"), optimizer=optimizer, learning_rate=0.1, accumulate=3)
    )
    for seed in range(5):
        inputs = batch(12, seed)
        inputs["x"] = inputs["x"].astype(np.float64)
        whole.step(inputs)
        before = weights_of(parts)
        for part in range(3):
            held = weights_of(parts)
            assert all(np.array_equal(held[name], before[name]) for name in held)
            parts.step({name: value[4 * part : 4 * part + 4] for name, value in inputs.items()})
        for name, value in weights_of(parts).items():
            np.testing.assert_allclose(value, whole.variables[name], rtol=1e-12, atol=1e-14)
    assert parts.variables.get("step", 5) == 5


def test_accumulation_resumes_in_the_middle_of_an_update(tmp_path: Any) -> None:
    session = ot.TrainingSession(make_trainable(mlp(), accumulate=3))
    for seed in range(4):
        session.step(batch(seed=seed))
    session.save(tmp_path / "half.onnx")
    resumed = ot.TrainingSession(tmp_path / "half.onnx")
    for seed in range(4, 9):
        session.step(batch(seed=seed))
        resumed.step(batch(seed=seed))
    for name, value in session.variables.items():
        np.testing.assert_array_equal(resumed.variables[name], value)


def test_the_moving_average_follows_the_weights_and_is_exported(tmp_path: Any) -> None:
    model = make_trainable(mlp(), optimizer="sgd", learning_rate=0.5, average=0.9)
    session = ot.TrainingSession(model)
    expected = weights_of(session)
    for seed in range(10):
        session.step(batch(seed=seed))
        expected = {name: 0.9 * old + 0.1 * session.variables[name] for name, old in expected.items()}
    for name, value in expected.items():
        np.testing.assert_allclose(session.variables[f"{name}/average"], value, rtol=1e-5, atol=1e-7)

    session.export(tmp_path / "averaged.onnx", averaged=True)
    averaged = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.load(tmp_path / "averaged.onnx").graph.initializer
    }
    for name in expected:
        np.testing.assert_array_equal(averaged[name], session.variables[f"{name}/average"])
    session.export(tmp_path / "last.onnx")
    assert not onnx.load(tmp_path / "last.onnx").metadata_props


def test_averages_start_at_what_initialization_draws() -> None:
    session = ot.TrainingSession(make_trainable(mlp(), average=0.9, initialize="he_normal"))
    session.step(batch())
    session.initialize()
    for name, value in weights_of(session).items():
        np.testing.assert_array_equal(session.variables[f"{name}/average"], value)


def test_a_model_without_averages_says_how_to_get_them(tmp_path: Any) -> None:
    session = ot.TrainingSession(make_trainable(mlp()))
    with pytest.raises(ModelError, match=r"average=0\.999"):
        session.export(tmp_path / "averaged.onnx", averaged=True)


def test_a_scaled_loss_trains_like_the_loss_itself() -> None:
    scaled = ot.TrainingSession(make_trainable(mlp(), loss_scale=LossScale(start=1024.0)))
    plain = ot.TrainingSession(make_trainable(mlp()))
    for seed in range(20):
        found, expected = scaled.step(batch(seed=seed)), plain.step(batch(seed=seed))
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)


def test_an_overflow_changes_no_weight_and_halves_the_scale() -> None:
    model = make_trainable(mlp(), loss_scale=LossScale(start=8.0, patience=2))
    session = ot.TrainingSession(model)
    scales = [8.0]
    held = [name for name in session.variables if not name.startswith("loss_scale")]
    for step, overflows in enumerate([False, True, False, False, False, True]):
        before = {name: session.variables[name] for name in held}
        session.step(batch(seed=step, scale=np.inf if overflows else 1.0))
        unchanged = all(np.array_equal(session.variables[name], before[name]) for name in held)
        assert unchanged == overflows
        scales.append(float(session.variables["loss_scale"]))
    assert scales == [8.0, 8.0, 4.0, 4.0, 8.0, 8.0, 4.0]


def test_float16_gradients_that_vanish_are_saved_by_the_scale() -> None:
    tiny = {"x": np.full((6, 4), 2e-4, np.float16), "labels": np.zeros(6, np.int64)}
    changed = {}
    for scale in (None, LossScale()):
        model = make_trainable(mlp(dtype="float16"), optimizer="sgd", trainable="W1", loss_scale=scale)
        session = ot.TrainingSession(model)
        gradient = session.step({**tiny, "x": tiny["x"] * np.float16(0.002)}, outputs=["W1/gradient"])["W1/gradient"]
        changed[scale] = np.count_nonzero(gradient)
    assert changed[None] < changed[LossScale()]


def test_loss_scaling_and_accumulation_work_together() -> None:
    whole = ot.TrainingSession(make_trainable(mlp(), optimizer="sgd", learning_rate=0.1))
    parts = ot.TrainingSession(
        make_trainable(mlp(), optimizer="sgd", learning_rate=0.1, accumulate=2, loss_scale=LossScale(), clip=100.0)
    )
    for seed in range(4):
        inputs = batch(8, seed)
        whole.step(inputs)
        for rows in (slice(0, 4), slice(4, 8)):
            parts.step({name: value[rows] for name, value in inputs.items()})
        for name, value in weights_of(parts).items():
            np.testing.assert_allclose(value, whole.variables[name], rtol=1e-4, atol=1e-6)
    assert parts.variables["loss_scale/good_updates"] == 4


def test_groups_have_learning_rates_of_their_own() -> None:
    groups = [Group("W2", learning_rate_factor=0.0), Group(["W*", "b1"], learning_rate_factor=0.5)]
    session = ot.TrainingSession(make_trainable(mlp(), optimizer="sgd", learning_rate=0.2, groups=groups))
    before = weights_of(session)
    gradients = session.step(batch(), outputs=[f"{name}/gradient" for name in before])
    for name, factor in {"W1": 0.5, "b1": 0.5, "W2": 0.0, "b2": 1.0}.items():
        expected = before[name] - 0.2 * factor * np.asarray(gradients[f"{name}/gradient"])
        np.testing.assert_allclose(session.variables[name], expected, rtol=1e-5, atol=1e-7)


def test_a_group_that_matches_nothing_is_refused() -> None:
    with pytest.raises(ModelError, match=r"groups='encoder\.\*' matches no weight"):
        make_trainable(mlp(), groups=[Group("encoder.*")])


def test_the_learning_rate_can_be_fed() -> None:
    session = ot.TrainingSession(make_trainable(mlp(), optimizer=Sgd(), learning_rate=FedRate(0.1)))
    assert "learning_rate" not in session.variables
    for fed, rate in (({}, 0.1), ({"learning_rate": np.float32(0.3)}, 0.3)):
        before = session.variables["W1"]
        gradient = session.step({**batch(), **fed}, outputs=["W1/gradient"])["W1/gradient"]
        np.testing.assert_allclose(before - session.variables["W1"], rate * np.asarray(gradient), rtol=1e-3, atol=1e-7)


EVERYTHING: dict[str, Any] = {
    "learning_rate": schedules.WarmUp(5, schedules.OneCycle(0.1, 20)),
    "clip": 1.0,
    "accumulate": 2,
    "average": 0.99,
    "loss_scale": LossScale(),
    "groups": [Group("b*", learning_rate_factor=2.0)],
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("opset", [9, 23])
def test_everything_together_is_a_valid_model_that_trains(dtype: str, opset: int) -> None:
    model = make_trainable(mlp(opset, dtype=dtype), **EVERYTHING)
    assert ot.validate(model) == []
    onnx.checker.check_model(combined(model), full_check=True)
    session = ot.TrainingSession(model)
    inputs = batch()
    inputs["x"] = inputs["x"].astype(dtype)
    losses = [float(session.step(inputs)["loss"]) for _ in range(20)]
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(
        infer(model, {"x": inputs["x"]})[0], infer(mlp(opset, dtype=dtype), {"x": inputs["x"]})[0]
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_stands_in_the_file_tells_how_it_is_trained(dtype: str) -> None:
    model = make_trainable(mlp(dtype=dtype), **EVERYTHING)
    text = model.training_info[0].algorithm.doc_string
    for words in ("WarmUp(steps=5", "2 steps make one update", "loss is scaled", "ClipByGlobalNorm", "decay of 0.99"):
        assert words in text
    averages = json.loads(next(entry.value for entry in model.metadata_props if entry.key == "onnxtrain.averages"))
    assert averages == {name: f"{name}/average" for name in ("W1", "b1", "W2", "b2")}


@pytest.mark.parametrize("option", [{"accumulate": 2}, {"loss_scale": LossScale()}])
def test_steps_that_may_change_nothing_need_opset_9(option: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="opset 8 does not have"):
        make_trainable(mlp(8), **option)


@pytest.mark.parametrize("option", [{"accumulate": 0}, {"average": 1.0}, {"average": -0.5}])
def test_impossible_numbers_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(option))):
        make_trainable(mlp(), **option)
