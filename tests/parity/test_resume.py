"""A run that is saved and goes on in another process is the same run, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxtrain import TrainingSession
from tests.parity import models

Batch = dict[str, np.ndarray]

GO_ON = """
import sys
from onnxtrain import TrainingSession
from tests.parity.test_resume import batches, train

source, target, start, stop = sys.argv[1:]
session = TrainingSession(source)
print(*train(session, batches(int(start), int(stop))))
session.save(target)
"""


def batches(start: int, stop: int) -> list[Batch]:
    """The batches of steps `start` to `stop` of a run."""
    generator = np.random.default_rng(0)
    drawn = [
        {"x": generator.normal(size=(16, 12)).astype(np.float32), "labels": generator.integers(0, 5, 16)}
        for _ in range(stop)
    ]
    return drawn[start:]


def train(session: TrainingSession, data: Iterable[Batch]) -> list[str]:
    """The losses, with every bit of them."""
    return [float(session.step(batch)["loss"]).hex() for batch in data]


def go_on_in_another_process(source: Path, target: Path, start: int, stop: int) -> list[str]:
    command = [sys.executable, "-c", GO_ON, str(source), str(target), str(start), str(stop)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@pytest.mark.spec("R-01", "M-08", "T-21")
def test_a_run_goes_on_in_another_process_bit_for_bit(tmp_path: Path) -> None:
    whole, half, again = (tmp_path / f"{name}.onnx" for name in ("whole", "half", "again"))
    model = models.classifier_with_dropout()
    uninterrupted = TrainingSession(model, seed=3)
    losses = train(uninterrupted, batches(0, 20))
    uninterrupted.save(whole)
    first = TrainingSession(model, seed=3)
    assert train(first, batches(0, 10)) == losses[:10]
    first.save(half)
    assert go_on_in_another_process(half, again, 10, 20) == losses[10:]
    assert again.read_bytes() == whole.read_bytes()


@pytest.mark.spec("M-08")
def test_a_saved_model_differs_from_its_source_in_nothing_but_values(tmp_path: Path) -> None:
    source = models.classifier_with_dropout()
    session = TrainingSession(source)
    train(session, batches(0, 1))
    session.save(tmp_path / "model.onnx")
    saved = onnx.load(tmp_path / "model.onnx")
    names = tuple(session.variables)
    before, after = models.stored_values(source, names), models.stored_values(saved, names)
    assert {name for name in names if np.array_equal(before[name], after[name])} <= {"bias"}
    for model in (source, saved):
        del model.metadata_props[:]
        for graph in (model.graph, model.training_info[0].algorithm):
            for tensor in graph.initializer:
                tensor.ClearField("raw_data")
    assert saved == source
