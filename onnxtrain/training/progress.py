"""A live line on the terminal that shows how far a run has come."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from rich import progress
from rich.console import Console

from onnxtrain.training.fit import Epoch, Progress


class ProgressLine:
    """Shows how much of a run is done and how long the rest takes, and prints a line for every complete epoch.

    The live part is for people: where the console is no terminal, only the lines of the epochs are printed.
    """

    def __init__(self, console: Console):
        self.console = console
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TextColumn("{task.fields[measures]}"),
            progress.TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("compiling", total=None, measures="")

    def __enter__(self) -> ProgressLine:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show_step(self, now: Progress) -> None:
        """Moves the bar; for `fit(on_step=...)`."""
        self._bar.update(
            self._task,
            description=f"epoch {now.epoch}/{now.epochs}",
            total=now.epochs * now.examples_in_epoch,
            completed=(now.epoch - 1) * now.examples_in_epoch + now.examples,
            measures=describe_measures(now.training),
        )

    def print_epoch(self, epoch: Epoch, epochs: int) -> None:
        """Prints the line of a complete epoch."""
        parts = [f"epoch {epoch.number}/{epochs}", describe_measures(epoch.training)]
        if epoch.validation:
            parts.append("validation " + describe_measures(epoch.validation))
        parts.append(f"{epoch.examples / epoch.seconds:,.0f} examples/s")
        self.console.print("  ".join(part for part in parts if part), markup=False, highlight=False)


def describe_measures(measures: Mapping[str, float]) -> str:
    """Measures in words: ``loss 0.1234  accuracy 97.3 %``."""
    return "  ".join(f"{name} {format_measure(name, value)}" for name, value in measures.items())


def format_measure(name: str, value: float) -> str:
    """A measure's value in words: accuracy in percent, anything else with four digits."""
    return f"{100 * value:.2f} %" if name == "accuracy" else f"{value:#.4g}"
