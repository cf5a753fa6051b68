"""Learning curves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from onnxtrain.errors import InputError, MissingExtraError
from onnxtrain.training.fit import Epoch, History
from onnxtrain.training.plots import plot_history, require_plots

SIGNATURES = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def history(epochs: int = 3) -> History:
    return History(
        [
            Epoch(number, 10 * number, {"loss": 1 / number}, {"loss": 2 / number, "accuracy": 0.5}, 100, True, 1.0)
            for number in range(1, epochs + 1)
        ]
    )


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_a_learning_curve_is_written_in_the_format_of_its_name(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib", reason="learning curves need matplotlib")
    path = tmp_path / f"curve{suffix}"
    require_plots(path)
    plot_history(history(), path, title="A run")
    assert path.read_bytes().startswith(SIGNATURES[suffix])


def test_there_is_a_panel_for_each_measure_and_a_curve_for_each_data_set(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="learning curves need matplotlib")
    path = tmp_path / "curve.svg"
    plot_history(history(), path)
    text = path.read_text()
    assert text.count("<!-- epoch -->") == 2
    assert text.count("<!-- loss -->") == 1
    assert text.count("<!-- accuracy -->") == 1
    assert text.count("<!-- training -->") == 1
    assert text.count("<!-- validation -->") == 2


def test_a_run_without_measures_still_gives_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="learning curves need matplotlib")
    plot_history(History([Epoch(1, 1, {}, {}, 10, True, 1.0)]), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").exists()


def test_drawing_leaves_pyplot_alone(tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="learning curves need matplotlib")
    plot_history(history(), tmp_path / "curve.png")
    assert pyplot.get_fignums() == []


def test_an_unknown_format_is_refused_before_the_run() -> None:
    with pytest.raises(InputError, match=r"\.png, \.svg, \.pdf; the name given is 'curve\.jpeg2000'"):
        require_plots("curve.jpeg2000")


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'onnxtrain\[plot\]'"):
        require_plots("curve.png")
