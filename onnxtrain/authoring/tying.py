"""Weights that were one tensor before an exporter stored them twice, as they are or transposed.

A language model often reads its embedding again, transposed, as its last layer. Exporters fold the Transpose, so that
the file holds two tensors, which training would move apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxtrain.authoring.protos import constant_tensor, replace_nodes, stored_tensors
from onnxtrain.authoring.rewrites import promote_constants
from onnxtrain.authoring.roles import Role
from onnxtrain.authoring.survey import Use, find_uses
from onnxtrain.authoring.value_types import Types

_TIED_ROLES = (Role.KERNEL, Role.EMBEDDING)


@dataclass(frozen=True)
class Tie:
    """A weight, and another with the same values.

    Attributes:
      weight: the name of the one that the model uses first.
      copy: the name of the other.
      transposed: whether it is the transpose of the first.
    """

    weight: str
    copy: str
    transposed: bool


def find_ties(model: onnx.ModelProto, types: Types) -> list[Tie]:
    """The kernels and embeddings with the values of an earlier one, in the order in which the model uses them."""
    stored = stored_tensors(model.graph)
    return _ties_between(stored, find_uses(model, stored, types))


def _ties_between(stored: Mapping[str, TensorProto], uses: Mapping[str, Use]) -> list[Tie]:
    first: dict[tuple[object, ...], str] = {}
    ties = []
    for name, use in uses.items():
        value = _value(stored[name], use)
        if value is None:
            continue
        plain, turned = _content(value), _content(value.T)
        if plain in first:
            ties.append(Tie(first[plain], name, transposed=False))
        elif value.ndim == 2 and turned in first:
            ties.append(Tie(first[turned], name, transposed=True))
        else:
            first[plain] = name
    return ties


def _value(tensor: TensorProto, use: Use) -> np.ndarray | None:
    """The values of a tensor that may be tied; None for vectors, and for constant ones that are equal by chance."""
    if use.role not in _TIED_ROLES or sum(size > 1 for size in tensor.dims) < 2:
        return None
    value = numpy_helper.to_array(tensor)
    return value if (value != value.flat[0]).any() else None


def _content(value: np.ndarray) -> tuple[object, ...]:
    return value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).digest()


def tie(model: onnx.ModelProto, ties: list[Tie]) -> None:
    """Replaces each copy by a Transpose or Identity of the weight; the model infers what it inferred."""
    graph = model.graph
    copies = {one.copy for one in ties}
    promote_constants(graph, {one.weight for one in ties})
    nodes = [
        helper.make_node("Transpose", [one.weight], [one.copy], f"{one.copy}/tied", perm=[1, 0])
        if one.transposed
        else helper.make_node("Identity", [one.weight], [one.copy], f"{one.copy}/tied")
        for one in ties
    ]
    for tensor in [tensor for tensor in graph.initializer if tensor.name in copies]:
        graph.initializer.remove(tensor)
    for value in [value for value in graph.input if value.name in copies]:
        graph.input.remove(value)
    kept = [node for node in graph.node if constant_tensor(node) is None or node.output[0] not in copies]
    replace_nodes(graph, [*nodes, *kept])
