"""The training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxtrain.errors import InputError, ModelError
from onnxtrain.session import TrainingSession
from onnxtrain.training.fit import Epoch, Progress, fit
from tests.graph.training_models import edited, mlp_with_momentum
from tests.training.problems import classification, counting_model, fix_batch


def variables(session: TrainingSession) -> dict[str, np.ndarray]:
    return {name: session.variables[name] for name in session.variables}


def assert_same_variables(first: TrainingSession, second: TrainingSession) -> None:
    for name, value in variables(first).items():
        np.testing.assert_array_equal(value, second.variables[name], err_msg=name)


def test_training_lowers_the_loss_and_raises_the_accuracy() -> None:
    session = TrainingSession(mlp_with_momentum())
    history = fit(session, classification(), epochs=8, validation=classification(seed=1))
    first, last = history.epochs[0], history.epochs[-1]
    assert last.training["loss"] < 0.5 * first.training["loss"]
    assert last.validation["accuracy"] > 0.85
    assert last.validation["accuracy"] > first.validation["accuracy"]
    assert not history.interrupted


def test_every_example_is_trained_on_once_an_epoch_also_in_a_ragged_last_batch() -> None:
    session = TrainingSession(counting_model())
    history = fit(session, {"x": np.arange(10, dtype=np.float32)}, epochs=2, batch_size=4)
    assert session.variables["total"] == 2 * 45
    assert [epoch.step for epoch in history.epochs] == [3, 6]
    assert [epoch.examples for epoch in history.epochs] == [10, 10]


def test_measures_are_means_over_examples_rather_than_over_batches() -> None:
    history = fit(TrainingSession(counting_model()), {"x": np.ones(10, np.float32)}, epochs=1, batch_size=4)
    assert history.epochs[0].training == {"rows": pytest.approx((4 * 4 + 4 * 4 + 2 * 2) / 10)}


def test_the_same_seed_gives_the_same_run() -> None:
    sessions = [TrainingSession(mlp_with_momentum(), seed=3) for _ in range(2)]
    histories = [fit(session, classification(96), epochs=2) for session in sessions]
    assert_same_variables(*sessions)
    assert [epoch.training for epoch in histories[0].epochs] == [epoch.training for epoch in histories[1].epochs]


class Recorder(TrainingSession):
    """A session that remembers the order in which it was fed `x`."""

    def __init__(self, seed: int | None = None):
        super().__init__(counting_model(), seed)
        self.fed: list[float] = []

    def step(
        self, inputs: Mapping[str, Any], algorithm: int | None = None, outputs: Sequence[str] | None = None
    ) -> dict[str, Any]:
        self.fed.extend(inputs["x"].tolist())
        return super().step(inputs, algorithm, outputs)


def order(session_seed: int | None = None, seed: int | None = None, epochs: int = 1) -> list[float]:
    """The order in which 20 examples are taken."""
    session = Recorder(session_seed)
    fit(session, {"x": np.arange(20, dtype=np.float32)}, epochs=epochs, batch_size=10, seed=seed)
    return session.fed


def test_the_seed_of_the_session_or_of_the_call_decides_the_order() -> None:
    assert sorted(order()) == list(range(20))
    assert order(session_seed=1) == order(session_seed=1) != order(session_seed=2)
    assert order(session_seed=1, seed=5) == order(session_seed=2, seed=5) != order(session_seed=2, seed=6)


def test_each_epoch_takes_the_examples_in_an_order_of_its_own() -> None:
    fed = order(epochs=2)
    first, second = fed[:20], fed[20:]
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second


def test_a_run_that_was_saved_and_goes_on_is_the_run_that_was_never_interrupted(tmp_path: Path) -> None:
    whole = TrainingSession(mlp_with_momentum(), seed=5)
    fit(whole, classification(96), epochs=4)
    half = TrainingSession(mlp_with_momentum(), seed=5)
    fit(half, classification(96), epochs=2)
    half.save(tmp_path / "half.onnx")
    resumed = TrainingSession(tmp_path / "half.onnx")
    fit(resumed, classification(96), epochs=2)
    assert resumed.step_count == whole.step_count
    assert_same_variables(whole, resumed)


def test_on_epoch_is_told_of_each_epoch_as_it_ends() -> None:
    session = TrainingSession(mlp_with_momentum())
    steps: list[tuple[int, int]] = []
    history = fit(session, classification(), epochs=3, on_epoch=lambda epoch: steps.append((epoch.number, epoch.step)))
    assert steps == [(1, 4), (2, 8), (3, 12)]
    assert [epoch.number for epoch in history.epochs] == [1, 2, 3]


def test_on_step_is_told_how_far_the_run_has_come() -> None:
    seen: list[Progress] = []
    fit(TrainingSession(mlp_with_momentum()), classification(), epochs=2, on_step=seen.append)
    assert [(now.epoch, now.examples) for now in seen] == [(n, m) for n in (1, 2) for m in (32, 64, 96, 100)]
    assert {(now.epochs, now.examples_in_epoch) for now in seen} == {(2, 100)}


def test_a_run_that_is_stopped_finishes_its_step_and_says_so() -> None:
    session = TrainingSession(mlp_with_momentum())
    completed: list[Epoch] = []
    steps = iter(range(100))
    history = fit(session, classification(), epochs=5, on_epoch=completed.append, stop=lambda: next(steps) >= 6)
    assert history.interrupted
    assert [epoch.number for epoch in completed] == [1]
    assert [(epoch.examples, epoch.complete) for epoch in history.epochs] == [(100, True), (64, False)]
    assert session.step_count == 6


def test_a_run_that_is_stopped_in_its_last_step_was_not_interrupted() -> None:
    session = TrainingSession(mlp_with_momentum())
    history = fit(session, classification(), epochs=1, stop=lambda: session.step_count == 4)
    assert not history.interrupted


def test_an_epoch_that_was_cut_short_is_not_validated() -> None:
    history = fit(
        TrainingSession(mlp_with_momentum()),
        classification(),
        epochs=1,
        validation=classification(),
        stop=lambda: True,
    )
    assert history.epochs[0].validation == {}


def test_a_model_that_fixes_its_batch_trains_on_whole_batches_and_says_what_it_leaves_out() -> None:
    session = TrainingSession(edited(counting_model(), fix_batch(4)))
    with pytest.warns(UserWarning, match="so 2 of the 10 examples are left out"):
        history = fit(session, {"x": np.ones(10, np.float32)}, epochs=1)
    assert session.variables["total"] == 8
    assert history.epochs[0].examples == 8


def test_a_model_that_fixes_its_batch_cannot_train_on_fewer_examples() -> None:
    session = TrainingSession(edited(counting_model(), fix_batch(4)))
    with pytest.raises(InputError, match="Give at least 4"):
        fit(session, {"x": np.ones(3, np.float32)}, epochs=1)


def test_data_that_does_not_fit_is_refused_before_anything_changes() -> None:
    session = TrainingSession(mlp_with_momentum())
    with pytest.raises(InputError, match="There is no array 'labels' in the validation data"):
        fit(session, classification(), epochs=1, validation={"x": classification()["x"]})
    assert session.step_count == 0


def test_a_model_without_training_information_is_refused_with_the_way_to_add_it() -> None:
    model = edited(mlp_with_momentum(), lambda model: model.ClearField("training_info"))
    with pytest.raises(ModelError, match="onnxtrain prepare MODEL -o OUT"):
        fit(TrainingSession(model), classification(), epochs=1)
