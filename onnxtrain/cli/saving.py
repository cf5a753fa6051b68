"""Where `train` saves to, where it starts from, and what is left when it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onnxtrain.cli.console import messages, results
from onnxtrain.errors import DeviceMemoryError, InputError, NonFiniteError
from onnxtrain.session import TrainingSession
from onnxtrain.training.checkpoints import Checkpoints


class Saving:
    """The files of a run: its output and, on request, a folder of checkpoints.

    Attributes:
      resumed: whether the run goes on with an earlier one.
    """

    def __init__(self, output: Path, folder: Path | None, keep: int):
        self.output = output
        self.checkpoints = Checkpoints(folder, keep) if folder else None
        self.resumed = False

    def begin(self, model: Path, seed: int | None, resume: bool) -> TrainingSession:
        """The session that the run starts with.

        Raises:
          InputError: the folder holds checkpoints of another run.
          ModelError: the run is to go on, and all checkpoints are damaged.
        """
        start = self._earlier() if resume else None
        if self.checkpoints and not resume and self.checkpoints.all():
            raise InputError(
                f"{self.checkpoints.folder} holds checkpoints of an earlier run. "
                "Go on with it by --resume, or give another folder."
            )
        self.resumed = start is not None
        self.session = TrainingSession(start or model, seed=None if start else seed)
        if start:
            results().print(f"Going on from {start}, after step {self.session.step_count}.")
        return self.session

    def save(self, loss: float | None = None) -> None:
        """Saves the session everywhere; the loss decides which checkpoint is the best."""
        self.session.save(self.output)
        if self.checkpoints:
            self.checkpoints.save(self.session, loss)

    @contextmanager
    def what_is_left(self) -> Iterator[None]:
        """Saves the last good state when a step runs out of memory, and says what the output holds after a failure."""
        try:
            yield
        except DeviceMemoryError:
            self.save()
            messages().print(f"{self.output} holds the state after step {self.session.step_count}.")
            raise
        except NonFiniteError:
            if self.output.exists():
                messages().print(f"{self.output} is left as it was saved last.")
            raise

    def _earlier(self) -> Path | None:
        if self.checkpoints:
            newest = self.checkpoints.newest()
            return newest.path if newest else None
        return self.output if self.output.exists() else None
