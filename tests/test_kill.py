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
import pytest

from onnxtrain.graph.read import read_model
from onnxtrain.graph.validate import validate
from onnxtrain.session import TrainingSession
from onnxtrain.training.data import write_npz
from onnxtrain.training.fit import fit
from tests.graph.training_models import mlp_with_momentum
from tests.training.problems import classification

ROUNDS = 3
KILLS_IN_SHORT = 3
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

# Saves a model whose two weights both hold one number, again and again.
SAVE_A_NUMBER = """
import sys
import numpy as np
from onnx import helper, numpy_helper
from onnxtrain.graph.write import save_proto

path, number, limit = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
weights = [numpy_helper.from_array(np.full(100_000, number, np.float32), name) for name in "ab"]
for _ in range(30):
    model = helper.make_model(helper.make_graph([], "g", [], [], initializer=weights), ir_version=10)
    save_proto(model, path, limit=limit)
"""

# Saves where no file may grow beyond some bytes, as on a disk that is nearly full.
SAVE_ON_A_FULL_DISK = """
import resource, sys
from onnxtrain.session import TrainingSession
from tests.training.problems import classification

path, limit = sys.argv[1], int(sys.argv[2])
session = TrainingSession(path)
session.step(classification())
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    session.save(path)
except OSError as error:
    print(f"refused after step {session.step_count}: {error.strerror}")
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


@pytest.mark.parametrize(
    "rounds", [KILLS_IN_SHORT, pytest.param(100, marks=pytest.mark.slow)], ids=["a few times", "a hundred times"]
)
def test_a_run_that_is_killed_at_any_moment_and_resumed_ends_as_the_one_that_was_not(
    rounds: int, tmp_path: Path
) -> None:
    source, target, data = tmp_path / "model.onnx", tmp_path / "trained.onnx", tmp_path / "data.npz"
    folder = tmp_path / "run"
    onnx.save(mlp_with_momentum(), source)
    write_npz(data, classification())
    command = ["-m", "onnxtrain", "train", source, "-o", target, "--data", data, "--checkpoints", folder, "--resume"]
    command = [str(part) for part in (*command, "--save-every", 1, "--epochs")]
    delays = random.Random(2)
    for number in range(rounds):
        before = newest_step(folder)
        run_and_kill(
            [*command, "100000"],
            tmp_path / f"{number}.log",
            lambda before=before: newest_step(folder) > before,
            delays.uniform(0, 0.3),
        )
    epochs = newest_step(folder) // STEPS_IN_EPOCH + 1
    subprocess.run([sys.executable, *command, str(epochs)], check=True)
    whole = TrainingSession(source)
    fit(whole, classification(), epochs=epochs)
    resumed = TrainingSession(target)
    assert resumed.step_count == whole.step_count
    for name in whole.variables:
        np.testing.assert_array_equal(resumed.variables[name], whole.variables[name], err_msg=name)


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint, by its name: its files may be removed while they are looked at."""
    return max((int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.json")), default=0)


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


@pytest.mark.parametrize("limit", [2**31 - 1, 10_000], ids=["inline", "external"])
def test_two_processes_that_save_to_one_file_leave_the_model_of_one_of_them(limit: int, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    processes = [
        subprocess.Popen([sys.executable, "-c", SAVE_A_NUMBER, str(path), str(number), str(limit)]) for number in (1, 2)
    ]
    assert [process.wait() for process in processes] == [0, 0]
    model = read_model(path)
    values = np.concatenate([model.graph.initializers[name] for name in "ab"])
    assert set(values.tolist()) in ({1.0}, {2.0})


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of files")
def test_a_disk_that_is_full_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    session = TrainingSession(mlp_with_momentum(hidden=200))
    session.save(path)
    before = path.read_bytes()
    said = subprocess.run(
        [sys.executable, "-c", SAVE_ON_A_FULL_DISK, str(path), "1000"], check=True, capture_output=True, text=True
    ).stdout
    assert said.startswith("refused after step 1: ")
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
