"""Commands that make one model out of a training model: `init` and `export`."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxtrain.cli.console import results
from onnxtrain.cli.options import OutputModel, TrainingModelPath, check_writable


def add_commands(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command("init")(initialize)
    app.command()(export)


def initialize(
    model: TrainingModelPath,
    output: OutputModel,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of the random numbers. \\[default: the model's own, or 0]")
    ] = None,
) -> None:
    """Run the initialization graphs: every state variable starts afresh.

    ```
    onnxtrain init training.onnx -o fresh.onnx --seed 7
    ```
    """
    from onnxtrain.session import TrainingSession  # imports JAX

    check_writable(output)
    session = TrainingSession(model, seed=seed)
    session.initialize()
    session.save(output)
    results().print(f"{output}: {len(session.variables)} state variables initialized.")


def export(
    model: TrainingModelPath,
    output: OutputModel,
    averaged: Annotated[
        bool, typer.Option("--averaged", help="Write the moving averages of the weights (`prepare --average`).")
    ] = False,
    keep_adapters: Annotated[
        bool, typer.Option("--keep-adapters", help="Leave low-rank adapters beside the weights, not added to them.")
    ] = False,
) -> None:
    """Write the inference model with the current weights, without any training information.

    ```
    onnxtrain export trained.onnx -o model.onnx
    ```
    """
    from onnxtrain.session import TrainingSession

    check_writable(output)
    TrainingSession(model).export(output, averaged=averaged, keep_adapters=keep_adapters)
    results().print(f"{output}: the inference model of {model}, with its weights.")
