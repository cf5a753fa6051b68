"""Arguments and options that several commands share."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Annotated

import typer

ModelPath = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The .onnx file to read. It is never changed.", show_default=False)
]
TrainingModelPath = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="An .onnx file with training information, from `prepare` or elsewhere.",
        show_default=False,
    ),
]
OutputModel = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="OUT", help="The .onnx file to write, whole or not at all.", show_default=False
    ),
]
DataFile = Annotated[
    Path,
    typer.Option(
        "--data",
        "-d",
        metavar="FILE.npz",
        help="One array for each input of the model, by its name, with the examples along the first axis.",
        show_default=False,
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        "-b",
        min=1,
        help="Examples a batch. \\[default: 32, or what the file fixes]",
        show_default=False,
    ),
]
Trainable = Annotated[
    list[str] | None,
    typer.Option(
        "--trainable",
        metavar="PATTERN",
        help="Train only the weights that match: a glob over names, node:GLOB, last:N or first:N; may be repeated. "
        "\\[default: all weights]",
        show_default=False,
    ),
]
Freeze = Annotated[
    list[str] | None,
    typer.Option(
        "--freeze",
        metavar="PATTERN",
        help="Do not train the weights that match, likewise; may be repeated.",
        show_default=False,
    ),
]
LossOutput = Annotated[
    str | None,
    typer.Option(
        "--loss-output",
        metavar="NAME",
        help="The output that the loss looks at, where there are several.",
        show_default=False,
    ),
]


def check_writable(path: Path) -> None:
    """Makes sure, before any long work, that a file can be written there.

    Raises:
      OSError: its folder does not exist or does not let it.
    """
    folder = path.parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "The folder does not exist", str(folder))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
