"""The command that makes a training model out of an inference model: `prepare`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from onnxtrain import authoring
from onnxtrain.authoring import recipes
from onnxtrain.authoring.losses import LOSSES
from onnxtrain.authoring.optimizers import OPTIMIZERS
from onnxtrain.cli.alterations import (
    Adapt,
    AdapterDropout,
    Alpha,
    Classes,
    Cut,
    Initialize,
    QuantizeOn,
    Rank,
    adapters,
    altered,
    initialization,
)
from onnxtrain.cli.console import results
from onnxtrain.cli.options import Freeze, LossOutput, ModelPath, OutputModel, Trainable, check_writable
from onnxtrain.errors import InputError, OperatorError, StaticValueError
from onnxtrain.graph.combine import algorithm_graph, data_inputs, describe_type
from onnxtrain.graph.read import read_model
from onnxtrain.graph.write import save_proto


def add_commands(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command()(prepare)


def prepare(
    model: ModelPath,
    output: OutputModel,
    recipe: Annotated[
        Path | None,
        typer.Option(
            "--recipe",
            metavar="FILE.toml",
            help="The arguments of make_trainable as data; options given beside it come first.",
            show_default=False,
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option("--loss", help=f"{', '.join(LOSSES)}. \\[default: softmax_cross_entropy]", show_default=False),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option("--optimizer", help=f"{', '.join(OPTIMIZERS)}. \\[default: adam]", show_default=False),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            "--learning-rate",
            "--lr",
            help="What the state variable of that name starts with. \\[default: 0.001]",
            show_default=False,
        ),
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option(
            "--clip", metavar="NORM", help="Shorten all gradients together to this length.", show_default=False
        ),
    ] = None,
    accumulate: Annotated[
        int | None,
        typer.Option("--accumulate", min=1, metavar="N", help="Let N steps make one update.", show_default=False),
    ] = None,
    average: Annotated[
        float | None,
        typer.Option("--average", metavar="DECAY", help="Keep moving averages of the weights.", show_default=False),
    ] = None,
    trainable: Trainable = None,
    freeze: Freeze = None,
    loss_output: LossOutput = None,
    initialize: Initialize = None,
    free_batch: Annotated[
        bool, typer.Option("--free-batch", help="Let the model take any batch size where its author fixed one.")
    ] = False,
    dropout: Annotated[
        list[str] | None,
        typer.Option(
            "--dropout",
            metavar="PATTERN=RATIO",
            help="Drop this share of the values whose names match, or node:GLOB; may be repeated.",
            show_default=False,
        ),
    ] = None,
    normalize: Annotated[
        list[str] | None,
        typer.Option(
            "--normalize",
            metavar="PATTERN",
            help="Put back the BatchNormalization that was folded into layers whose kernels match; may be repeated.",
            show_default=False,
        ),
    ] = None,
    tie: Annotated[
        bool, typer.Option("--tie", help="Train weights of equal values, transposed or not, as one weight.")
    ] = False,
    keep_constants: Annotated[
        bool, typer.Option("--keep-constants", help="Let `export` write weights of Constant nodes as such again.")
    ] = False,
    dequantize: Annotated[
        bool, typer.Option("--dequantize", help="Turn integer weights behind DequantizeLinear into floats that train.")
    ] = False,
    cut: Cut = None,
    classes: Classes = None,
    lora: Adapt = None,
    lora_rank: Rank = 8,
    lora_alpha: Alpha = 16.0,
    lora_dropout: AdapterDropout = 0.0,
    quantize: QuantizeOn = None,
) -> None:
    """Turn an inference model into a training model, in standard ONNX.

    The loss, the gradients, the optimizer and the training-mode forward pass become training information inside the
    file. Training feeds the model's own inputs and one more, `labels`. `inspect` shows the weights and their names.

    ```
    onnxtrain prepare model.onnx -o training.onnx --optimizer adam --lr 0.001
    onnxtrain prepare model.onnx -o training.onnx --freeze 'backbone.*'
    onnxtrain prepare model.onnx -o training.onnx --classes 5 --trainable last:1
    onnxtrain prepare model.onnx -o training.onnx --recipe recipe.toml
    ```
    """
    check_writable(output)
    given = {
        "loss": loss,
        "optimizer": optimizer,
        "learning_rate": learning_rate,
        "clip": clip,
        "accumulate": accumulate,
        "average": average,
        "trainable": trainable,
        "frozen": freeze,
        "output": loss_output,
        "initialize": initialization(initialize or ()) if initialize else None,
        "free_batch": free_batch,
        "dropout": _ratios(dropout or ()),
        "normalize": normalize,
        "tie": tie,
        "keep_constants": keep_constants,
        "dequantize": dequantize,
        "adapters": adapters(lora, lora_rank, lora_alpha, lora_dropout),
    }
    stated = recipes.read_recipe(recipe) if recipe else {}
    stated |= {name: value for name, value in given.items() if value not in (None, False, [], {})}
    if stated.get("free_batch"):
        _prove_free_batch(model)
    start = altered(model, cut_at=cut, classes=classes, output=stated.get("output"), quantize_on=quantize)
    proto = recipes.prepare(start, stated)
    save_proto(proto, output)
    prepared = read_model(proto)
    fed = data_inputs(prepared, algorithm_graph(prepared, 0))
    console = results()
    console.print(f"{output}: a training model with {len(prepared.state_variables)} state variables.")
    console.print(f"A step is fed {', '.join(f'{value.name} {describe_type(value.type)}' for value in fed)}.")
    console.print(f"Next: onnxtrain train {shlex.quote(str(output))} -o trained.onnx --data FILE.npz")


def _prove_free_batch(path: Path) -> None:
    """Says how little freeing the batch changes for random inputs, or that these do not suit the model."""
    from onnxtrain.session import TrainingSession  # imports JAX
    from onnxtrain.training.free_batch_proof import BATCHES, prove_free_batch

    freed = TrainingSession(authoring.free_batch(path))
    try:
        share = prove_free_batch(TrainingSession(path), freed)
    except (InputError, OperatorError, StaticValueError) as error:
        results().print(f"{path}: the freed batch could not be tried out on random inputs. {error}")
    else:
        results().print(
            f"{path}: {BATCHES} batches together give what they give one by one, to {share:.0e} of the largest value."
        )


def _ratios(options: Iterable[str]) -> dict[str, float]:
    """The pattern and the ratio of each option; a pattern may itself hold an equals sign."""
    ratios = {}
    for option in options:
        pattern, _, ratio = option.rpartition("=")
        try:
            ratios[pattern] = float(ratio)
        except ValueError:
            raise typer.BadParameter(f"{option!r} is not PATTERN=RATIO, such as 'node:fc*=0.5'") from None
    return ratios
