"""How large the arrays may become that a model's file asks for without holding their elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a file may ask for; a few bytes in it, such as a shape, could otherwise fill any memory.

    The defaults let through what models are made of, and can be widened for a model that is trusted:

        with onnxtrain.limits.using(Limits(elements=2**34)):
            session = TrainingSession("large.onnx")

    Attributes:
      rank: the most dimensions of a computed shape.
      elements: the most elements of an array that a node computes, or that a sparse tensor becomes.
    """

    rank: int = 64
    elements: int = 2**32

    def excess(self, shape: Sequence[int]) -> str:
        """What is too large about a shape, or "" when nothing is."""
        if len(shape) > self.rank:
            return f"A shape of {len(shape)} dimensions is computed. The limit is {self.rank}. {_REMEDY}"
        elements = math.prod(shape)  # of Python's integers, which do not overflow
        if elements > self.elements:
            return f"An array of shape {list(shape)} has {elements} elements. The limit is {self.elements}. {_REMEDY}"
        return ""


_REMEDY = "If you trust the model, raise it with onnxtrain.limits.using."
_DEFAULTS = Limits()
_CURRENT: ContextVar[Limits] = ContextVar("onnxtrain_limits", default=_DEFAULTS)


def current() -> Limits:
    """The limits that hold here."""
    return _CURRENT.get()


@contextmanager
def using(limits: Limits) -> Iterator[None]:
    """Within the block these limits hold, for reading models and for running them."""
    token = _CURRENT.set(limits)
    try:
        yield
    finally:
        _CURRENT.reset(token)
