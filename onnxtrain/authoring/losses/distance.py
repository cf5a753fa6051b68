"""Losses that measure how far numbers or vectors are apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.losses.rule import Fed, Prediction, fed_like, single
from onnxtrain.errors import ModelError


@dataclass(frozen=True)
class MeanSquaredError:
    """The mean of the squared differences; the labels have the type and shape of the output."""

    replaces = ()

    def write(self, builder: GraphBuilder, predictions: Sequence[Prediction], fed: Fed, labels: str) -> str:
        """Adds the nodes."""
        difference = _difference(builder, single(predictions, self), fed, labels)
        return builder.mean(builder.add("Mul", (difference, difference), "loss/squared"), "loss")


@dataclass(frozen=True)
class MeanAbsoluteError:
    """The mean of the absolute differences; the labels have the type and shape of the output."""

    replaces = ()

    def write(self, builder: GraphBuilder, predictions: Sequence[Prediction], fed: Fed, labels: str) -> str:
        """Adds the nodes."""
        difference = _difference(builder, single(predictions, self), fed, labels)
        return builder.mean(builder.add("Abs", (difference,), "loss/absolute"), "loss")


@dataclass(frozen=True)
class Huber:
    """Half the square of small differences, and a straight line for large ones, on the mean.

    The labels have the type and shape of the output.

    Attributes:
      delta: where the line begins.
    """

    delta: float = 1.0

    replaces = ()

    def write(self, builder: GraphBuilder, predictions: Sequence[Prediction], fed: Fed, labels: str) -> str:
        """Adds the nodes: q² / 2 + delta (a - q), with a the absolute difference and q the smaller of a and delta."""
        prediction = single(predictions, self)
        element_type = prediction.working_type
        absolute = builder.add("Abs", (_difference(builder, prediction, fed, labels),), "loss/absolute")
        delta = builder.initializer("loss/delta", self.delta, element_type)
        small = builder.add("Min", (absolute, delta), "loss/small")
        half = builder.initializer("loss/half", 0.5, element_type)
        square = builder.add("Mul", (builder.add("Mul", (small, small), "loss/squared"), half), "loss/parabola")
        rest = builder.add("Sub", (absolute, small), "loss/rest")
        each = builder.add("Add", (square, builder.add("Mul", (rest, delta), "loss/line")), "loss/each")
        return builder.mean(each, "loss")


@dataclass(frozen=True)
class Cosine:
    """One minus the cosine of the angle between vectors, along the last axis, on the mean.

    The labels have the type and shape of the output. Vectors shorter than 1e-8 count as that long.
    """

    replaces = ()

    def write(self, builder: GraphBuilder, predictions: Sequence[Prediction], fed: Fed, labels: str) -> str:
        """Adds the nodes."""
        prediction = single(predictions, self)
        axis = len(prediction.known_dims()) - 1
        value, target = prediction.working_value(builder), fed_like(builder, prediction, fed, labels)
        shortest = builder.initializer("loss/shortest", 1e-8, prediction.working_type)
        lengths = [
            builder.add(
                "Max", (builder.reduce("ReduceL2", name, f"loss/{word}", (axis,)), shortest), f"loss/{word}/safe"
            )
            for name, word in ((value, "length"), (target, "label_length"))
        ]
        product = builder.sum(builder.add("Mul", (value, target), "loss/products"), "loss/product", (axis,))
        cosine = builder.add("Div", (product, builder.add("Mul", lengths, "loss/lengths")), "loss/cosine")
        one = builder.initializer("loss/one", 1.0, prediction.working_type)
        return builder.mean(builder.add("Sub", (one, cosine), "loss/each"), "loss")


@dataclass(frozen=True)
class Triplet:
    """How much nearer an example should be to its like than to its unlike, on the mean; there are no labels.

    It looks at three outputs: anchors, positives and negatives. With one output, the batch holds first the anchors,
    then as many positives, then as many negatives.

    Attributes:
      margin: the difference of distances that is enough.
    """

    margin: float = 1.0

    replaces = ()

    def write(self, builder: GraphBuilder, predictions: Sequence[Prediction], fed: Fed, labels: str) -> str:
        """Adds the nodes."""
        del fed, labels
        if len(predictions) not in (1, 3):
            raise ModelError(
                f"Triplet looks at three outputs, anchors, positives and negatives, or at one; not {len(predictions)}."
            )
        prediction = predictions[0]
        axis, element_type = len(prediction.known_dims()) - 1, prediction.working_type
        anchor, positive, negative = self._parts(builder, predictions)
        near = _distance(builder, anchor, positive, "loss/near", axis, element_type)
        far = _distance(builder, anchor, negative, "loss/far", axis, element_type)
        margin = builder.initializer("loss/margin", self.margin, element_type)
        closer = builder.add("Sub", (near, far), "loss/closer")
        lack = builder.add("Add", (closer, margin), "loss/lack")
        return builder.mean(_at_least_zero(builder, lack, element_type), "loss")

    def _parts(self, builder: GraphBuilder, predictions: Sequence[Prediction]) -> tuple[str, ...]:
        if len(predictions) == 3:
            return tuple(prediction.working_value(builder) for prediction in predictions)
        outputs = ("loss/anchor", "loss/positive", "loss/negative")
        attributes: dict[str, Any] = {"num_outputs": 3} if builder.opset >= 18 else {}
        value = predictions[0].working_value(builder)
        return builder.add_node("Split", (value,), outputs, axis=0, **attributes)


def _at_least_zero(builder: GraphBuilder, value: str, element_type: int) -> str:
    """By a Clip, whose gradient on its bound is 1, as that of PyTorch's loss is."""
    if builder.opset < 11:
        return builder.add("Clip", (value,), "loss/each", min=0.0)
    return builder.add("Clip", (value, builder.initializer("loss/zero", 0.0, element_type)), "loss/each")


def _difference(builder: GraphBuilder, prediction: Prediction, fed: Fed, labels: str) -> str:
    target = fed_like(builder, prediction, fed, labels)
    return builder.add("Sub", (prediction.working_value(builder), target), "loss/difference")


def _distance(builder: GraphBuilder, one: str, other: str, output: str, axis: int, element_type: int) -> str:
    # PyTorch moves the difference by 1e-6, so that its length has a gradient
    moved = builder.initializer(f"{output}/moved", 1e-6, element_type)
    difference = builder.add("Sub", (one, other), f"{output}/difference")
    return builder.reduce("ReduceL2", builder.add("Add", (difference, moved), f"{output}/apart"), output, (axis,))
