"""The application: its commands, what all of them share, and how it reports failures."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from onnxtrain.cli import conversion, demonstration, inspection, preparation, running
from onnxtrain.cli.console import messages, readable_warnings
from onnxtrain.errors import OnnxTrainError

DEBUG = "--debug"


class ReportingGroup(TyperGroup):
    """The commands, with one readable message for everything that fails for a reason that the user can mend."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Takes `--debug` also behind the command, where people put it when they call a command again."""
        if DEBUG in args:
            args = [DEBUG, *(argument for argument in args if argument != DEBUG)]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; failures become a message and exit code 1."""
        try:
            with readable_warnings():
                return super().invoke(ctx)
        except (OnnxTrainError, OSError) as error:
            if ctx.params["debug"]:
                raise
            messages().print(f"Error: {_describe(error)}", style="red")
            raise typer.Exit(1) from None


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}."
    return str(error)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"onnxtrain {metadata.version('onnxtrain')}")
        raise typer.Exit


app = typer.Typer(
    cls=ReportingGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def onnxtrain(
    debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error, for a bug report.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Train ONNX models, in ONNX: an .onnx file goes in and comes out with new weights.

    From an inference model to a trained one:

    ```
    onnxtrain prepare model.onnx -o training.onnx --loss softmax_cross_entropy
    onnxtrain train training.onnx -o trained.onnx --data digits.npz --epochs 10
    onnxtrain evaluate trained.onnx --data held_out.npz
    onnxtrain export trained.onnx -o better.onnx
    ```

    `onnxtrain demo` does all of it on real data, in about a minute.

    Exit codes: 0 when all went well, 1 when a command failed or found problems, 2 when it was called wrongly.
    """


preparation.add_commands(app)
conversion.add_commands(app)
inspection.add_commands(app)
running.add_commands(app)
demonstration.add_commands(app)


def main() -> None:
    """Runs the command line; the entry point of the `onnxtrain` command."""
    app(prog_name="onnxtrain")
