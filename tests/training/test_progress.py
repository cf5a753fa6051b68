"""What a run shows on the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from onnxtrain.training.fit import Epoch, Progress
from onnxtrain.training.progress import ProgressLine, describe_measures

EPOCH = Epoch(2, 8, {"loss": 0.25}, {"loss": 0.5, "accuracy": 0.975}, 100, True, 0.5)


def shown(terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    with ProgressLine(console) as line:
        line.show_step(Progress(2, 3, 50, 100, {"loss": 0.3}))
        line.print_epoch(EPOCH, 3)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_file_gets_one_line_for_each_epoch_and_nothing_else() -> None:
    assert shown(terminal=False) == (
        "epoch 2/3  loss 0.2500  validation loss 0.5000  accuracy 97.50 %  200 examples/s\n"
    )


def test_a_terminal_gets_the_lines_and_a_bar_that_says_how_far_the_run_is() -> None:
    text = shown(terminal=True)
    assert "validation loss 0.5" in text
    assert "50%" in text
    assert "loss 0.3000" in text


@pytest.mark.parametrize(
    ("measures", "words"),
    [({}, ""), ({"loss": 1.23456}, "loss 1.235"), ({"accuracy": 1.0}, "accuracy 100.00 %")],
)
def test_measures_are_shown_with_the_digits_that_matter(measures: dict[str, float], words: str) -> None:
    assert describe_measures(measures) == words
