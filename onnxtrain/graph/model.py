"""The model as frozen dataclasses: what onnxtrain knows of an ONNX file once it is read.

Tensors are numpy arrays (`numpy.ndarray` with dtype `object` for strings), names are opaque strings, and
an empty name stands for an absent optional input or output, as in ONNX.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxtrain import limits
from onnxtrain.errors import ModelError

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class TensorType:
    """A dense or sparse tensor: `shape` is None when the rank is unknown; a dimension is a size, a symbol, or None."""

    dtype: np.dtype
    shape: tuple[int | str | None, ...] | None
    sparse: bool = False


@dataclass(frozen=True)
class SequenceType:
    """A sequence of values of one type."""

    element: ValueType | None


@dataclass(frozen=True)
class OptionalType:
    """A value that may be absent."""

    element: ValueType | None


@dataclass(frozen=True)
class MapType:
    """A map from integers or strings to values of one type."""

    key: np.dtype
    value: ValueType | None


ValueType = TensorType | SequenceType | OptionalType | MapType


@dataclass(frozen=True)
class ValueInfo:
    """A named value with its declared type; None when the file does not say."""

    name: str
    type: ValueType | None


@dataclass(frozen=True)
class AttributeReference:
    """An attribute inside a function body that takes the value of the calling node's attribute `name`."""

    name: str


@dataclass(frozen=True)
class SparseTensor:
    """A sparse constant: `values` [NNZ], `indices` [NNZ, rank] or linearised [NNZ], and the dense `shape`."""

    values: np.ndarray
    indices: np.ndarray
    shape: tuple[int, ...]

    def to_dense(self) -> np.ndarray:
        """The same tensor with its zeros written out."""
        if excess := limits.current().excess(self.shape):
            raise ModelError(excess)
        dense = np.zeros(self.shape, self.values.dtype)
        if self.indices.ndim == 1:
            dense.reshape(-1)[self.indices] = self.values
        else:
            dense[tuple(self.indices.T)] = self.values
        return dense


# float, int, str (decoded), np.ndarray (a tensor), SparseTensor, Graph, ValueType, a tuple of any of these,
# or an AttributeReference
AttributeValue = Any


@dataclass(frozen=True)
class Node:
    """One application of an operator or of a model-local function; `domain` is "" for ai.onnx."""

    op_type: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    overload: str = ""

    @property
    def subgraphs(self) -> tuple[Graph, ...]:
        """The graphs among the attributes, such as the branches of If."""
        found: list[Graph] = []
        for value in self.attributes.values():
            found.extend(item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, Graph))
        return tuple(found)


@dataclass(frozen=True)
class Graph:
    """A graph: of the model, of a training method, or an attribute of a node.

    `initializers` holds dense values, those of `sparse_initializer` included (named in `sparse` too).
    """

    name: str
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    nodes: tuple[Node, ...]
    initializers: Mapping[str, np.ndarray] = field(default_factory=dict)
    sparse: frozenset[str] = frozenset()
    value_info: tuple[ValueInfo, ...] = ()

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.outputs)


FunctionKey = tuple[str, str, str]  # domain, name, overload


@dataclass(frozen=True)
class Function:
    """A model-local function; `attributes` are the required names, `defaults` those with a value of their own."""

    name: str
    domain: str
    overload: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[str, ...]
    defaults: Mapping[str, AttributeValue]
    nodes: tuple[Node, ...]
    opset_imports: Mapping[str, int]

    @property
    def key(self) -> FunctionKey:
        return (self.domain, self.name, self.overload)


Binding = tuple[tuple[str, str], ...]  # (initializer, output) pairs in file order; keys may repeat in a broken file


@dataclass(frozen=True)
class TrainingInfo:
    """One `TrainingInfoProto`: two graphs and the initializers that their outputs assign."""

    initialization: Graph
    algorithm: Graph
    initialization_binding: Binding
    update_binding: Binding


@dataclass(frozen=True)
class Model:
    """A model as it stands in its file.

    `proto` is the private copy that writing starts from, so that whatever these dataclasses do not know survives.
    `directory` is the folder that external data is relative to, or None for a model that came from memory.
    """

    ir_version: int
    opset_imports: Mapping[str, int]
    graph: Graph
    functions: Mapping[FunctionKey, Function]
    training_info: tuple[TrainingInfo, ...]
    metadata: Mapping[str, str]
    proto: onnx.ModelProto = field(repr=False, compare=False)
    directory: str | None = None

    def find_initializer(self, name: str) -> np.ndarray | None:
        """The stored value of an initializer of the inference graph or, failing that, of any algorithm."""
        graphs = (self.graph, *(info.algorithm for info in self.training_info))
        return next((graph.initializers[name] for graph in graphs if name in graph.initializers), None)

    @property
    def state_variables(self) -> tuple[str, ...]:
        """Names of the state variables (T-02): every key of a binding, in order of first appearance."""
        keys: dict[str, None] = {}
        for info in self.training_info:
            keys.update(dict.fromkeys(key for key, _ in (*info.initialization_binding, *info.update_binding)))
        return tuple(keys)
