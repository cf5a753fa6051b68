"""Every example runs as its reader would run it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


@dataclass(frozen=True)
class FineTuning:
    """An example that takes a model and data.

    Attributes:
      example: its file.
      model: the folder of the model.
      files: the other files of that folder that it takes.
      data: the file with the data.
      options: how it is run in whole.
      goal: the share in percent of held-out examples that must be right then.
      needs: a package that it needs besides onnxtrain's own.
    """

    example: str
    model: str
    files: tuple[str, ...]
    data: str
    options: tuple[str, ...]
    goal: float
    needs: str = "numpy"

    def arguments(self, models: Path, data: Path) -> list[str | Path]:
        """The files that it is given; skips where they are not at hand."""
        folder = models / self.model
        files = [folder / "model.onnx", *(folder / name for name in self.files), data / self.data]
        missing = [str(path) for path in files if not path.is_file()]
        if missing:
            pytest.skip(f"not at hand: {', '.join(missing)}")
        if importlib.util.find_spec(self.needs) is None:
            pytest.skip(f"{self.needs} is not installed")
        return list(files)


CLASSIFIER = FineTuning("fine_tune_classifier", "mnist_cntk_op8", (), "fashion_mnist.npz", (), 87)
ENCODER = FineTuning(
    "fine_tune_text_encoder",
    "minilm_l3_paraphrase",
    ("tokenizer.json",),
    "rotten_tomatoes.csv",
    (),
    73,
    needs="tokenizers",
)
RECOGNIZER = FineTuning("fine_tune_recognizer", "ppocrv4_rec", (), "mnist_5k.npz", (), 90, needs="PIL")
FINE_TUNINGS = {
    "recognizer": RECOGNIZER,
    "classifier": CLASSIFIER,
    "text encoder": ENCODER,
    "text encoder with adapters": FineTuning(
        ENCODER.example, ENCODER.model, ENCODER.files, ENCODER.data, ("--lora",), 73, needs=ENCODER.needs
    ),
}
ALONE = sorted(path.stem for path in EXAMPLES.glob("*.py") if not path.stem.startswith("fine_tune_"))


def run(example: str, directory: Path, *arguments: str | Path) -> str:
    """What an example says; it must say nothing of trouble."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, EXAMPLES / f"{example}.py", *arguments]
    finished = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    return finished.stdout


def test_there_are_examples() -> None:
    assert ALONE


@pytest.mark.parametrize("example", ALONE)
def test_the_example_runs_and_talks_to_its_reader(example: str, tmp_path: Path) -> None:
    assert run(example, tmp_path)


def test_a_fine_tuning_of_few_steps_writes_a_model(models_dir: Path, data_dir: Path, tmp_path: Path) -> None:
    files = CLASSIFIER.arguments(models_dir, data_dir)
    said = run(CLASSIFIER.example, tmp_path, *files, "-o", "tuned.onnx", "--epochs", "2", "--examples", "500")
    before, after, exported = shares(said)
    assert after > before + 10
    assert exported == after
    assert (tmp_path / "tuned.onnx").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", FINE_TUNINGS)
def test_the_fine_tuning_gets_as_far_as_its_docstring_says(
    name: str, models_dir: Path, data_dir: Path, tmp_path: Path
) -> None:
    one = FINE_TUNINGS[name]
    before, after, exported = shares(run(one.example, tmp_path, *one.arguments(models_dir, data_dir), *one.options))
    assert before < one.goal < after
    assert abs(exported - after) <= 0.2


def shares(said: str) -> list[float]:
    """The shares of right answers before training, after it, and in onnxruntime."""
    found = [float(share) for share in re.findall(r"([\d.]+)% of ", said)]
    assert len(found) == 3, said
    return found
