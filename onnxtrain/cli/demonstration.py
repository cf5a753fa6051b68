"""The command `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxtrain.cli.console import results


def add_commands(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command()(demo)


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Where the files are left.")] = Path(
        "onnxtrain-demo"
    ),
) -> None:
    """Show the main job on real data, from nothing, in about a minute.

    A convolutional network for scikit-learn's handwritten digits is written as a plain inference model, prepared,
    initialized, trained, evaluated on digits it has not seen, exported, and the exported file checked.

    ```
    pip install 'onnxtrain[demo]'
    onnxtrain demo
    ```
    """
    from onnxtrain.demo import run  # imports JAX

    run(output, results())
