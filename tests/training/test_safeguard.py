"""Trouble while training: numbers that are not finite, memory that runs out, interrupts, and data that does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pytest

from onnxtrain.errors import DeviceMemoryError, InputError, InputTypeError, NonFiniteError
from onnxtrain.session import TrainingSession
from onnxtrain.training import safeguard
from onnxtrain.training.fit import fit
from tests.graph.training_models import mlp_with_momentum
from tests.training.problems import classification, counting_model

Batch = Mapping[str, Any]


def with_nan_in_row(row: int, size: int = 400) -> dict[str, np.ndarray]:
    data = classification(size)
    data["x"][row, 2] = np.nan
    return data


def test_a_loss_that_is_nan_stops_the_run_at_the_state_before_the_step() -> None:
    data = with_nan_in_row(7)
    session = TrainingSession(mlp_with_momentum())
    with pytest.raises(NonFiniteError, match="'loss'") as caught:
        fit(session, data, epochs=3, batch_size=4)
    assert session.step_count == (caught.value.step or 0) - 1
    assert all(np.isfinite(session.variables[name]).all() for name in session.variables)
    assert "'x': float32[4, 4]" in str(caught.value)
    assert "1 NaN" in str(caught.value)


def test_the_step_that_is_named_is_the_one_that_an_unguarded_run_goes_wrong_in() -> None:
    session = TrainingSession(mlp_with_momentum())
    fed: list[Batch] = []
    with pytest.raises(NonFiniteError) as caught:
        fit(watched(session, lambda batch: fed.append(batch)), with_nan_in_row(7), epochs=1, batch_size=4)
    first = next(number for number, batch in enumerate(fed, 1) if np.isnan(batch["x"]).any())
    assert caught.value.step == first


def test_weights_that_overflow_are_told_from_the_node_that_gave_them() -> None:
    session = TrainingSession(counting_model())
    with pytest.raises(NonFiniteError, match=r"step 2 made 'total' NaN or infinite") as caught:
        fit(session, {"x": np.full(4, 3e38, np.float32)}, epochs=1, batch_size=1)
    assert caught.value.cause is not None
    assert caught.value.cause.node.op_type == "Add"
    assert session.variables["total"] == np.float32(3e38)


def test_when_the_node_cannot_be_found_the_step_is_named_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("9 bytes")

    monkeypatch.setattr(safeguard, "find_nonfinite", fail)
    with pytest.raises(NonFiniteError, match=r"step 2 made 'total'[\s\S]*failed: 9 bytes"):
        fit(TrainingSession(counting_model()), {"x": np.full(4, 3e38, np.float32)}, epochs=1, batch_size=1)


def test_a_state_variable_that_begins_infinite_is_not_watched() -> None:
    session = TrainingSession(counting_model())
    session.variables["total"] = np.float32(np.inf)
    assert not fit(session, {"x": np.ones(4, np.float32)}, epochs=1).interrupted


def watched(session: TrainingSession, before_step: Any) -> TrainingSession:
    """The session, with something called before each step."""
    step = session.step

    def replaced(inputs: Batch, algorithm: int | None = None, outputs: Sequence[str] | None = None) -> dict[str, Any]:
        before_step(inputs)
        return step(inputs, algorithm, outputs)

    session.step = replaced  # type: ignore[method-assign]
    return session


def failing_in_step(number: int, error: BaseException) -> tuple[TrainingSession, list[Batch]]:
    """A session whose step fails once, after it has given the buffers of its state away."""
    session = TrainingSession(mlp_with_momentum())
    fed: list[Batch] = []

    def fail(batch: Batch) -> None:
        fed.append(batch)
        if len(fed) == number:
            for value in session._state.variables.values():
                value.delete()
            raise error

    return watched(session, fail), fed


@pytest.mark.parametrize(
    "error",
    [jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"), MemoryError("9 bytes")],
)
def test_memory_that_runs_out_leaves_a_session_that_can_be_saved(error: Exception) -> None:
    session, _ = failing_in_step(6, error)
    with pytest.raises(DeviceMemoryError, match=r"back at step 4\.[\s\S]*9 bytes[\s\S]*batches smaller"):
        fit(session, classification(), epochs=2)
    assert session.step_count == 4
    assert session.variables["T"] == 4


def test_another_failure_of_the_device_is_passed_on_and_leaves_a_good_session() -> None:
    session, _ = failing_in_step(6, jax.errors.JaxRuntimeError("INTERNAL: something else"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        fit(session, classification(), epochs=2)
    assert session.variables["T"] == 4


def test_an_interrupt_in_the_middle_of_a_step_leaves_a_good_session() -> None:
    session, _ = failing_in_step(6, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        fit(session, classification(), epochs=2)
    assert session.variables["T"] == session.step_count == 4


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({**classification(), "x": np.zeros((100, 5), np.float32)}, InputError),
        ({**classification(), "x": np.zeros((100, 4, 1), np.float32)}, InputError),
        ({**classification(), "x": np.zeros((100, 4))}, InputTypeError),
        ({**classification(), "labels": np.zeros(100, np.int32)}, InputTypeError),
    ],
    ids=["width", "rank", "type", "type of labels"],
)
def test_data_of_a_wrong_shape_or_type_is_refused_before_any_step(
    data: dict[str, np.ndarray], error: type[Exception]
) -> None:
    session = TrainingSession(mlp_with_momentum())
    steps: list[Batch] = []
    with pytest.raises(error):
        fit(watched(session, steps.append), data, epochs=1)
    assert steps == []


@pytest.mark.parametrize(
    "batch",
    [
        {"x": np.zeros((2, 5), np.float32), "labels": np.zeros(2, np.int64)},
        {"x": np.zeros((2, 4)), "labels": np.zeros(2, np.int64)},
        {"x": np.zeros((2, 4), np.float32)},
        {"x": np.zeros((2, 4), np.float32), "labels": np.zeros(2, np.int64), "y": np.zeros(2)},
    ],
    ids=["shape", "type", "missing", "unknown"],
)
def test_a_batch_that_does_not_fit_costs_no_step(batch: dict[str, np.ndarray]) -> None:
    session, untouched = (TrainingSession(mlp_with_momentum()) for _ in range(2))
    with pytest.raises(InputError):
        session.step(batch)
    for each in (session, untouched):
        each.step(classification())
    assert session.step_count == 1
    for name in untouched.variables:
        np.testing.assert_array_equal(session.variables[name], untouched.variables[name])
