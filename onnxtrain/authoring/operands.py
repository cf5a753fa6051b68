"""Where the operand of a node comes from: a stored tensor, as it is or turned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from onnxtrain.authoring.protos import attribute_value, is_standard, reads, stored_tensors


@dataclass(frozen=True)
class Operand:
    """A stored tensor as a node reads it.

    Attributes:
      tensor: its name.
      axes: for each axis of the operand, the axis of the stored tensor that it is.
      names: of the values on the way, from the stored tensor to the operand itself.
    """

    tensor: str
    axes: tuple[int, ...]
    names: tuple[str, ...]


class Operands:
    """Finds the stored tensors behind the operands of a graph's nodes."""

    def __init__(self, graph: onnx.GraphProto):
        self.stored: Mapping[str, TensorProto] = stored_tensors(graph)
        self._producers = {name: node for node in graph.node for name in node.output}
        self._constants = set(self.stored)
        for node in graph.node:
            if node.input and reads(node) <= self._constants:
                self._constants.update(node.output)
        self._read_counts = Counter(name for node in graph.node for name in (*node.input, *_captured(node)))
        self._read_counts.update(value.name for value in graph.output)

    def find(self, name: str) -> Operand | None:
        """The stored tensor that a value is, through Identity and Transpose; None where it is anything else."""
        if name in self.stored:
            return Operand(name, tuple(range(len(self.stored[name].dims))), (name,))
        node = self._producers.get(name)
        if node is None or not is_standard(node, "Identity", "Transpose"):
            return None
        source = self.find(node.input[0])
        if source is None:
            return None
        order = range(len(source.axes))
        turned = order if node.op_type == "Identity" else attribute_value(node, "perm", order[::-1])
        return Operand(source.tensor, tuple(source.axes[axis] for axis in turned), (*source.names, name))

    def is_constant(self, name: str) -> bool:
        """Whether a value is stored, or computed from nothing but stored tensors."""
        return name in self._constants

    def has_other_readers(self, operand: Operand) -> bool:
        """Whether the stored tensor, in any form on the way, is read by more than the next node on the way."""
        return any(self.count(name) > 1 for name in operand.names)

    def count(self, name: str) -> int:
        """How often a value is read, by nodes, by their subgraphs and as an output."""
        return self._read_counts[name]


def _captured(node: onnx.NodeProto) -> set[str]:
    """What only the subgraphs of a node read."""
    return reads(node) - set(node.input)
