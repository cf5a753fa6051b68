"""One node of ONNX beside the function of PyTorch that means the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxtrain import schema
from onnxtrain.graph.model import Node
from tests.lowering.gradient_cases import GradientCase

NEWEST = schema.NEWEST_TESTED[""]
INFINITY = np.inf


@dataclass(frozen=True)
class TorchCase:
    """A node and its twin, fed random floats of these shapes or the arrays that stand in their place.

    The twin takes the node's inputs as tensors, None for an absent one, and gives as many outputs as the node names.
    `constants` are the positions of the inputs that PyTorch has no gradient for.
    """

    op_type: str
    twin: Callable[..., Any]
    inputs: Sequence[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = NEWEST
    domain: str = ""
    constants: tuple[int, ...] = ()
    rtol: float = 1e-9

    @property
    def name(self) -> str:
        return " ".join((self.op_type, *(f"{key}={value}" for key, value in self.attributes.items())))

    def gradient_case(self) -> GradientCase:
        """The node with its values."""
        random = np.random.default_rng(len(self.inputs))
        values = tuple(random.standard_normal(item) if isinstance(item, tuple) else item for item in self.inputs)
        names = tuple("" if value is None else f"input{i}" for i, value in enumerate(values))
        outputs = tuple(f"output{i}" for i in range(self.outputs))
        node = Node(self.op_type, self.domain, "", names, outputs, self.attributes)
        return GradientCase(self.name, node, {self.domain: self.opset}, values)


def whole(*numbers: Any) -> np.ndarray:
    """Integers, such as axes and indices."""
    return np.array(numbers, np.int64)


def real(*numbers: Any) -> np.ndarray:
    """Floats at which something may break."""
    return np.array(numbers, np.float64)
