"""How the command line speaks: results on standard output, warnings and errors on standard error."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

# Where output is redirected there is no window to fit into; tables are only as wide as what they hold.
WIDTH_OF_A_FILE = 200


def results() -> Console:
    """The console for what a command is asked for."""
    return _console(sys.stdout.isatty(), stderr=False)


def messages() -> Console:
    """The console for warnings and errors."""
    return _console(sys.stderr.isatty(), stderr=True)


def _console(is_terminal: bool, stderr: bool) -> Console:
    # Names in models are opaque: "[x]" is no markup and ":ok:" is no emoji.
    width = None if is_terminal else WIDTH_OF_A_FILE
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def print_table(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints rows under a title; an empty table is its title and the word "none"."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(title if table.row_count else f"{title}: none", style="bold")
    if table.row_count:
        console.print(Padding(table, (0, 0, 0, 2), expand=False))
    console.print()


@contextmanager
def readable_warnings() -> Iterator[None]:
    """Prints warnings as one message each, without the place in the code that they came from."""

    def show(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
        messages().print(f"Warning: {message}", style="yellow")

    with warnings.catch_warnings():
        warnings.showwarning = show
        warnings.filterwarnings("default", category=UserWarning, module="onnxtrain")
        yield


def describe_bytes(count: int) -> str:
    """A size in words: ``1.2 MB``."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
