"""Which tensors of a model are trained."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from onnxtrain.authoring.protos import FLOAT_TYPES, is_standard, reads, stored_tensors
from onnxtrain.authoring.roles import NOT_DIFFERENTIABLE, Role, is_statistic
from onnxtrain.authoring.selection import listed, select
from onnxtrain.authoring.survey import Use, find_uses
from onnxtrain.authoring.value_types import Types
from onnxtrain.errors import ModelError


@dataclass(frozen=True)
class Weight:
    """A tensor that is trained; `use` is None for one that only its name in `trainable` makes a weight."""

    name: str
    element_type: int
    dims: tuple[int, ...]
    use: Use | None

    @property
    def role(self) -> Role:
        return self.use.role if self.use else Role.OTHER


def choose_weights(
    model: onnx.ModelProto,
    types: Types,
    outputs: Collection[str],
    trainable: Sequence[str] | None = None,
    frozen: Sequence[str] | None = None,
) -> tuple[Weight, ...]:
    """The weights that influence `outputs`, in the order in which they are used, cut down by patterns (`selection.py`).

    A full name in `trainable` may also be that of a float tensor that is no weight by its place, such as a scalar.

    Raises:
      ModelError: a pattern matches nothing, or nothing is left to train.
    """
    stored = stored_tensors(model.graph)
    influential = influential_values(model.graph, outputs)
    weights = {
        name: Weight(name, stored[name].data_type, tuple(stored[name].dims), use)
        for name, use in find_uses(model, stored, types).items()
        if name in influential
    }
    statistics = running_statistics(model.graph)
    weights = {name: weight for name, weight in weights.items() if name not in statistics}
    if not weights and not trainable:
        raise _nothing_to_train(stored, outputs)
    named = {
        name: Weight(name, tensor.data_type, tuple(tensor.dims), None)
        for name, tensor in stored.items()
        if name in influential and name not in statistics and tensor.data_type in FLOAT_TYPES
    }
    chosen = weights if trainable is None else _select(trainable, weights, named)
    dropped = select(frozen or (), uses_of(weights), "frozen")
    kept = tuple(weight for name, weight in chosen.items() if name not in dropped)
    if not kept:
        raise ModelError(
            f"Every weight that influences {listed(outputs)} is frozen: {listed(chosen)}. Leave at least one to train."
        )
    return kept


def running_statistics(graph: onnx.GraphProto) -> set[str]:
    """The names of what every BatchNormalization reads as its running mean and variance."""
    return {name for node in graph.node for index, name in enumerate(node.input) if is_statistic(node, index)}


def influential_values(graph: onnx.GraphProto, outputs: Collection[str]) -> set[str]:
    """The values that a change of which can change one of `outputs` continuously."""
    found = set(outputs)
    for node in reversed(graph.node):
        if not found.isdisjoint(node.output) and not is_standard(node, *NOT_DIFFERENTIABLE):
            found.update(reads(node))
    return found


def _select(patterns: Sequence[str], weights: Mapping[str, Weight], named: Mapping[str, Weight]) -> dict[str, Weight]:
    exact = {pattern: named[pattern] for pattern in patterns if pattern in named and pattern not in weights}
    matched = select([pattern for pattern in patterns if pattern not in exact], uses_of(weights), "trainable")
    return {**{name: weight for name, weight in weights.items() if name in matched}, **exact}


def uses_of(weights: Mapping[str, Weight]) -> dict[str, Use]:
    """Where the weights are used; those that only a name makes a weight are left out."""
    return {name: weight.use for name, weight in weights.items() if weight.use is not None}


def _nothing_to_train(stored: Mapping[str, TensorProto], outputs: Collection[str]) -> ModelError:
    floats = [name for name, tensor in stored.items() if tensor.data_type in FLOAT_TYPES]
    found = f"its float tensors are {listed(floats)}, none of them used as a weight" if floats else "it has none"
    return ModelError(
        f"The model has nothing to train: {listed(outputs)} must depend on a float weight, but {found}. "
        "Trees are not trained; integers behind DequantizeLinear are with dequantize=True, and so is any float tensor "
        "that `trainable` names."
    )
