"""Folders of checkpoints, and runs that go on from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxtrain.errors import InputError, ModelError
from onnxtrain.session import TrainingSession
from onnxtrain.training.checkpoints import Checkpoints
from onnxtrain.training.fit import fit
from tests.graph.training_models import mlp_with_momentum
from tests.training.problems import classification, counting_model

STEPS_IN_EPOCH = 4  # 100 examples in batches of 32


def saved(folder: Path, scores: list[float | None], keep: int = 2) -> Checkpoints:
    """A folder after one checkpoint for each of these scores, one step apart."""
    session = TrainingSession(counting_model())
    checkpoints = Checkpoints(folder, keep)
    for score in scores:
        session.step({"x": np.ones(1, np.float32)})
        checkpoints.save(session, score)
    return checkpoints


def steps(checkpoints: Checkpoints) -> list[int]:
    return [checkpoint.step for checkpoint in checkpoints.all()]


def test_the_last_ones_and_the_best_stay_and_nothing_else(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path / "run", [3.0, 1.0, 2.0, 5.0, None])
    assert steps(checkpoints) == [2, 4, 5]
    best = checkpoints.best()
    assert best is not None
    assert (best.step, best.score) == (2, 1.0)
    names = {f"step-000000000{step}{suffix}" for step in (2, 4, 5) for suffix in (".onnx", ".json")}
    assert {path.name for path in checkpoints.folder.iterdir()} == names


@pytest.mark.parametrize("score", [None, float("nan")])
def test_without_a_score_the_last_ones_stay(score: float | None, tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, [score] * 4)
    assert steps(checkpoints) == [3, 4]
    assert checkpoints.best() is None


def test_the_newest_is_taken_and_holds_what_was_saved(tmp_path: Path) -> None:
    newest = saved(tmp_path, [None] * 3).newest()
    assert newest is not None
    session = TrainingSession(newest.path)
    assert session.step_count == session.variables["total"] == 3


def test_an_empty_folder_or_none_has_no_checkpoint(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).newest() is None
    assert Checkpoints(tmp_path / "none").newest() is None


def flip_a_bit(model: Path) -> None:
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 1
    model.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (flip_a_bit, "the checksum of step-0000000003.onnx is not the recorded one"),
        (lambda model: model.write_bytes(model.read_bytes()[:-10]), "the checksum of step-0000000003.onnx"),
        (Path.unlink, "step-0000000003.onnx cannot be read: No such file or directory"),
        (lambda model: model.with_suffix(".json").write_text("{"), "the checksum of step-0000000003.json"),
        (lambda model: model.with_suffix(".json").write_text('{"sha256": {}, "score": 1}'), "step-0000000003.json"),
        (
            lambda model: model.with_suffix(".json").write_text('{"sha256": {"../other": "0"}, "score": 1}'),
            "step-0000000003.json",
        ),
    ],
    ids=["bit", "cut", "gone", "record", "empty record", "record that leads elsewhere"],
)
def test_a_damaged_newest_one_is_passed_over_with_a_warning(damage, problem: str, tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, [None] * 3)
    damage(tmp_path / "step-0000000003.onnx")
    with pytest.warns(UserWarning, match=problem):
        newest = checkpoints.newest()
    assert newest is not None
    assert newest.step == 2


def test_when_all_are_damaged_it_is_an_error(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, [None] * 3)
    for checkpoint in checkpoints.all():
        checkpoint.path.unlink()
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(ModelError, match="All 2 checkpoints"):
        checkpoints.newest()


def test_a_model_without_its_record_was_never_finished_and_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, [None] * 3)
    (tmp_path / "step-0000000003.json").unlink()
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.step == 2


def test_to_keep_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Keep 1 or more"):
        Checkpoints(tmp_path, keep=0)


@pytest.mark.parametrize("stop_after", [1, 3, 4, 6])
def test_a_run_stopped_after_any_step_and_resumed_ends_as_the_one_that_was_not(stop_after: int, tmp_path: Path) -> None:
    whole, half = (TrainingSession(mlp_with_momentum(), seed=5) for _ in range(2))
    fit(whole, classification(), epochs=3)
    fit(half, classification(), epochs=3, stop=lambda: half.step_count == stop_after)
    half.save(tmp_path / "half.onnx")
    resumed = TrainingSession(tmp_path / "half.onnx")
    history = fit(resumed, classification(), epochs=3, resume=True)
    assert history.epochs[-1].number == 3
    assert resumed.step_count == whole.step_count == 3 * STEPS_IN_EPOCH
    for name in whole.variables:
        np.testing.assert_array_equal(resumed.variables[name], whole.variables[name], err_msg=name)


def test_saves_inside_an_epoch_are_positions_to_go_on_from(tmp_path: Path) -> None:
    session = TrainingSession(mlp_with_momentum(), seed=5)
    checkpoints = Checkpoints(tmp_path, keep=100)
    fit(session, classification(), epochs=2, save=lambda: void(checkpoints.save(session)), save_every=1)
    assert steps(checkpoints) == [1, 2, 3, 5, 6, 7]
    for checkpoint in checkpoints.all()[::2]:
        resumed = TrainingSession(checkpoint.path)
        fit(resumed, classification(), epochs=2, resume=True)
        np.testing.assert_array_equal(resumed.variables["W1"], session.variables["W1"])


def void(_: object) -> None:
    """For callbacks, which give nothing."""


def test_a_complete_run_has_nothing_left_to_do_and_more_epochs_go_on() -> None:
    session = TrainingSession(mlp_with_momentum())
    fit(session, classification(), epochs=2)
    assert fit(session, classification(), epochs=2, resume=True).epochs == []
    assert [epoch.number for epoch in fit(session, classification(), epochs=3, resume=True).epochs] == [3]


@pytest.mark.parametrize(("size", "batch_size"), [(100, 16), (99, 32)])
def test_a_run_does_not_go_on_with_other_data_or_other_batches(size: int, batch_size: int) -> None:
    session = TrainingSession(mlp_with_momentum())
    fit(session, classification(), epochs=2, stop=lambda: True)
    with pytest.raises(InputError, match="100 examples in batches of 32"):
        fit(session, classification(size), epochs=2, batch_size=batch_size, resume=True)


def test_a_step_by_hand_ends_the_position_in_the_data(tmp_path: Path) -> None:
    session = TrainingSession(mlp_with_momentum())
    fit(session, classification(), epochs=1)
    assert session.position is not None
    session.save(tmp_path / "model.onnx")
    session = TrainingSession(tmp_path / "model.onnx")
    session.step(classification())
    assert session.position is None
    session.save(tmp_path / "model.onnx")
    assert TrainingSession(tmp_path / "model.onnx").position is None


def test_a_reset_ends_the_position_in_the_data() -> None:
    session = TrainingSession(mlp_with_momentum())
    fit(session, classification(), epochs=2, stop=lambda: True)
    session.initialize()
    assert session.position is None
    session.step(classification())  # as many steps as the position says
    assert session.position is None
