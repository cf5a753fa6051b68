"""Ctrl-C during a run: the first one lets the step finish, the second one stops at once."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class Interruption:
    """While entered, turns the first Ctrl-C into a request that the run asks for after each step.

    It can only be entered in the main thread, where Python delivers signals.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = signal.SIG_DFL

    def __enter__(self) -> Interruption:
        self._previous = signal.signal(signal.SIGINT, self._request)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def __call__(self) -> bool:
        """Whether the run should stop."""
        return self.requested

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
