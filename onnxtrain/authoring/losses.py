"""The losses: each writes its nodes in operators of the model's own opset.

A loss takes the model's prediction and the `labels` that a training step is fed with, and gives one number, the mean
over the batch. `SoftmaxCrossEntropyLoss` is younger than opset 12; before, the same is written in elementary operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.protos import HALF_TYPES, Dimensions
from onnxtrain.errors import ModelError, UnsupportedError


@dataclass(frozen=True)
class Prediction:
    """The value that a loss compares with the labels.

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


@dataclass(frozen=True)
class Loss:
    """The names of a loss and of the input that carries the labels, with the type of the latter."""

    value: str
    labels: onnx.ValueInfoProto
    element_type: int


@dataclass(frozen=True)
class LossKind:
    """A loss that can be asked for.

    Attributes:
      write: adds its nodes.
      starts_from_logits: whether a Softmax at the end of the model is part of the loss.
    """

    write: Callable[[GraphBuilder, Prediction], Loss]
    starts_from_logits: bool = False


def mean_squared_error(builder: GraphBuilder, prediction: Prediction) -> Loss:
    """The mean of the squared differences; the labels have the type and shape of the output."""
    name = builder.names.fresh("labels")
    labels = helper.make_tensor_value_info(name, prediction.element_type, _declared(prediction.dims))
    target = name
    if prediction.element_type != prediction.working_type:
        target = builder.cast(name, prediction.working_type, "loss/labels")
    difference = builder.add("Sub", (_working_value(builder, prediction), target), "loss/difference")
    squared = builder.add("Mul", (difference, difference), "loss/squared")
    return Loss(builder.mean(squared, "loss"), labels, prediction.working_type)


def softmax_cross_entropy(builder: GraphBuilder, prediction: Prediction) -> Loss:
    """Minus the logarithm of the probability of the right class; the labels are int64 class numbers."""
    dims, axis = _class_axis(prediction)
    classes = dims[axis]
    if classes == 1:
        raise ModelError(
            f"softmax_cross_entropy needs one score for each class on axis {axis} of {prediction.output!r}, but there "
            f"is one score in all: the shape is {_words(dims)}. Take loss='mean_squared_error' or another output."
        )
    name = builder.names.fresh("labels")
    labels = helper.make_tensor_value_info(name, TensorProto.INT64, _declared(dims[:axis] + dims[axis + 1 :]))
    scores = _working_value(builder, prediction)
    if builder.opset >= 12:
        order = (0, axis, *(other for other in range(1, len(dims)) if other != axis))
        scores = _transposed(builder, scores, order)
        value = builder.add("SoftmaxCrossEntropyLoss", (scores, name), "loss", name="loss", reduction="mean")
    else:
        order = (*(other for other in range(len(dims)) if other != axis), axis)
        scores = _transposed(builder, scores, order)
        value = _cross_entropy_in_parts(builder, scores, name, len(dims), classes, prediction)
    return Loss(value, labels, prediction.working_type)


LOSSES: Mapping[str, LossKind] = {
    "softmax_cross_entropy": LossKind(softmax_cross_entropy, starts_from_logits=True),
    "mean_squared_error": LossKind(mean_squared_error),
}


def find_loss(name: str) -> LossKind:
    """The loss of this name.

    Raises:
      UnsupportedError: there is none; the message lists those that there are.
    """
    if name not in LOSSES:
        raise UnsupportedError(f"The loss {name!r} is unknown. Known are {', '.join(map(repr, LOSSES))}.")
    return LOSSES[name]


def _class_axis(prediction: Prediction) -> tuple[Dimensions, int]:
    dims, axis = prediction.dims, prediction.class_axis
    if dims is None or len(dims) < 2:
        found = "its rank is unknown" if dims is None else f"its shape is {_words(dims)}"
        raise ModelError(
            f"softmax_cross_entropy needs an output with one row of class scores for each example, but of "
            f"{prediction.output!r} {found}. Choose another `output`, or loss='mean_squared_error'."
        )
    rank = len(dims)
    if axis is None:
        # images keep their classes next to the batch, sequences keep them last, and [N, C] is both
        axis = 1 if rank >= 4 else rank - 1
    if not -rank <= axis < rank or axis % rank == 0:
        raise ModelError(
            f"class_axis={axis} must be one of the axes 1 to {rank - 1} of {prediction.output!r}, "
            f"whose shape is {_words(dims)}."
        )
    return dims, axis % rank


def _working_value(builder: GraphBuilder, prediction: Prediction) -> str:
    if prediction.element_type == prediction.working_type:
        return prediction.value
    return builder.cast(prediction.value, prediction.working_type, "loss/prediction")


def _transposed(builder: GraphBuilder, value: str, order: tuple[int, ...]) -> str:
    if order == tuple(range(len(order))):
        return value
    return builder.add("Transpose", (value,), "loss/scores", perm=list(order))


def _cross_entropy_in_parts(
    builder: GraphBuilder, scores: str, labels: str, rank: int, classes: object, prediction: Prediction
) -> str:
    """Cross entropy over the last axis, for opsets in which it is no operator yet."""
    # before opset 13, LogSoftmax runs over `axis` and all axes after it, which is the last one alone here
    log_probability = builder.add("LogSoftmax", (scores,), "loss/log_probability", name="loss", axis=rank - 1)
    chosen = _one_hot(builder, labels, scores, rank, classes, prediction)
    picked = builder.add("Mul", (log_probability, chosen), "loss/picked")
    summed = builder.add("ReduceSum", (picked,), "loss/summed", axes=[rank - 1], keepdims=0)
    return builder.add("Neg", (builder.mean(summed, "loss/mean"),), "loss")


def _one_hot(
    builder: GraphBuilder, labels: str, scores: str, rank: int, classes: object, prediction: Prediction
) -> str:
    if builder.opset < 9:  # OneHot is younger
        if not isinstance(classes, int):
            raise UnsupportedError(
                f"The number of classes of {prediction.output!r} is not fixed, and opset {builder.opset} has no "
                "OneHot. Convert the model to opset 12 or newer (onnx.version_converter)."
            )
        rows = builder.initializer("loss/one_hot_rows", np.eye(classes), prediction.working_type)
        return builder.add("Gather", (rows, labels), "loss/one_hot", axis=0)
    values = builder.initializer("loss/off_and_on", (0, 1), prediction.working_type)
    if isinstance(classes, int):
        depth = builder.integers("loss/classes", classes)
    else:
        shape = builder.add("Shape", (scores,), "loss/shape")
        depth = builder.add("Gather", (shape, builder.integers("loss/last", rank - 1)), "loss/classes", axis=0)
    return builder.add("OneHot", (labels, depth, values), "loss/one_hot", axis=-1)


def _declared(dims: Dimensions | None) -> list[int | str | None] | None:
    return None if dims is None else list(dims)


def _words(dims: Dimensions) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in dims) + "]"
