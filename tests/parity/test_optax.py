"""Training information written by hand does what the same run does in JAX and optax, in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import optax
import pytest

from onnxtrain import TrainingSession
from tests.parity import models, twins

STEPS = 50
TOLERANCE = 1e-5


def labelled_batches(name: str, shape: tuple[int, ...], classes: int) -> list[dict[str, np.ndarray]]:
    """Batches of noise, each example with the mean of its class, which is to be learnt."""
    generator = np.random.default_rng(0)
    means = generator.normal(size=(classes, *shape[1:]))
    batches = []
    for _ in range(STEPS):
        labels = generator.integers(0, classes, shape[0])
        examples = means[labels] + generator.normal(size=shape)
        batches.append({name: examples.astype(np.float32), "labels": labels})
    return batches


def assert_same_losses(found: Sequence[float], expected: Sequence[float]) -> None:
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE)


def assert_same_weights(session: TrainingSession, weights: twins.Arrays) -> None:
    distances = {name: twins.distance(session.variables[name], value) for name, value in weights.items()}
    assert {name: far for name, far in distances.items() if not far <= TOLERANCE} == {}


@pytest.mark.spec("T-03", "T-12", "G-01", "O-01")
@pytest.mark.parametrize("mode", ["standard", "nesterov"])
def test_a_network_trained_by_momentum_follows_optax(mode: str) -> None:
    model = models.mlp_with_momentum(mode)
    rate = optax.exponential_decay(0.05, transition_steps=1, decay_rate=0.98)
    momentum = optax.sgd(rate, momentum=0.9, nesterov=mode == "nesterov")
    optimizer = optax.chain(optax.add_decayed_weights(0.01), momentum)
    twin = twins.Trainer(twins.mlp_loss, optimizer, models.stored_values(model, models.MLP_SHAPES))
    session = TrainingSession(model)
    batches = labelled_batches("x", (32, 12), 5)
    losses = [float(session.step(batch)["loss"]) for batch in batches]
    assert_same_losses(losses, [twin.step(batch) for batch in batches])
    assert_same_weights(session, twin.weights)
    assert losses[-1] < losses[0] / 2


@pytest.mark.spec("T-03", "G-01", "O-01")
def test_a_convolutional_network_trained_by_adam_follows_optax() -> None:
    model = models.lenet_with_adam()
    twin = twins.Trainer(twins.lenet_loss, twins.adam(1e-3), models.stored_values(model, models.LENET_SHAPES))
    session = TrainingSession(model)
    batches = labelled_batches("image", (16, 1, 28, 28), 10)
    losses = [float(session.step(batch)["loss"]) for batch in batches]
    assert_same_losses(losses, [twin.step(batch) for batch in batches])
    assert_same_weights(session, twin.weights)
    assert losses[-1] < losses[0] / 2


class AdversarialTwin:
    """Both sides of `models.adversarial`, and the steps of each."""

    def __init__(self, model: onnx.ModelProto):
        critic = models.stored_values(model, models.CRITIC_SHAPES)
        generator = models.stored_values(model, models.GENERATOR_SHAPES)
        self.critic = twins.Trainer(twins.critic_loss, twins.adam(0.01, 0.5, 0.99), critic)
        self.generator = twins.Trainer(twins.generator_loss, twins.adam(0.005, 0.5, 0.99), generator)

    def step(self, inputs: twins.Arrays, algorithm: int | None) -> dict[str, float]:
        losses = {}
        if algorithm != 1:
            losses["critic_loss"] = self.critic.step({**inputs, "generator": self.generator.weights})
        if algorithm != 0:
            losses["generator_loss"] = self.generator.step({"noise": inputs["noise"], "critic": self.critic.weights})
        return losses


@pytest.mark.spec("T-07", "T-09", "T-12", "T-15", "M-02", "G-08")
@pytest.mark.parametrize("turns", [(None,), (0, 0, None, 1)], ids=["together", "by turns"])
def test_two_algorithms_in_alternation_follow_optax(turns: tuple[int | None, ...]) -> None:
    model = models.adversarial()
    twin, session = AdversarialTwin(model), TrainingSession(model)
    generator = np.random.default_rng(0)
    for step in range(STEPS):
        algorithm = turns[step % len(turns)]
        inputs = {"noise": generator.normal(size=(32, 4)).astype(np.float32)}
        if algorithm != 1:
            inputs["real"] = generator.normal((1, -2), 0.3, (32, 2)).astype(np.float32)
        expected = twin.step(inputs, algorithm)
        losses = session.step(inputs, algorithm)
        assert set(losses) == set(expected)
        assert_same_losses([float(losses[name]) for name in expected], list(expected.values()))
    assert_same_weights(session, {**twin.critic.weights, **twin.generator.weights})
    assert session.variables["generator_T"] == sum(turns[step % len(turns)] != 0 for step in range(STEPS))
