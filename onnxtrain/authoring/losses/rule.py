"""What a loss is: it writes the nodes that make one number of the model's predictions and of what a step is fed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx
from onnx import TensorProto, helper

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.protos import HALF_TYPES, Dimension, Dimensions, dimensions
from onnxtrain.errors import ModelError

SOFTMAX = ("Softmax", "LogSoftmax")


@dataclass(frozen=True)
class Prediction:
    """A value of the model that a loss looks at.

    Attributes:
      output: the output of the model that it stands for, in messages.
      value: its name in the combined graph.
      element_type: its element type.
      dims: its shape; None when not even its rank is known.
      class_axis: the axis that holds one score for each class; None to find it by the rank.
    """

    output: str
    value: str
    element_type: int
    dims: Dimensions | None
    class_axis: int | None = None

    @property
    def working_type(self) -> int:
        """What the loss is computed in: at least float32."""
        return TensorProto.FLOAT if self.element_type in HALF_TYPES else self.element_type

    def working_value(self, builder: GraphBuilder) -> str:
        """The name of the value in that type."""
        if self.element_type == self.working_type:
            return self.value
        return builder.cast(self.value, self.working_type, "loss/prediction")

    def known_dims(self) -> Dimensions:
        """The shape.

        Raises:
          ModelError: its rank is not known.
        """
        if self.dims is None:
            raise ModelError(
                f"The rank of {self.output!r} is not known, and its loss needs it. Choose another `output`."
            )
        return self.dims


class Fed:
    """What the losses of one algorithm are fed with: its inputs beside the model's.

    Attributes:
      inputs: what has been asked for so far, by name.
    """

    def __init__(self, builder: GraphBuilder):
        self.inputs: dict[str, onnx.ValueInfoProto] = {}
        self._builder = builder
        self._names: dict[str, str] = {}

    def input(self, name: str, element_type: int, dims: Sequence[Dimension] | None) -> str:
        """The fed input of this name; a second loss that asks for it shares it.

        Raises:
          ModelError: the two want different types.
        """
        declared = helper.make_tensor_value_info("", element_type, None if dims is None else list(dims))
        if name not in self._names:
            self._names[name] = declared.name = self._builder.names.fresh(name)
            self.inputs[declared.name] = declared
            return declared.name
        found = self.inputs[self._names[name]]
        if found.type.tensor_type.elem_type != element_type or not _may_be_equal(dimensions(found.type), dims):
            raise ModelError(
                f"Two losses are fed {name!r}, of different types or shapes. Give one of them `labels` of its own."
            )
        return found.name


class Loss(Protocol):
    """What is minimized."""

    @property
    def replaces(self) -> Sequence[str]:
        """The operators that the loss has in itself: where the model ends in one of them, it starts from before it."""
        ...

    def write(self, builder: GraphBuilder, predictions: Sequence[Prediction], fed: Fed, labels: str) -> str:
        """Adds the nodes.

        Args:
          builder: takes the nodes.
          predictions: the values that the loss looks at, mostly one.
          fed: gives the names of fed inputs.
          labels: what the input with the labels is to be called.

        Returns:
          The name of the loss, a scalar of the working type of the first prediction.
        """
        ...


def single(predictions: Sequence[Prediction], loss: object) -> Prediction:
    """The one prediction of a loss that takes no more.

    Raises:
      ModelError: there are several.
    """
    if len(predictions) != 1:
        names = [prediction.output for prediction in predictions]
        raise ModelError(f"{type(loss).__name__} looks at one output, and was given {len(names)}: {names}.")
    return predictions[0]


def fed_like(builder: GraphBuilder, prediction: Prediction, fed: Fed, labels: str) -> str:
    """Labels of the type and shape of a prediction, in its working type."""
    name = fed.input(labels, prediction.element_type, prediction.dims)
    if prediction.element_type == prediction.working_type:
        return name
    return builder.cast(name, prediction.working_type, "loss/labels")


def words(dims: Dimensions) -> str:
    """A shape in messages."""
    return "[" + ", ".join("?" if size is None else str(size) for size in dims) + "]"


def describe(loss: Loss) -> str:
    """A loss in words: its name, and the options that are set."""
    name = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(loss).__name__).strip()
    options = dataclasses.fields(loss) if dataclasses.is_dataclass(loss) else ()
    values = {option.name: (getattr(loss, option.name), option.default) for option in options}
    # what is no number or text, such as a model or a function, has no words that are the same every time
    told = [
        f"{option}={value}"
        for option, (value, default) in values.items()
        if value != default and isinstance(value, int | float | str | list | tuple)
    ]
    return f"{name} ({', '.join(told)})" if told else name


def _may_be_equal(found: Dimensions | None, wanted: Sequence[Dimension] | None) -> bool:
    if found is None or wanted is None:
        return True
    sizes = zip(found, wanted, strict=False)
    return len(found) == len(wanted) and not any(
        isinstance(one, int) and isinstance(other, int) and one != other for one, other in sizes
    )
