"""A process that is killed at any moment loses nothing that it had saved."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from onnxtrain.graph.validate import validate
from onnxtrain.session import TrainingSession
from onnxtrain.training.data import write_npz
from tests.graph.training_models import mlp_with_momentum
from tests.training.problems import classification

ROUNDS = 3
STEPS_IN_EPOCH = 4  # 100 examples in batches of 32

# Saves without end, and says after each save which step the file now holds.
SAVE_WITHOUT_END = """
import sys
from onnxtrain.session import TrainingSession
from tests.training.problems import classification

source, target = sys.argv[1:]
session = TrainingSession(source)
data = classification()
while True:
    session.step(data)
    session.save(target)
    print(session.step_count, flush=True)
"""


def run_and_kill(command: list[str], log: Path, is_ready: Callable[[], bool], delay: float) -> str:
    """Starts a process, kills it some time after it is ready, and returns what it had said by then."""
    with log.open("w") as output:
        process = subprocess.Popen([sys.executable, *command], stdout=output, stderr=subprocess.STDOUT)
        try:
            while not is_ready():
                assert process.poll() is None, log.read_text()
                time.sleep(0.01)
            time.sleep(delay)
        finally:
            process.kill()
            process.wait()
    return log.read_text()


def step_of_a_whole_model(path: Path) -> int:
    """The step that a file holds, once it is shown to be a whole training model whose parts fit together."""
    assert validate(path) == []
    session = TrainingSession(path)
    # the model counts its steps itself, in a state variable that the optimizer reads
    assert session.variables["T"] == session.step_count
    assert all(np.isfinite(session.variables[name]).all() for name in session.variables)
    assert np.isfinite(float(session.step(classification())["loss"]))
    return session.step_count - 1


def test_training_that_is_killed_again_and_again_goes_on_from_its_last_epoch(tmp_path: Path) -> None:
    source, target, data = tmp_path / "model.onnx", tmp_path / "trained.onnx", tmp_path / "data.npz"
    onnx.save(mlp_with_momentum(), source)
    write_npz(data, classification())
    delays = random.Random(0)
    step = 0
    for number in range(ROUNDS):
        model = target if target.exists() else source
        log = tmp_path / f"{number}.log"
        command = ["-m", "onnxtrain", "train", model, "-o", target, "--data", data, "--epochs", "100000"]
        said = run_and_kill(
            [str(part) for part in command], log, lambda log=log: "epoch" in log.read_text(), delays.uniform(0, 0.3)
        )
        before, step = step, step_of_a_whole_model(target)
        reported = [int(epoch) for epoch in re.findall(r"^epoch (\d+)/", said, re.MULTILINE)]
        assert step % STEPS_IN_EPOCH == 0
        assert step >= before + STEPS_IN_EPOCH * reported[-1]


def test_a_save_that_is_killed_leaves_the_last_whole_file(tmp_path: Path) -> None:
    source, target, log = tmp_path / "model.onnx", tmp_path / "saved.onnx", tmp_path / "log"
    onnx.save(mlp_with_momentum(hidden=20_000), source)  # large enough for a save to take a while
    delays = random.Random(1)
    for _ in range(ROUNDS):
        target.unlink(missing_ok=True)
        said = run_and_kill(
            ["-c", SAVE_WITHOUT_END, str(source), str(target)],
            log,
            lambda: bool(log.read_text()),
            delays.uniform(0, 0.3),
        )
        assert step_of_a_whole_model(target) >= int(said.split()[-1])
