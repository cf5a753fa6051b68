"""Learning rates that change from step to step, as a part of the training step that is written into the file.

Each schedule gives the rate as a function of how many updates came before: the first update uses the rate at 0. In
front of any of them, `WarmUp` rises to its first value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from onnxtrain.authoring.expressions import Expression


class Schedule(Protocol):
    """A learning rate as a function of the number of updates."""

    @property
    def first(self) -> float:
        """The rate of the first update."""
        ...

    def write(self, step: Expression) -> Expression:
        """Adds the nodes of the rate after `step` updates, which is 0 in the first."""
        ...


@dataclass(frozen=True)
class Constant:
    """One rate for all time; it is of use after a `WarmUp`.

    Attributes:
      value: the rate.
    """

    value: float

    @property
    def first(self) -> float:
        return self.value

    def write(self, step: Expression) -> Expression:
        """Adds the nodes of the rate after `step` updates."""
        return step * 0.0 + self.value


@dataclass(frozen=True)
class Polynomial:
    """From `start` to `end` along a power of the time that is left; then it stays there.

    Attributes:
      start: the first rate.
      end: the last one.
      steps: how many updates lie between them.
      power: 1 is a straight line, 2 a parabola.
    """

    start: float
    end: float
    steps: int
    power: float = 1.0

    @property
    def first(self) -> float:
        return self.start

    def write(self, step: Expression) -> Expression:
        """Adds the nodes of the rate after `step` updates."""
        left = 1.0 - step.at_most(self.steps) / self.steps
        return (self.start - self.end) * (left if self.power == 1.0 else left**self.power) + self.end


def linear(start: float, end: float, steps: int) -> Polynomial:
    """A straight line from `start` to `end` in so many updates."""
    return Polynomial(start, end, steps)


@dataclass(frozen=True)
class Cosine:
    """From `start` to `end` along half a wave of the cosine; then it stays there.

    Attributes:
      start: the first rate.
      steps: how many updates it takes to come to `end`.
      end: the last rate.
    """

    start: float
    steps: int
    end: float = 0.0

    @property
    def first(self) -> float:
        return self.start

    def write(self, step: Expression) -> Expression:
        """Adds the nodes of the rate after `step` updates."""
        return _along_cosine(step.at_most(self.steps) / self.steps, self.start, self.end)


@dataclass(frozen=True)
class Exponential:
    """The rate times `factor` every so many updates, in between along the exponential function or in stairs.

    Attributes:
      start: the first rate.
      factor: what it is multiplied by.
      steps: how many updates lie between two multiplications.
      staircase: whether it stays the same in between.
      end: where it stops; for a factor below 1 the smallest rate, else the largest.
    """

    start: float
    factor: float
    steps: int = 1
    staircase: bool = False
    end: float | None = None

    @property
    def first(self) -> float:
        return self.start

    def write(self, step: Expression) -> Expression:
        """Adds the nodes of the rate after `step` updates."""
        periods = step / self.steps
        rate = self.start * self.factor ** (periods.floor() if self.staircase else periods)
        if self.end is None:
            return rate
        return rate.at_least(self.end) if self.factor < 1 else rate.at_most(self.end)


@dataclass(frozen=True)
class Stairs:
    """The rate times a factor at each of some steps.

    Attributes:
      start: the first rate.
      factors: by the number of updates after which the rate is multiplied by it, for good.
    """

    start: float
    factors: Mapping[int, float]

    @property
    def first(self) -> float:
        return self.start

    def write(self, step: Expression) -> Expression:
        """Adds the nodes of the rate after `step` updates."""
        one = step * 0.0 + 1.0
        rate = one * self.start
        for boundary, factor in sorted(self.factors.items()):
            rate = rate * step.before(boundary, one, one * factor)
        return rate


@dataclass(frozen=True)
class OneCycle:
    """Up to `peak` and down again to almost nothing, along cosines: the super-convergence of Smith and Topin (2018).

    Attributes:
      peak: the largest rate.
      steps: the length of the cycle, in updates.
      rise: the part of the cycle in which the rate goes up.
      start_divisor: `peak` divided by it is the first rate.
      end_divisor: the first rate divided by it is the last one.
    """

    peak: float
    steps: int
    rise: float = 0.3
    start_divisor: float = 25.0
    end_divisor: float = 1e4

    @property
    def first(self) -> float:
        return self.peak / self.start_divisor

    def write(self, step: Expression) -> Expression:
        """Adds the nodes of the rate after `step` updates."""
        top = int(self.rise * self.steps)
        rising = _along_cosine(step / max(top, 1), self.first, self.peak)
        done = (step - top).at_most(self.steps - top) / (self.steps - top)
        return step.before(top, rising, _along_cosine(done, self.peak, self.first / self.end_divisor))


@dataclass(frozen=True)
class WarmUp:
    """A straight line up to the first rate of another schedule, which then begins.

    Attributes:
      steps: how many updates it takes.
      then: what follows; a number is a constant rate.
      start: the first rate.
    """

    steps: int
    then: Schedule | float
    start: float = 0.0

    @property
    def first(self) -> float:
        return self.start

    def write(self, step: Expression) -> Expression:
        """Adds the nodes of the rate after `step` updates."""
        then = Constant(self.then) if isinstance(self.then, int | float) else self.then
        rising = linear(self.start, then.first, self.steps).write(step)
        return step.before(self.steps, rising, then.write((step - self.steps).at_least(0.0)))


def _along_cosine(done: Expression, start: float, end: float) -> Expression:
    """From `start`, where `done` is 0, to `end`, where it is 1."""
    return (start - end) * 0.5 * (1.0 + (done * math.pi).cosine()) + end
