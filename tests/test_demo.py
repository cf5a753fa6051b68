"""The demo, from nothing to a checked model."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.console import Console

from onnxtrain import demo
from onnxtrain.errors import MissingExtraError
from onnxtrain.session import TrainingSession

FILES = {
    "digits.npz",
    "held_out.npz",
    "network.onnx",
    "training.onnx",
    "trained.onnx",
    "better_network.onnx",
    "learning_curve.png",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo's folder after it ran, and what it said."""
    pytest.importorskip("sklearn", reason="the demo needs scikit-learn")
    pytest.importorskip("matplotlib", reason="the demo needs matplotlib")
    directory = tmp_path_factory.mktemp("demo")
    console = Console(file=io.StringIO(), width=200)
    demo.run(directory, console)
    assert isinstance(console.file, io.StringIO)
    return directory, console.file.getvalue()


def test_the_demo_leaves_every_file_that_it_speaks_of(finished: tuple[Path, str]) -> None:
    directory, said = finished
    assert {path.name for path in directory.iterdir()} == FILES
    assert all(str(directory / name) in said for name in FILES)


def test_the_demo_recognises_held_out_digits(finished: tuple[Path, str]) -> None:
    directory, _ = finished
    _, held_out = demo.load_digits()
    _, logits = demo.run_elsewhere(directory / "better_network.onnx", held_out["image"])
    assert np.mean(logits.argmax(axis=1) == held_out["labels"]) > demo.GOAL


def test_the_exported_network_is_an_inference_model_of_the_same_nodes(finished: tuple[Path, str]) -> None:
    directory, _ = finished
    before, after = onnx.load(directory / "network.onnx"), onnx.load(directory / "better_network.onnx")
    assert not after.training_info
    assert [node.op_type for node in after.graph.node] == [node.op_type for node in before.graph.node]


def test_the_trained_model_can_be_trained_on(finished: tuple[Path, str]) -> None:
    directory, _ = finished
    training, _ = demo.load_digits()
    session = TrainingSession(directory / "trained.onnx")
    before = session.step_count
    assert before == demo.EPOCHS * -(-len(training["labels"]) // demo.BATCH_SIZE)
    session.step({name: array[:64] for name, array in training.items()})
    assert session.step_count == before + 1


def test_without_onnxruntime_the_reference_implementation_runs_the_exported_network(
    finished: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = finished
    _, held_out = demo.load_digits()
    _, expected = demo.run_elsewhere(directory / "better_network.onnx", held_out["image"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    runtime, logits = demo.run_elsewhere(directory / "better_network.onnx", held_out["image"])
    assert runtime == "onnx.reference"
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)


def test_a_model_that_learned_nothing_is_not_passed_off_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn", reason="the demo needs scikit-learn")
    pytest.importorskip("matplotlib", reason="the demo needs matplotlib")
    monkeypatch.setattr(demo, "EPOCHS", 1)
    monkeypatch.setattr(demo, "LEARNING_RATE", 0.0)
    with pytest.raises(demo.DemoError, match="held-out digits; 97% were expected"):
        demo.run(tmp_path, Console(file=io.StringIO()))


def test_without_scikit_learn_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'onnxtrain\[demo\]'"):
        demo.run(tmp_path, Console(file=io.StringIO()))
