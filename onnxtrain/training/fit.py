"""The training loop: epochs of shuffled batches, measured as they go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import jax
import numpy as np

from onnxtrain.errors import InputError
from onnxtrain.state import DataPosition
from onnxtrain.training.data import (
    Arrays,
    check_first_batch,
    choose_batch_size,
    match_inputs,
    training_inputs,
    whole_batches,
)
from onnxtrain.training.evaluation import Evaluator
from onnxtrain.training.metrics import RunningMeans
from onnxtrain.training.safeguard import Safeguard

if TYPE_CHECKING:
    from onnxtrain.session import TrainingSession


@dataclass(frozen=True)
class Epoch:
    """One pass over the data.

    Attributes:
      number: counted from 1 in this run.
      step: training steps that the session has taken at its end, earlier runs included.
      training: means over the examples of the scalar outputs of the steps, such as the loss.
      validation: what the evaluation on held-out data gave at its end; empty without such data.
      examples: how many examples were trained on.
      complete: whether that was all of them; false for an epoch that was cut short.
      seconds: time taken, the evaluation included.
    """

    number: int
    step: int
    training: Mapping[str, float]
    validation: Mapping[str, float]
    examples: int
    complete: bool
    seconds: float

    @property
    def loss(self) -> float | None:
        """The first measure that is no accuracy: of the held-out data where there is any, or else of the training."""
        measures = self.validation or self.training
        return next((value for name, value in measures.items() if name != "accuracy"), None)


@dataclass
class History:
    """What a run measured, epoch by epoch; `interrupted` when it was stopped before its last one was complete."""

    epochs: list[Epoch] = field(default_factory=list)
    interrupted: bool = False


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a step; `training` holds the means of the epoch as last fetched from the device."""

    epoch: int
    epochs: int
    examples: int
    examples_in_epoch: int
    training: Mapping[str, float]


def fit(
    session: TrainingSession,
    data: Arrays,
    *,
    epochs: int,
    batch_size: int | None = None,
    validation: Arrays | None = None,
    seed: int | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    on_step: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    resume: bool = False,
    save: Callable[[], None] | None = None,
    save_every: int | None = None,
) -> History:
    """Trains a session on arrays for a number of epochs.

    Each epoch takes the examples in an order of its own, drawn from the seed and from the steps that the session has
    taken, so that a run that was saved after an epoch and goes on is the run that was never interrupted. The last
    batch of an epoch may be smaller than the others; it is one more compilation, and no example is left out.

    The run stops at a loss or a state variable that is NaN or infinite. This is looked at whenever measures are
    fetched, every 32 steps and at the end of an epoch, and costs a copy of the state to the host; the steps since the
    last look are then taken again to find the first bad one, and the session goes back to the state before it.

    Args:
      session: what is trained; its state is where the run has come to, whatever happens.
      data: one array for each input, labels included, with the examples along the first axis.
      epochs: passes over the data.
      batch_size: examples a step; 32 by default, or what the model's inputs fix.
      validation: held-out data, evaluated after every epoch.
      seed: decides the order of the examples; by default the session's own seed does.
      on_epoch: called after every complete epoch, for example to save.
      on_step: called after every step, for example to show progress.
      stop: asked after every step; the run ends when it answers true.
      resume: go on with the run that the session was saved in, from the very batch, up to `epochs` in all. A session
        that has no such run begins one.
      save: called inside an epoch after every `save_every` steps of it, once the state is known to be finite.
      save_every: how many steps lie between two calls of `save`.

    Returns:
      What was measured. An epoch that was cut short is in it too, as the last one.

    Raises:
      InputError: the arrays do not fit the inputs of the model; no step has been taken.
      ModelError: the model has no training information.
      NonFiniteError: a loss or a state variable became NaN or infinite; the error names the step, the node that gave
        the first such value, and what it read.
      DeviceMemoryError: a step ran out of memory; the session is at a step before it.
    """
    run = _Run(session, data, epochs, batch_size, seed, on_step, stop or _never, save, save_every)
    run.begin(session.position if resume else None)
    evaluate = None
    if validation is not None:
        evaluate = Evaluator(session, validation, run.batch_size, source="the validation data")
    history = History()
    for number in range(run.position.epochs + 1, epochs + 1):
        epoch = run.train_epoch(number, evaluate)
        history.epochs.append(epoch)
        if epoch.complete and on_epoch:
            on_epoch(epoch)
        if run.stop():
            history.interrupted = not epoch.complete or number < epochs
            break
    return history


def _never() -> bool:
    return False


class _Run:
    """What stays the same over the epochs of a run."""

    def __init__(
        self,
        session: TrainingSession,
        data: Arrays,
        epochs: int,
        batch_size: int | None,
        seed: int | None,
        on_step: Callable[[Progress], None] | None,
        stop: Callable[[], bool],
        save: Callable[[], None] | None,
        save_every: int | None,
    ):
        inputs = training_inputs(session)
        self.session = session
        self.dataset = match_inputs(data, inputs, source="the training data")
        self.epochs = epochs
        self.batch_size = choose_batch_size(batch_size, inputs)
        self.examples_in_epoch = whole_batches(self.dataset.size, self.batch_size, inputs)
        check_first_batch(session, self.dataset, self.batch_size)
        self.entropy = _entropy(session) if seed is None else (seed,)
        self.on_step = on_step
        self.stop = stop
        self.save = save
        self.save_every = save_every
        self.safeguard = Safeguard(session)

    def begin(self, position: DataPosition | None) -> None:
        """Sets out from the position that an earlier run came to, or from the start of the data.

        Raises:
          InputError: that run cut other data, or cut it otherwise.
        """
        start = DataPosition(0, self.session.step_count, 0, self.batch_size, self.examples_in_epoch)
        self.position = position or start
        found, needed = (f"{one.examples} examples in batches of {one.batch_size}" for one in (start, self.position))
        if found != needed:
            raise InputError(
                f"The run was saved while it trained on {needed}, and cannot go on with {found}.\n"
                "Give the same data and batch size as before, or start a new run."
            )

    def train_epoch(self, number: int, evaluate: Evaluator | None) -> Epoch:
        """Takes the steps of one epoch, or those until the run is to stop, and measures them."""
        started = time.perf_counter()
        means = RunningMeans()
        before = self.position.batches * self.batch_size
        reached = before
        for count, batch in self.dataset.batches(self.batch_size, self._order()[before:]):
            self._take_step(count, batch, means)
            reached += count
            if self.on_step:
                self.on_step(Progress(number, self.epochs, reached, self.examples_in_epoch, means.latest))
            if self.stop():
                break
            self._save_between(reached, means)
        training = self._measure(means)
        complete = reached == self.examples_in_epoch
        examples = reached - before
        if complete:
            self._place(replace(self.position, epochs=number, begun=self.position.step, batches=0))
        validation = evaluate() if evaluate and complete else {}
        seconds = time.perf_counter() - started
        return Epoch(number, self.session.step_count, training, validation, examples, complete, seconds)

    def _take_step(self, count: int, batch: Mapping[str, np.ndarray], means: RunningMeans) -> None:
        self.safeguard.remember(batch)
        with self._recovering():
            fetched = means.add(count, self.session.step(batch))
            self._place(replace(self.position, batches=self.position.batches + 1))
            if fetched:
                self.safeguard.check(means.latest)

    def _measure(self, means: RunningMeans) -> Mapping[str, float]:
        """The means so far, and a look at whether all is still finite."""
        with self._recovering():
            self.safeguard.check(means.fetch())
        return means.latest

    def _save_between(self, reached: int, means: RunningMeans) -> None:
        is_due = self.save_every and self.position.batches % self.save_every == 0
        if self.save and is_due and reached < self.examples_in_epoch:  # the end of an epoch has its own call
            self._measure(means)
            self.save()

    @contextmanager
    def _recovering(self) -> Iterator[None]:
        """Keeps session and position at the same good step, whatever happens inside."""
        try:
            with self.safeguard.recovering():
                yield
        except BaseException:
            self._place(replace(self.position, batches=self.session.step_count - self.position.begun))
            raise

    def _place(self, position: DataPosition) -> None:
        self.position = self.session.position = position

    def _order(self) -> np.ndarray:
        generator = np.random.default_rng((*self.entropy, self.position.begun))
        return generator.permutation(self.dataset.size)[: self.examples_in_epoch]


def _entropy(session: TrainingSession) -> tuple[int, ...]:
    """The session's seed, which a saved run keeps, as numbers that numpy's generators take."""
    return tuple(int(word) for word in np.ravel(jax.random.key_data(session.state.key)))
