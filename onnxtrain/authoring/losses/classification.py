"""Losses over class scores.

`SoftmaxCrossEntropyLoss` is younger than opset 12, and knows no smoothing of labels; else the same is written in
elementary operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.losses.rule import SOFTMAX, Fed, Prediction, fed_like, single, words
from onnxtrain.authoring.protos import Dimensions
from onnxtrain.errors import ModelError, UnsupportedError

_TINY = 1e-30  # in place of a probability of 0, whose logarithm is multiplied by 0


@dataclass(frozen=True)
class SoftmaxCrossEntropy:
    """Minus the logarithm of the probability of the right class, by a softmax of the scores.

    The labels are int64 class numbers, of the shape of the output without its class axis. The loss is the mean over
    them, weighted by `class_weights` where these are given, as in PyTorch.

    Attributes:
      class_weights: one weight for each class.
      ignore_index: a label that does not count.
      label_smoothing: the share of every label that is spread over all classes.
    """

    class_weights: Sequence[float] | None = None
    ignore_index: int | None = None
    label_smoothing: float = 0.0

    replaces = SOFTMAX

    def write(self, builder: GraphBuilder, predictions: Sequence[Prediction], fed: Fed, labels: str) -> str:
        """Adds the nodes."""
        scores = _Scores(builder, single(predictions, self), fed, labels)
        if builder.opset >= 12 and not self.label_smoothing:
            return scores.write_operator("SoftmaxCrossEntropyLoss", self.class_weights, self.ignore_index)
        values, axis = scores.with_classes_last()
        # before opset 13, LogSoftmax runs over `axis` and all axes after it, which is the last one alone here
        log_probability = builder.add("LogSoftmax", (values,), "loss/log_probability", axis=axis)
        return scores.write_in_parts(log_probability, self.class_weights, self.ignore_index, self.label_smoothing)


@dataclass(frozen=True)
class NegativeLogLikelihood:
    """Minus the logarithm of the probability of the right class, for a model that gives logarithms of probabilities.

    Attributes:
      class_weights: one weight for each class.
      ignore_index: a label that does not count.
    """

    class_weights: Sequence[float] | None = None
    ignore_index: int | None = None

    replaces = ()

    def write(self, builder: GraphBuilder, predictions: Sequence[Prediction], fed: Fed, labels: str) -> str:
        """Adds the nodes."""
        scores = _Scores(builder, single(predictions, self), fed, labels)
        if builder.opset >= 12:
            return scores.write_operator("NegativeLogLikelihoodLoss", self.class_weights, self.ignore_index)
        values, _ = scores.with_classes_last()
        return scores.write_in_parts(values, self.class_weights, self.ignore_index, 0.0)


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Cross entropy of independent yes-or-no questions, from logits; the mean over all of them.

    The labels are probabilities, of the type and shape of the output.

    Attributes:
      positive_weight: what a positive label counts; PyTorch's `pos_weight`. A number, or one for each last index.
    """

    positive_weight: float | Sequence[float] = 1.0

    replaces = ("Sigmoid",)

    def write(self, builder: GraphBuilder, predictions: Sequence[Prediction], fed: Fed, labels: str) -> str:
        """Adds the nodes: (1 - z) x + (1 + (p - 1) z) softplus(-x), which is finite for logits of any size."""
        prediction = single(predictions, self)
        target, element_type = fed_like(builder, prediction, fed, labels), prediction.working_type
        logits = prediction.working_value(builder)
        one = builder.initializer("loss/one", 1.0, element_type)
        rest = builder.add("Sub", (one, target), "loss/rest")
        line = builder.add("Mul", (rest, logits), "loss/line")
        bend = builder.add("Softplus", (builder.add("Neg", (logits,), "loss/negative"),), "loss/bend")
        if not np.array_equal(self.positive_weight, 1.0):
            more = builder.initializer("loss/more", np.subtract(self.positive_weight, 1.0), element_type)
            weight = builder.add("Add", (builder.add("Mul", (target, more), "loss/extra"), one), "loss/weight")
            bend = builder.add("Mul", (bend, weight), "loss/weighted")
        return builder.mean(builder.add("Add", (line, bend), "loss/each"), "loss")


@dataclass(frozen=True)
class KlDivergence:
    """How far the softmax of the scores is from the probabilities in the labels; the mean over examples.

    The labels are probabilities, of the type and shape of the output.
    """

    replaces = SOFTMAX

    def write(self, builder: GraphBuilder, predictions: Sequence[Prediction], fed: Fed, labels: str) -> str:
        """Adds the nodes: the sum of p (log p - log q), where 0 log 0 is 0."""
        prediction = single(predictions, self)
        dims, axis = class_axis(prediction)
        target, element_type = fed_like(builder, prediction, fed, labels), prediction.working_type
        order = _last(axis, len(dims))
        scores = _transposed(builder, prediction.working_value(builder), order, "loss/scores")
        target = _transposed(builder, target, order, "loss/probability")
        log_probability = builder.add("LogSoftmax", (scores,), "loss/log_probability", axis=len(dims) - 1)
        tiny = builder.initializer("loss/tiny", _TINY, element_type)
        logarithm = builder.add("Log", (builder.add("Max", (target, tiny), "loss/positive"),), "loss/log_target")
        difference = builder.add("Sub", (logarithm, log_probability), "loss/difference")
        each = builder.sum(builder.add("Mul", (target, difference), "loss/parts"), "loss/each", (len(dims) - 1,))
        return builder.mean(each, "loss")


class _Scores:
    """Class scores and the class numbers that they are compared with."""

    def __init__(self, builder: GraphBuilder, prediction: Prediction, fed: Fed, labels: str):
        self._builder, self._prediction = builder, prediction
        self._dims, self._axis = class_axis(prediction)
        if self._dims[self._axis] == 1:
            raise ModelError(
                f"A loss over classes needs one score for each class on axis {self._axis} of {prediction.output!r}, "
                f"but there is one score in all: the shape is {words(self._dims)}. Take loss='binary_cross_entropy' or "
                "'mean_squared_error', or another output."
            )
        shape = self._dims[: self._axis] + self._dims[self._axis + 1 :]
        self._labels = fed.input(labels, TensorProto.INT64, shape)

    def write_operator(self, op_type: str, weights: Sequence[float] | None, ignored: int | None) -> str:
        """Adds the operator of ONNX, which wants the classes on axis 1."""
        builder, prediction = self._builder, self._prediction
        order = (0, self._axis, *(other for other in range(1, len(self._dims)) if other != self._axis))
        scores = _transposed(builder, prediction.working_value(builder), order, "loss/scores")
        inputs = [scores, self._labels]
        if weights is not None:
            inputs.append(self._weights(weights))
        attributes = {} if ignored is None else {"ignore_index": ignored}
        return builder.add(op_type, inputs, "loss", name="loss", reduction="mean", **attributes)

    def with_classes_last(self) -> tuple[str, int]:
        """The scores with the classes on the last axis, and that axis."""
        scores, rank = self._prediction.working_value(self._builder), len(self._dims)
        return _transposed(self._builder, scores, _last(self._axis, rank), "loss/scores"), rank - 1

    def write_in_parts(
        self, log_probability: str, weights: Sequence[float] | None, ignored: int | None, smoothing: float
    ) -> str:
        """Adds elementary operators that take the mean of what the right classes have, from the classes last."""
        builder, axes = self._builder, (len(self._dims) - 1,)
        labels, counts = self._labels, None
        if ignored is not None:
            labels, counts = self._without_ignored(ignored)
        chosen = self._one_hot(labels, log_probability)
        if weights is not None:
            chosen = builder.add("Mul", (chosen, self._weights(weights)), "loss/weighted")
        picked = builder.sum(builder.add("Mul", (log_probability, chosen), "loss/parts"), "loss/picked", axes)
        if smoothing:
            picked = self._smoothed(picked, log_probability, weights, smoothing)
        if weights is None and counts is None:
            return builder.add("Neg", (builder.mean(picked, "loss/mean"),), "loss")
        shares = builder.sum(chosen, "loss/shares", axes)
        if counts is not None:
            shares = builder.add("Mul", (shares, counts), "loss/counted_shares")
            picked = builder.add("Mul", (picked, counts), "loss/counted")
        total = builder.add("Neg", (builder.sum(picked, "loss/sum"),), "loss/total")
        share = builder.sum(shares, "loss/share")
        # a batch of nothing but ignored labels has a loss of 0, and none that is not a number
        is_nothing = builder.add("Not", (builder.cast(share, TensorProto.BOOL, "loss/share/some"),), "loss/share/none")
        one = builder.cast(is_nothing, self._prediction.working_type, "loss/share/one")
        return builder.add("Div", (total, builder.add("Add", (share, one), "loss/share/safe")), "loss")

    def _smoothed(self, picked: str, log_probability: str, weights: Sequence[float] | None, smoothing: float) -> str:
        builder, element_type, classes = self._builder, self._prediction.working_type, self._dims[self._axis]
        if not isinstance(classes, int):
            raise UnsupportedError(
                f"label_smoothing needs a fixed number of classes, and axis {self._axis} of "
                f"{self._prediction.output!r} has none: the shape is {words(self._dims)}."
            )
        every = log_probability
        if weights is not None:
            every = builder.add("Mul", (every, self._weights(weights)), "loss/every_weighted")
        spread = builder.sum(every, "loss/every", (len(self._dims) - 1,))
        share = builder.initializer("loss/smoothing", smoothing / classes, element_type)
        rest = builder.initializer("loss/unsmoothed", 1.0 - smoothing, element_type)
        right = builder.add("Mul", (picked, rest), "loss/right")
        return builder.add("Add", (right, builder.add("Mul", (spread, share), "loss/spread")), "loss/smoothed")

    def _without_ignored(self, ignored: int) -> tuple[str, str]:
        """The labels with 0 in place of those that do not count, and 1 where one counts, else 0."""
        builder = self._builder
        index = builder.integers("loss/ignore_index", ignored)
        counts = builder.add("Not", (builder.add("Equal", (self._labels, index), "loss/ignored"),), "loss/counts")
        as_integer = builder.cast(counts, TensorProto.INT64, "loss/counts/integer")
        labels = builder.add("Mul", (self._labels, as_integer), "loss/counted_labels")
        return labels, builder.cast(counts, self._prediction.working_type, "loss/counts/float")

    def _weights(self, weights: Sequence[float]) -> str:
        classes = self._dims[self._axis]
        if isinstance(classes, int) and len(weights) != classes:
            raise ModelError(
                f"class_weights has {len(weights)} numbers, but {self._prediction.output!r} has {classes} classes."
            )
        return self._builder.initializer("loss/class_weights", np.asarray(weights), self._prediction.working_type)

    def _one_hot(self, labels: str, scores: str) -> str:
        builder, classes, rank = self._builder, self._dims[self._axis], len(self._dims)
        if builder.opset < 9:  # OneHot is younger
            if not isinstance(classes, int):
                raise UnsupportedError(
                    f"The number of classes of {self._prediction.output!r} is not fixed, and opset {builder.opset} has "
                    "no OneHot. Convert the model to opset 12 or newer (onnx.version_converter)."
                )
            rows = builder.initializer("loss/one_hot_rows", np.eye(classes), self._prediction.working_type)
            return builder.add("Gather", (rows, labels), "loss/one_hot", axis=0)
        values = builder.initializer("loss/off_and_on", (0, 1), self._prediction.working_type)
        if isinstance(classes, int):
            depth = builder.integers("loss/classes", classes)
        else:
            shape = builder.add("Shape", (scores,), "loss/shape")
            depth = builder.add("Gather", (shape, builder.integers("loss/last", rank - 1)), "loss/classes", axis=0)
        return builder.add("OneHot", (labels, depth, values), "loss/one_hot", axis=-1)


def class_axis(prediction: Prediction) -> tuple[Dimensions, int]:
    """The shape of a prediction, and which of its axes has one score for each class.

    Raises:
      ModelError: there is no such axis.
    """
    dims, axis = prediction.dims, prediction.class_axis
    if dims is None or len(dims) < 2:
        found = "its rank is unknown" if dims is None else f"its shape is {words(dims)}"
        raise ModelError(
            "A loss over classes, such as softmax_cross_entropy, needs an output with one row of class scores for each "
            f"example, but of {prediction.output!r} {found}. Choose another `output`, or loss='mean_squared_error'."
        )
    rank = len(dims)
    if axis is None:
        # images keep their classes next to the batch, sequences keep them last, and [N, C] is both
        axis = 1 if rank >= 4 else rank - 1
    if not -rank <= axis < rank or axis % rank == 0:
        raise ModelError(
            f"class_axis={axis} must be one of the axes 1 to {rank - 1} of {prediction.output!r}, "
            f"whose shape is {words(dims)}."
        )
    return dims, axis % rank


def _last(axis: int, rank: int) -> tuple[int, ...]:
    return (*(other for other in range(rank) if other != axis), axis)


def _transposed(builder: GraphBuilder, value: str, order: tuple[int, ...], output: str) -> str:
    if order == tuple(range(len(order))):
        return value
    return builder.add("Transpose", (value,), output, perm=list(order))
