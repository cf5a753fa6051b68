"""One operator, seen by the rules that follow the batch through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from onnxtrain.authoring.protos import Dimensions, attribute_value


@dataclass(frozen=True)
class Axis:
    """Where the batch lies: on this axis, of the batch size times `inner`, the examples one after another."""

    index: int
    inner: int = 1


@dataclass(frozen=True)
class Operand:
    """An input of a node: where the batch lies in it, its shape, and its value when it is a small constant."""

    axis: Axis | None
    dims: Dimensions | None
    value: np.ndarray | None

    @property
    def rank(self) -> int:
        if self.dims is None:
            raise ValueError("the rank of one of its inputs is unknown")
        return len(self.dims)


@dataclass(frozen=True)
class Operation:
    """A node with what is known of its inputs; `batch` is the size that its author fixed."""

    node: onnx.NodeProto
    opset: int
    batch: int
    inputs: Sequence[Operand]

    @property
    def data(self) -> Operand:
        return self.inputs[0]

    @property
    def axis(self) -> Axis:
        """Where the batch lies in the first input."""
        if self.data.axis is None:
            raise ValueError("the batch comes in through another input than the first")
        return self.data.axis

    def attribute(self, name: str, default: Any = None) -> Any:
        return attribute_value(self.node, name, default)

    def integers(self, name: str, index: int) -> list[int] | None:
        """A list of integers that is an attribute in old opsets and an input in new ones; None where left out."""
        found = attribute_value(self.node, name)
        if found is not None:
            return list(found)
        if index >= len(self.inputs) or not self.node.input[index]:
            return None
        value = self.inputs[index].value
        if value is None:
            raise ValueError(f"{name!r} is computed while the model runs")
        return value.reshape(-1).astype(np.int64).tolist()

    def others_are_constant(self) -> None:
        """Refuses a batch that comes in through another input than the first."""
        if any(operand.axis for operand in self.inputs[1:]):
            raise ValueError("the batch comes in through another input than the first")

    def not_along_batch(self, axes: Sequence[int]) -> None:
        """Refuses an operator that works along the axis of the batch."""
        if self.axis.index in {axis % self.data.rank for axis in axes}:
            raise ValueError(f"it works along axis {self.axis.index}, on which the batch lies")
