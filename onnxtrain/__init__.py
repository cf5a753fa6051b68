"""Trains ONNX models with JAX: executes the training information of an .onnx file and writes the weights back.

Importing this package is quick: JAX and ONNX are imported when a name that needs them is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from onnxtrain import errors
from onnxtrain.errors import Problem

if TYPE_CHECKING:
    from onnxtrain.authoring import make_trainable
    from onnxtrain.graph.validate import validate
    from onnxtrain.program import Program, lower
    from onnxtrain.session import TrainingSession
    from onnxtrain.state import TrainingState

__version__ = "0.1.0"

__all__ = [
    "Problem",
    "Program",
    "TrainingSession",
    "TrainingState",
    "errors",
    "lower",
    "make_trainable",
    "validate",
]

_HOMES = {
    "Program": "onnxtrain.program",
    "TrainingSession": "onnxtrain.session",
    "TrainingState": "onnxtrain.state",
    "lower": "onnxtrain.program",
    "make_trainable": "onnxtrain.authoring",
    "validate": "onnxtrain.graph.validate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'onnxtrain' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
