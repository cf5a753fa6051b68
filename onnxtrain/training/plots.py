"""Learning curves as pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onnxtrain.errors import InputError, missing_extra
from onnxtrain.training.fit import Epoch, History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg", ".pdf")


def require_plots(path: str | os.PathLike[str]) -> None:
    """Makes sure, before a long run, that a picture can be written there when it ends.

    Raises:
      MissingExtraError: matplotlib is not installed.
      InputError: the name does not end in a picture's format.
    """
    if not str(path).lower().endswith(FORMATS):
        raise InputError(f"A learning curve is written as {', '.join(FORMATS)}; the name given is {str(path)!r}.")
    _figure_class()


def plot_history(history: History, path: str | os.PathLike[str], title: str = "") -> None:
    """Writes the learning curve of a run: one panel a measure, training beside validation.

    Raises:
      MissingExtraError: matplotlib is not installed.
    """
    measures = _measures(history.epochs)
    figure = _figure_class()(figsize=(5.5 * max(len(measures), 1), 4.0), layout="constrained")
    if title:
        figure.suptitle(title)
    for number, measure in enumerate(measures, start=1):
        _draw(figure.add_subplot(1, len(measures), number), history.epochs, measure)
    figure.savefig(path, dpi=150)


def _figure_class() -> Any:
    try:
        # A Figure of its own draws without a display and leaves pyplot's settings alone.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("matplotlib", "plot", "A learning curve") from error
    return Figure


def _measures(epochs: Sequence[Epoch]) -> list[str]:
    """Names of all measures, in order of first appearance."""
    return list(dict.fromkeys(name for epoch in epochs for name in (*epoch.training, *epoch.validation)))


def _draw(axes: Axes, epochs: Sequence[Epoch], measure: str) -> None:
    curves = {
        "training": [(epoch.number, epoch.training[measure]) for epoch in epochs if measure in epoch.training],
        "validation": [(epoch.number, epoch.validation[measure]) for epoch in epochs if measure in epoch.validation],
    }
    for color, (label, points) in zip(("C0", "C1"), curves.items(), strict=True):
        if points:
            axes.plot(*zip(*points, strict=True), color=color, marker="o", markersize=3, label=label)
    axes.set_xlabel("epoch")
    axes.set_ylabel(measure)
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    axes.legend()
