"""A folder of checkpoints: the last few and the best of a run, each with a checksum, each whole or not there at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxtrain.errors import InputError, ModelError

if TYPE_CHECKING:
    from onnxtrain.session import TrainingSession

DEFAULT_KEEP = 3

_RECORD_NAME = re.compile(r"step-(\d{10,})\.json")
_PIECE = 1 << 20


@dataclass(frozen=True)
class Checkpoint:
    """A saved training model and what is recorded of it.

    Attributes:
      path: the model.
      step: how many training steps it has taken.
      score: how good it is, where less is better; None for one that was not measured.
      checksums: the SHA-256 of the model and of every file that holds its tensors, by file name.
    """

    path: Path
    step: int
    score: float | None
    checksums: Mapping[str, str]

    @property
    def record(self) -> Path:
        """The file that says all this. It is written last and removed first: without it there is no checkpoint."""
        return self.path.with_suffix(".json")

    def problem(self) -> str | None:
        """What is wrong with its files, or None when all are as they were written."""
        for name, expected in self.checksums.items():
            try:
                if _checksum(self.path.with_name(name)) != expected:
                    return f"the checksum of {name} is not the recorded one"
            except OSError as error:
                return f"{name} cannot be read: {error.strerror}"
        return None


class Checkpoints:
    """The checkpoints of one run in a folder of their own.

    Args:
      folder: made when the first one is saved.
      keep: how many of the last ones stay; the best one stays too.

    Raises:
      InputError: `keep` is less than 1.

    Example::

        checkpoints = Checkpoints("checkpoints", keep=3)
        newest = checkpoints.newest()
        session = TrainingSession(newest.path if newest else "training.onnx")
        fit(session, data, epochs=10, resume=True, on_epoch=lambda epoch: checkpoints.save(session, score_of(epoch)))
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = DEFAULT_KEEP):
        if keep < 1:
            raise InputError(f"{keep} checkpoints are to be kept. Keep 1 or more.")
        self.folder = Path(folder)
        self.keep = keep

    def save(self, session: TrainingSession, score: float | None = None) -> Checkpoint:
        """Saves the session, then removes the checkpoints that are no longer kept.

        Args:
          session: what is saved; it goes on exactly from there, position in the data included.
          score: how good it is, where less is better, such as the validation loss.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{session.step_count:010d}.onnx"
        path.with_suffix(".json").unlink(missing_ok=True)  # it speaks of the file that is about to be replaced
        session.save(path)
        files = (path, *sorted(self.folder.glob(f"{path.name}.*.data")))
        score = score if score is not None and math.isfinite(score) else None
        checkpoint = Checkpoint(path, session.step_count, score, {file.name: _checksum(file) for file in files})
        _write_record(checkpoint)
        self._prune()
        return checkpoint

    def all(self) -> list[Checkpoint]:
        """Every recorded checkpoint, damaged ones included, from the oldest to the newest."""
        return sorted(self._read_records(), key=lambda checkpoint: checkpoint.step)

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint whose files are as they were written; None where none was ever saved.

        A damaged one is passed over with a warning.

        Raises:
          ModelError: all of them are damaged.
        """
        found = self.all()
        for checkpoint in reversed(found):
            problem = checkpoint.problem()
            if problem is None:
                return checkpoint
            warnings.warn(
                f"Checkpoint {checkpoint.path} is damaged: {problem}. The one before it is used instead.", stacklevel=2
            )
        if found:
            raise ModelError(
                f"All {len(found)} checkpoints in {self.folder} are damaged. Start a new run in another folder."
            )
        return None

    def best(self) -> Checkpoint | None:
        """The checkpoint with the lowest score, the newer of two equal ones; None where none has a score."""
        scored = [checkpoint for checkpoint in self.all() if checkpoint.score is not None]
        return min(scored, key=lambda checkpoint: (checkpoint.score or 0.0, -checkpoint.step), default=None)

    def _read_records(self) -> Iterator[Checkpoint]:
        if not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            if _RECORD_NAME.fullmatch(path.name):
                yield _read_record(path)

    def _prune(self) -> None:
        found = self.all()
        kept = {checkpoint.step for checkpoint in found[-self.keep :]}
        best = self.best()
        for checkpoint in found:
            if checkpoint.step not in kept and checkpoint != best:
                for path in (checkpoint.record, checkpoint.path, *map(self.folder.joinpath, checkpoint.checksums)):
                    path.unlink(missing_ok=True)


def _read_record(path: Path) -> Checkpoint:
    """What a record says; one that cannot be understood belongs to a damaged checkpoint."""
    model = path.with_suffix(".onnx")
    step = int(path.stem.removeprefix("step-"))
    try:
        record: Any = json.loads(path.read_bytes())
        checksums = {str(name): str(checksum) for name, checksum in record["sha256"].items()}
        score = None if record["score"] is None else float(record["score"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return Checkpoint(model, step, None, {path.name: "not understood"})
    if any(Path(name).name != name for name in checksums) or model.name not in checksums:
        return Checkpoint(model, step, None, {path.name: "not understood"})
    return Checkpoint(model, step, score, checksums)


def _write_record(checkpoint: Checkpoint) -> None:
    text = json.dumps({"step": checkpoint.step, "score": checkpoint.score, "sha256": dict(checkpoint.checksums)})
    temporary = checkpoint.record.with_suffix(f".{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(checkpoint.record)
    finally:
        temporary.unlink(missing_ok=True)


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
