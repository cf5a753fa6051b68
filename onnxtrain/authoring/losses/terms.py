"""Several losses with weights, over any outputs of a model, and the one number that they add up to."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.losses.rule import Fed, Loss, Prediction
from onnxtrain.errors import ModelError

# A name or a file, a loss with its options, a model as a loss, a JAX function as one, or several losses that add up.
LossLike: TypeAlias = "str | os.PathLike[str] | Loss | onnx.ModelProto | Callable[..., Any] | Sequence[Term]"


@dataclass(frozen=True)
class Term:
    """A loss over some outputs, and how much it counts.

    Attributes:
      loss: as that of `make_trainable`, for a single one.
      outputs: the outputs that it looks at; None for the model's only float output.
      weight: what it is multiplied by before terms are added.
      labels: the name of the input with its labels.
    """

    loss: str | os.PathLike[str] | Loss | onnx.ModelProto | Callable[..., Any] = "softmax_cross_entropy"
    outputs: str | Sequence[str] | None = None
    weight: float = 1.0
    labels: str = "labels"


@dataclass(frozen=True)
class WrittenLoss:
    """The loss of a step.

    Attributes:
      value: its name; a scalar.
      element_type: its element type.
      inputs: what a step is fed for it, beside the model's inputs.
    """

    value: str
    element_type: int
    inputs: tuple[onnx.ValueInfoProto, ...]


def write_terms(
    builder: GraphBuilder, terms: Sequence[tuple[Term, Loss]], predictions: Sequence[Sequence[Prediction]]
) -> WrittenLoss:
    """Adds the nodes of all terms and of their sum; a step also gives each of several terms, before its weight."""
    fed = Fed(builder)
    element_type = max(one.working_type for group in predictions for one in group)  # DOUBLE is after FLOAT
    if len(terms) == 1 and terms[0][0].weight == 1.0:
        (term, loss), (group,) = terms[0], predictions
        return WrittenLoss(loss.write(builder, group, fed, term.labels), element_type, tuple(fed.inputs.values()))
    total = builder.names.fresh("loss")
    shares = []
    for (term, loss), group in zip(terms, predictions, strict=True):
        value = loss.write(builder, group, fed, term.labels)
        if group[0].working_type != element_type:
            value = builder.cast(value, element_type, f"{value}/cast")
        if len(terms) > 1:
            value = builder.add("Identity", (value,), f"loss/{'_'.join(one.output for one in group)}")
            builder.declare_output(value, element_type, ())
        weight = builder.initializer(f"{value}/weight", term.weight, element_type)
        shares.append(builder.add("Mul", (value, weight), f"{value}/share"))
    builder.nodes.append(onnx.helper.make_node("Sum", shares, [total], builder.names.fresh_node("loss")))
    return WrittenLoss(total, element_type, tuple(fed.inputs.values()))


def as_terms(loss: LossLike, output: str | None) -> tuple[Term, ...]:
    """The terms that are asked for: one, for a single loss.

    Raises:
      ModelError: there is none, or terms name their outputs and so does `output`.
    """
    if isinstance(loss, str) or not isinstance(loss, Sequence):
        return (Term(loss, output),)
    if not loss:
        raise ModelError("loss=[] has no term, and nothing to minimize.")
    if output is not None:
        raise ModelError(f"output={output!r} is for a single loss; each Term has `outputs` of its own.")
    return tuple(loss)
