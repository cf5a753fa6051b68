"""Keeps the last good state of a run, and stops the run when a loss or a weight is no longer finite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from onnxtrain.errors import DeviceMemoryError, NonFiniteError, OnnxTrainError
from onnxtrain.training.locator import find_nonfinite, is_finite
from onnxtrain.training.metrics import is_measure

if TYPE_CHECKING:
    from onnxtrain.session import TrainingSession
    from onnxtrain.state import TrainingState


class Safeguard:
    """The last state of a run that is known to be good, and the batches that were trained on since.

    The state is kept on the host: it outlasts a device that runs out of memory, and takes none of that memory. State
    variables that are not finite when the run begins are not watched.
    """

    def __init__(self, session: TrainingSession):
        self.session = session
        self._batches: list[Mapping[str, Any]] = []
        self._good = _on_host(session.state)
        self._watched = [name for name, value in self._good.variables.items() if is_finite(value)]

    def remember(self, batch: Mapping[str, Any]) -> None:
        """Takes note of a batch that is about to be trained on."""
        self._batches.append(batch)

    def check(self, measures: Mapping[str, float]) -> None:
        """Takes the present state for good, unless it or a measure since the last check is not finite.

        Raises:
          NonFiniteError: it is not; the session is back at the state before the step that was the first to go wrong.
        """
        reached = _on_host(self.session.state)
        if self._broken(measures, reached):
            raise self._step_again()
        self._good = reached
        self._batches.clear()

    @contextmanager
    def recovering(self) -> Iterator[None]:
        """Puts the session back to the last good state when a step is cut short or runs out of memory.

        Raises:
          DeviceMemoryError: a step ran out of memory.
        """
        try:
            yield
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            self._go_back()
            if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise DeviceMemoryError(
                f"A step ran out of memory. The session is back at step {self.session.step_count}.\n{error}\n"
                "Make the batches smaller, or train fewer weights."
            ) from error
        except KeyboardInterrupt:
            self._go_back()  # the step that was cut short may have given the buffers of the state away
            raise

    def _go_back(self) -> None:
        self.session.state = self._good

    def _broken(self, measures: Mapping[str, Any], state: TrainingState) -> list[str]:
        found = [name for name, value in measures.items() if not np.isfinite(value).all()]
        return found + [name for name in self._watched if not is_finite(state.variables[name])]

    def _step_again(self) -> NonFiniteError:
        """The error that tells of the first bad step, found by taking the steps since the last good state again."""
        self._go_back()
        for batch in self._batches:
            before = self.session.state
            outputs = self.session.step(batch)
            measures = {name: np.asarray(value, np.float64) for name, value in outputs.items() if is_measure(value)}
            broken = self._broken(measures, self.session.state)
            if broken:
                self.session.state = before
                return self._explain(batch, broken)
        self._go_back()
        return NonFiniteError(
            f"A loss or a weight became NaN or infinite after step {self.session.step_count}, and did not when the "
            "steps were taken again. The session is back at that step. The device may be at fault."
        )

    def _explain(self, batch: Mapping[str, Any], broken: list[str]) -> NonFiniteError:
        step = self.session.step_count + 1
        try:
            cause = find_nonfinite(self.session, batch)
            found = f"{cause}\n" if cause else ""
        except (OnnxTrainError, MemoryError, jax.errors.JaxRuntimeError) as failure:  # it needs more memory than a step
            cause, found = None, f"Looking for the node that gave them failed: {failure}\n"
        error = NonFiniteError(
            f"Training stopped: step {step} made {', '.join(map(repr, broken))} NaN or infinite.\n{found}"
            f"The session is back at the state before it, after step {step - 1}. Look at the batch, lower the "
            "learning rate, or clip the gradients."
        )
        error.step, error.cause = step, cause
        return error


def _on_host(state: TrainingState) -> TrainingState:
    """The state with copies of what a step changes; numpy's views of device memory would keep it from being reused."""
    return replace(
        state, variables={name: np.array(value) for name, value in state.variables.items()}, step=np.array(state.step)
    )
