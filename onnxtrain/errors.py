"""The exceptions that onnxtrain raises, and the one place that words where a failure happened.

OnnxTrainError
├── ModelError (ValueError)                      the file breaks ONNX or the training specification
│   ├── ValidationError                          all problems of a training model at once
│   └── ExternalDataError                        a tensor stored outside the file cannot be read safely
├── UnsupportedError (NotImplementedError)       right ONNX that onnxtrain does not run
│   └── UnsupportedOperatorError                 operators without a rule, all of them in one message
├── StaticValueError (ValueError)                a value must be known while tracing and is not
├── OperatorError (ValueError)                   a node failed on the values it was given
├── InputError (ValueError)                      a fed name or shape does not fit the model
│   └── InputTypeError (TypeError)               a fed element type does not fit the model
├── StateError (ValueError)                      a state variable was given a value that does not fit it
├── NonFiniteError (ArithmeticError)             a step gave NaN or infinity, and training stopped
├── DeviceMemoryError (MemoryError)              a step did not fit into memory, and training stopped
└── MissingExtraError (ImportError)              an optional package is needed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class OnnxTrainError(Exception):
    """Base of every error that onnxtrain raises on purpose.

    `located` says that the message names the node already, so that the calls around it do not name themselves too.
    """

    located = False

    def at(self, where: str) -> OnnxTrainError:
        """The same error with the place in front of its message."""
        return type(self)(f"{where}.\n{self}").mark()

    def mark(self) -> OnnxTrainError:
        """This error, taken as located."""
        self.located = True
        return self


class ModelError(OnnxTrainError, ValueError):
    """The file breaks ONNX or the training specification."""


class ExternalDataError(ModelError):
    """A tensor stored outside the model file cannot be read, or must not be."""


class UnsupportedError(OnnxTrainError, NotImplementedError):
    """The model is right, but uses something that onnxtrain does not run."""


class UnsupportedOperatorError(UnsupportedError):
    """The model uses operators, or versions of them, that have no rule."""


class StaticValueError(OnnxTrainError, ValueError):
    """A value that must be known while tracing depends on a value that is only known at run time.

    Attributes:
      source: the name of the value that is only known at run time.
      node: the outermost node that failed; a `graph.model.Node`.
      input: the input of that node that must be known, or "" where the need arose inside a body or a function.
      shape_like: whether that input is a few numbers, such as a shape, and no data.
      differentiated: whether the node lies between the xs and the y of a Gradient.
    """

    node: Any = None
    input: str = ""
    shape_like: bool = False
    differentiated: bool = False

    def __init__(self, message: str, source: str = ""):
        super().__init__(message)
        self.source = source


class OperatorError(OnnxTrainError, ValueError):
    """A node failed on the values that it was given."""


class InputError(OnnxTrainError, ValueError):
    """A fed input has a name or a shape that the model does not accept."""


class InputTypeError(InputError, TypeError):
    """A fed input has an element type that the model does not accept."""


class StateError(OnnxTrainError, ValueError):
    """A state variable was given a value of another shape or element type, or does not exist."""


class NonFiniteError(OnnxTrainError, ArithmeticError):
    """A loss or a state variable became NaN or infinite while training.

    Attributes:
      step: the step that gave it, counted from 1; None where running the steps again did not give it again.
      cause: the first value that is not finite; a `training.locator.NonFinite`, or None where it was not found.
    """

    step: int | None = None
    cause: Any = None


class DeviceMemoryError(OnnxTrainError, MemoryError):
    """A step needed more memory than there is."""


class MissingExtraError(OnnxTrainError, ImportError):
    """An optional package is needed; the message names the command that installs it."""


@dataclass(frozen=True)
class Problem:
    """One way in which a model breaks the training specification.

    Attributes:
      statement: the id of the statement in the specification, such as ``"T-06"``.
      where: the place in the file, such as ``"training_info[0].update_binding['W']"``.
      message: what is wrong: what was needed and what was found.
      remedy: what to do about it.
    """

    statement: str
    where: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"[{self.statement}] {self.where}: {self.message} {self.remedy}"


class ValidationError(ModelError):
    """A training model breaks the specification; ``problems`` lists every way in which it does."""

    def __init__(self, problems: Sequence[Problem]):
        self.problems = tuple(problems)
        count = len(self.problems)
        head = f"The training model has {count} problem{'s' if count != 1 else ''}:"
        super().__init__("\n".join([head, *(f"  {problem}" for problem in self.problems)]))


def describe_node(op_type: str, name: str, graph: str, domain: str, version: int) -> str:
    """Words where a node stands: ``Reshape 'decoder/reshape_3' in graph 'main' (ai.onnx 17)``."""
    label = f"{op_type} {name!r}" if name else f"{op_type} (unnamed)"
    return f"{label} in graph {graph!r} ({domain or 'ai.onnx'} {version})"


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtraError:
    """The error for an optional package that is not installed."""
    return MissingExtraError(f"{purpose} needs {package!r}. Install it with: pip install 'onnxtrain[{extra}]'")


class ModelWarning(UserWarning):
    """The file departs from ONNX in a way that onnxtrain reads all the same; the message says what it did."""
