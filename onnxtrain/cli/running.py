"""Commands that run a model on data: `train`, `infer` and `evaluate`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnxtrain.cli.console import print_table, results
from onnxtrain.cli.options import (
    BatchSize,
    DataFile,
    ModelPath,
    OutputModel,
    TrainingModelPath,
    check_writable,
)

if TYPE_CHECKING:
    from onnxtrain.training.fit import History

# What a shell shows for a program that Ctrl-C ended, so that scripts do not go on as if the run were complete.
INTERRUPTED = 130


def add_commands(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(train)
    app.command()(infer)
    app.command()(evaluate)


def train(
    model: TrainingModelPath,
    output: OutputModel,
    data: DataFile,
    epochs: Annotated[int, typer.Option("--epochs", "-e", min=1, help="Passes over the data.")] = 1,
    batch_size: BatchSize = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            "--validation", metavar="FILE.npz", help="Held-out data, evaluated after every epoch.", show_default=False
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="Seed of the order of the examples and of random nodes. \\[default: the model's own, or 0]",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.png", help="Draw the learning curve there.", show_default=False),
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            "--checkpoints",
            metavar="DIR",
            help="Save there too, a file and its checksum each time: the last ones and the one with the least loss "
            "stay.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        int, typer.Option("--keep", min=1, help="How many of the last checkpoints stay, beside the best.")
    ] = 3,
    save_every: Annotated[
        int | None,
        typer.Option(
            "--save-every", metavar="STEPS", min=1, help="Save inside an epoch too, so often.", show_default=False
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run that was killed or stopped, up to --epochs in all: from the newest good "
            "checkpoint in DIR or, without DIR, from OUT. Where there is none yet, begin with MODEL.",
        ),
    ] = False,
) -> None:
    """Train a model on the arrays of an .npz file.

    OUT is saved after every epoch, whole or not at all, and is a checkpoint: give it as MODEL to train on. Ctrl-C
    finishes the step that is under way and saves. The examples are shuffled anew in every epoch; the last batch may be
    smaller than the others.

    Whenever a run ends early, the same command with `--resume` goes on with it, and ends with the same weights as if
    nothing had happened. A loss or weight that is NaN or infinite ends it: the message says where that came from.

    ```
    onnxtrain train training.onnx -o trained.onnx --data digits.npz --epochs 10
    onnxtrain train trained.onnx -o trained.onnx --data digits.npz --plot curve.png
    onnxtrain train training.onnx -o trained.onnx --data digits.npz --checkpoints run --resume
    ```
    """
    from onnxtrain.cli.saving import Saving  # these import JAX
    from onnxtrain.training.data import read_npz
    from onnxtrain.training.fit import Epoch, fit
    from onnxtrain.training.interruption import Interruption
    from onnxtrain.training.plots import plot_history, require_plots
    from onnxtrain.training.progress import ProgressLine

    check_writable(output)
    if plot:
        check_writable(plot)
        require_plots(plot)
    arrays = read_npz(data)
    held_out = read_npz(validation) if validation else None
    saving = Saving(output, checkpoints, keep)
    session = saving.begin(model, seed, resume)
    console = results()

    def finish_epoch(epoch: Epoch) -> None:
        saving.save(epoch.loss)
        line.print_epoch(epoch, epochs)

    with ProgressLine(console) as line, Interruption() as interruption, saving.what_is_left():
        history = fit(
            session,
            arrays,
            epochs=epochs,
            batch_size=batch_size,
            validation=held_out,
            on_epoch=finish_epoch,
            on_step=line.show_step,
            stop=interruption,
            resume=saving.resumed,
            save=saving.save,
            save_every=save_every,
        )
        if history.interrupted or not history.epochs:
            saving.save()
    if plot and history.epochs:
        plot_history(history, plot, title=output.name)
        console.print(f"{plot}: the learning curve.")
    if history.interrupted:
        options = {"--batch-size": batch_size, "--validation": validation, "--checkpoints": checkpoints, "--keep": keep}
        command = ["train", model, "-o", output, "--data", data, "--epochs", epochs, *_given(options), "--resume"]
        console.print(_how_to_go_on(history, output, command))
        raise typer.Exit(INTERRUPTED)
    console.print(f"{output}: trained, {session.step_count} steps in all.")


def _given(options: Mapping[str, object]) -> list[object]:
    """The options that have a value, as they are typed."""
    return [part for name, value in options.items() if value is not None for part in (name, value)]


def _how_to_go_on(history: History, output: Path, command: Sequence[object]) -> str:
    last = history.epochs[-1]
    return (
        f"Stopped in epoch {last.number}, after step {last.step}; {output} holds all of it.\n"
        f"To go on: onnxtrain {shlex.join(map(str, command))}"
    )


def infer(
    model: ModelPath,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="OUT.npz", help="Where the outputs are written.", show_default=False),
    ],
    data: DataFile,
    batch_size: BatchSize = None,
) -> None:
    """Run the inference graph on data and write all its outputs, one array each.

    ```
    onnxtrain infer trained.onnx -o predictions.npz --data digits.npz
    ```
    """
    from onnxtrain.session import TrainingSession
    from onnxtrain.training.data import read_npz, write_npz
    from onnxtrain.training.prediction import predict

    check_writable(output)
    outputs = predict(TrainingSession(model), read_npz(data), batch_size=batch_size, source=str(data))
    write_npz(output, outputs)
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())
    results().print(f"{output}: {shapes}.")


def evaluate(model: TrainingModelPath, data: DataFile, batch_size: BatchSize = None) -> None:
    """Measure a model on data that it was not trained on: loss, and accuracy where the labels are class ids.

    Nothing is updated. The loss is the one that the training information defines, with BatchNormalization and Dropout
    in inference mode.

    ```
    onnxtrain evaluate trained.onnx --data held_out.npz
    ```
    """
    from onnxtrain.session import TrainingSession
    from onnxtrain.training.data import read_npz
    from onnxtrain.training.evaluation import Evaluator
    from onnxtrain.training.progress import format_measure

    evaluator = Evaluator(TrainingSession(model), read_npz(data), batch_size, source=str(data))
    measures = evaluator()
    rows = [(name, format_measure(name, value)) for name, value in measures.items()]
    print_table(results(), f"{model} on {evaluator.examples:,} examples", ("measure", "value"), rows)
