"""ONNX file or `ModelProto` to `Model`: all graphs, functions and tensors, read as the author wrote them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from onnxtrain import dtypes
from onnxtrain.errors import ModelError, ModelWarning, UnsupportedError
from onnxtrain.graph import tensors
from onnxtrain.graph.external_data import ExternalData
from onnxtrain.graph.model import (
    AttributeReference,
    AttributeValue,
    Binding,
    Function,
    FunctionKey,
    Graph,
    MapType,
    Model,
    Node,
    OptionalType,
    SequenceType,
    SparseTensor,
    TensorType,
    TrainingInfo,
    ValueInfo,
    ValueType,
)
from onnxtrain.graph.order import TRAINING_DOMAIN
from onnxtrain.schema import normalize_domain

OLDEST_IR_VERSION = 3
TRAINING_IR_VERSION = 7

MISTAKEN_DOMAINS = ("ai.onnx.preview", "ai.onnx.training")  # some exporters wrote these
_TRAINING_OPERATORS = ("Gradient", "Adam", "Adagrad", "Momentum")


def read_model(source: str | os.PathLike[str] | onnx.ModelProto) -> Model:
    """Reads a model from a file or from a `ModelProto`, which is copied and never changed.

    External data is loaded into the copy, so that the result depends on no other file.

    Raises:
      ModelError: the file is no ONNX model, or is broken.
      UnsupportedError: the file is of an IR version, or holds a type, that onnxtrain does not know.
    """
    proto, path = onnx.ModelProto(), None
    if isinstance(source, onnx.ModelProto):
        proto.CopyFrom(source)
    else:
        path = Path(source).absolute()
        try:
            proto.ParseFromString(path.read_bytes())
        except DecodeError as error:
            raise ModelError(f"{str(path)!r} is not an ONNX model, or is damaged: {error}.") from error
    reader = _Reader(proto, path)
    model = reader.model()
    for note in reader.notes:
        warnings.warn(note, ModelWarning, stacklevel=2)
    return model


# The field of AttributeProto that holds a value of each type.
_SINGLE_FIELDS = {
    "FLOAT": "f",
    "INT": "i",
    "STRING": "s",
    "TENSOR": "t",
    "GRAPH": "g",
    "SPARSE_TENSOR": "sparse_tensor",
    "TYPE_PROTO": "tp",
}
_LIST_FIELDS = {
    "FLOATS": "floats",
    "INTS": "ints",
    "STRINGS": "strings",
    "TENSORS": "tensors",
    "GRAPHS": "graphs",
    "SPARSE_TENSORS": "sparse_tensors",
    "TYPE_PROTOS": "type_protos",
}


class _Reader:
    """Turns the messages of one model into dataclasses. `place` says in errors where in the file a message stands."""

    def __init__(self, proto: onnx.ModelProto, path: Path | None):
        self.notes: dict[str, None] = {}  # what was read generously, each once, in order
        self._proto = proto
        self._name = "The given ModelProto" if path is None else repr(str(path))
        self._directory = None if path is None else str(path.parent)
        self._external = ExternalData(path)
        self._own_operators = {(_domain(function.domain), function.name) for function in proto.functions}

    def model(self) -> Model:
        self._check_version()
        proto = self._proto
        graph = self._graph(proto.graph, "graph")
        infos = tuple(self._training_info(info, index) for index, info in enumerate(proto.training_info))
        graphs = (graph, *(part for info in infos for part in (info.initialization, info.algorithm)))
        nodes = [node for one in graphs for node in one.nodes]
        return Model(
            ir_version=proto.ir_version,
            opset_imports=self._imports(_opset_imports(proto.opset_import, "the model"), nodes, "the model"),
            graph=graph,
            functions=self._functions(),
            training_info=infos,
            metadata={_text(entry.key): _text(entry.value) for entry in proto.metadata_props},
            proto=proto,
            directory=self._directory,
        )

    def _check_version(self) -> None:
        version = self._proto.ir_version
        if not version or not self._proto.HasField("graph"):
            missing = "graph" if version else "ir_version"
            raise ModelError(f"{self._name} is not an ONNX model: it has no {missing}.")
        if not OLDEST_IR_VERSION <= version <= onnx.IR_VERSION:
            remedy = "Update onnx." if version > onnx.IR_VERSION else "Convert the model with a newer exporter."
            raise UnsupportedError(
                f"{self._name} has IR version {version}. Known are {OLDEST_IR_VERSION} to {onnx.IR_VERSION}. {remedy}"
            )
        if self._proto.training_info and version < TRAINING_IR_VERSION:
            self._note(
                f"{self._name} has training_info, which needs IR version {TRAINING_IR_VERSION} or later, but says "
                f"{version}. It is read all the same, and will be saved as {TRAINING_IR_VERSION}."
            )

    def _note(self, message: str) -> None:
        self.notes[message] = None

    def _training_info(self, info: onnx.TrainingInfoProto, index: int) -> TrainingInfo:
        place = f"training_info[{index}]"
        return TrainingInfo(
            initialization=self._graph(info.initialization, f"{place}.initialization"),
            algorithm=self._graph(info.algorithm, f"{place}.algorithm"),
            initialization_binding=_binding(info.initialization_binding),
            update_binding=_binding(info.update_binding),
        )

    def _functions(self) -> dict[FunctionKey, Function]:
        functions: dict[FunctionKey, Function] = {}
        for function in map(self._function, self._proto.functions):
            if function.key in functions:
                raise ModelError(f"The model has two functions with the domain, name and overload {function.key}.")
            functions[function.key] = function
        return functions

    def _function(self, proto: onnx.FunctionProto) -> Function:
        place = f"function {_text(proto.name)!r}"
        required, defaults = _texts(proto.attribute), self._attributes(proto.attribute_proto, place, ())
        nodes = self._nodes(proto.node, place, (*required, *defaults))
        return Function(
            name=_text(proto.name),
            domain=_domain(proto.domain),
            overload=_text(proto.overload),
            inputs=_texts(proto.input),
            outputs=_texts(proto.output),
            attributes=required,
            defaults=defaults,
            nodes=nodes,
            opset_imports=self._imports(_opset_imports(proto.opset_import, place), nodes, place),
        )

    def _graph(self, proto: onnx.GraphProto, place: str, declared: tuple[str, ...] = ()) -> Graph:
        sparse = {_text(one.values.name): _dense(self._sparse(one, place), place) for one in proto.sparse_initializer}
        dense = {_text(one.name): self._tensor(one, f"an initializer of {place}") for one in proto.initializer}
        return Graph(
            name=_text(proto.name),
            inputs=_value_infos(proto.input, place),
            outputs=_value_infos(proto.output, place),
            nodes=self._nodes(proto.node, place, declared),
            initializers={**dense, **sparse},
            sparse=frozenset(sparse),
            value_info=_value_infos(proto.value_info, place),
        )

    def _nodes(self, protos: Iterable[onnx.NodeProto], place: str, declared: tuple[str, ...]) -> tuple[Node, ...]:
        return tuple(self._node(proto, place, declared) for proto in protos)

    def _node(self, proto: onnx.NodeProto, place: str, declared: tuple[str, ...]) -> Node:
        op_type, name = _text(proto.op_type), _text(proto.name)
        domain = self._corrected_domain(_domain(proto.domain), op_type)
        label = f"{op_type} {name!r}" if name else op_type
        return Node(
            op_type=op_type,
            domain=domain,
            name=name,
            inputs=_texts(proto.input),
            outputs=_texts(proto.output),
            attributes=self._attributes(proto.attribute, f"{label} in {place}", declared),
            overload=_text(proto.overload),
        )

    def _corrected_domain(self, domain: str, op_type: str) -> str:
        mistaken = domain in MISTAKEN_DOMAINS and op_type in _TRAINING_OPERATORS
        if not mistaken or (domain, op_type) in self._own_operators:
            return domain
        self._note(f"{op_type} stands in the domain {domain!r}. It is read as {op_type} of {TRAINING_DOMAIN!r}.")
        return TRAINING_DOMAIN

    def _imports(self, imports: dict[str, int], nodes: Iterable[Node], place: str) -> dict[str, int]:
        """The imports, with the training operators' domain at version 1 where nodes use it and the file forgot it."""
        used = any(node.domain == TRAINING_DOMAIN for node in with_subgraphs(nodes))
        if not used or TRAINING_DOMAIN in imports:
            return imports
        self._note(f"Operators of {TRAINING_DOMAIN!r} are used, but {place} does not import it. Version 1 is assumed.")
        return {**imports, TRAINING_DOMAIN: 1}

    def _attributes(
        self, protos: Iterable[onnx.AttributeProto], place: str, declared: tuple[str, ...]
    ) -> dict[str, AttributeValue]:
        pairs = ((_text(proto.name), self._attribute(proto, place, declared)) for proto in protos)
        return _unique(pairs, f"attributes of {place}")

    def _attribute(self, proto: onnx.AttributeProto, place: str, declared: tuple[str, ...]) -> AttributeValue:
        """`declared` are the attributes of the function around, if any."""
        name = _text(proto.name)
        if proto.ref_attr_name:
            return AttributeReference(_text(proto.ref_attr_name))
        where = f"attribute {name!r} of {place}"
        read: dict[str, Callable[..., AttributeValue]] = {
            "FLOAT": float,
            "INT": int,
            "STRING": tensors.decoded,
            "TENSOR": lambda one: self._tensor(one, where),
            "GRAPH": lambda one: self._subgraph(one, where, declared),
            "SPARSE_TENSOR": lambda one: self._sparse(one, where),
            "TYPE_PROTO": lambda one: _value_type(one, where),
        }
        kind = onnx.AttributeProto.AttributeType.Name(proto.type)
        if kind in _SINGLE_FIELDS:
            field = _SINGLE_FIELDS[kind]
            if name in declared and not proto.HasField(field):  # a reference that some tools wrote without its name
                return AttributeReference(name)
            return read[kind](getattr(proto, field))
        if kind in _LIST_FIELDS:
            return tuple(map(read[kind.removesuffix("S")], getattr(proto, _LIST_FIELDS[kind])))
        raise ModelError(f"The {where} says no type. Export the model again with a newer exporter.")

    def _subgraph(self, proto: onnx.GraphProto, place: str, declared: tuple[str, ...]) -> Graph:
        names = [one.name for one in proto.initializer] + [one.values.name for one in proto.sparse_initializer]
        _unique(((name, None) for name in names), f"initializers of the {place}")
        return self._graph(proto, place, declared)

    def _tensor(self, proto: onnx.TensorProto, place: str) -> np.ndarray:
        try:
            if proto.data_location == onnx.TensorProto.EXTERNAL:
                proto.raw_data = self._external.read(proto)
                proto.ClearField("data_location")
                proto.ClearField("external_data")
            return tensors.to_array(proto)
        except (ModelError, UnsupportedError) as error:
            raise type(error)(f"{error} It is {place}.") from error.__cause__

    def _sparse(self, proto: onnx.SparseTensorProto, place: str) -> SparseTensor:
        label = f"sparse tensor {_text(proto.values.name)!r} of {place}"
        values, indices = self._tensor(proto.values, label), self._tensor(proto.indices, label)
        shape = tuple(proto.dims)
        _check_sparse(values, indices, shape, label)
        return SparseTensor(values, indices, shape)


def _check_sparse(values: np.ndarray, indices: np.ndarray, shape: tuple[int, ...], label: str) -> None:
    count = len(values) if values.ndim == 1 else -1
    if indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(shape))):
        raise ModelError(
            f"The {label} has values of shape {list(values.shape)} and {indices.dtype} indices of shape "
            f"{list(indices.shape)}. Needed are [NNZ] values, and int64 indices of shape [NNZ] or [NNZ, {len(shape)}]."
        )
    bounds = np.prod(np.array(shape, object)) if indices.ndim == 1 else np.array(shape, np.int64)
    if min(shape, default=0) < 0 or np.any(indices < 0) or np.any(indices >= bounds):
        raise ModelError(f"The {label} has an index outside its shape {list(shape)}.")


def _dense(sparse: SparseTensor, place: str) -> np.ndarray:
    try:
        return sparse.to_dense()
    except (MemoryError, ValueError) as error:  # numpy's ValueError: more elements than an index can count
        raise ModelError(f"A sparse initializer of {place} cannot become dense. {error}") from error


def _value_infos(protos: Iterable[onnx.ValueInfoProto], place: str) -> tuple[ValueInfo, ...]:
    return tuple(
        ValueInfo(_text(proto.name), _value_type(proto.type, f"value {proto.name!r} of {place}")) for proto in protos
    )


def _value_type(proto: onnx.TypeProto, place: str) -> ValueType | None:
    """The declared type, or None where the file leaves it open."""
    match proto.WhichOneof("value"):
        case "tensor_type":
            return _tensor_type(proto.tensor_type, place, sparse=False)
        case "sparse_tensor_type":
            return _tensor_type(proto.sparse_tensor_type, place, sparse=True)
        case "sequence_type":
            return SequenceType(_value_type(proto.sequence_type.elem_type, place))
        case "optional_type":
            return OptionalType(_value_type(proto.optional_type.elem_type, place))
        case "map_type":
            return MapType(_dtype(proto.map_type.key_type, place), _value_type(proto.map_type.value_type, place))
        case "opaque_type":
            raise UnsupportedError(f"The {place} has an opaque type, which onnxtrain cannot hold.")
    return None


def _tensor_type(
    proto: onnx.TypeProto.Tensor | onnx.TypeProto.SparseTensor, place: str, *, sparse: bool
) -> TensorType | None:
    if not proto.elem_type:
        return None
    shape = tuple(map(_dimension, proto.shape.dim)) if proto.HasField("shape") else None
    return TensorType(_dtype(proto.elem_type, place), shape, sparse)


def _dtype(code: int, place: str) -> np.dtype:
    try:
        return dtypes.from_code(code).dtype
    except UnsupportedError as error:
        raise UnsupportedError(f"The {place}: {error}") from None


def _dimension(proto: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if proto.WhichOneof("value") == "dim_value":
        return proto.dim_value if proto.dim_value >= 0 else None  # old exporters wrote -1 for a free dimension
    return _text(proto.dim_param) or None


def _binding(entries: Iterable[onnx.StringStringEntryProto]) -> Binding:
    return tuple((_text(entry.key), _text(entry.value)) for entry in entries)


def _opset_imports(entries: Iterable[onnx.OperatorSetIdProto], place: str) -> dict[str, int]:
    imports: dict[str, int] = {}
    for entry in entries:
        domain = _domain(entry.domain)
        if imports.setdefault(domain, entry.version) != entry.version:
            raise ModelError(
                f"{place.capitalize()} imports the domain {domain or 'ai.onnx'} in two versions: "
                f"{imports[domain]} and {entry.version}."
            )
    return imports


def with_subgraphs(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes and those of their subgraphs at any depth."""
    for node in nodes:
        yield node
        for graph in node.subgraphs:
            yield from with_subgraphs(graph.nodes)


def _unique(pairs: Iterable[tuple[str, AttributeValue]], what: str) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {}
    for name, value in pairs:
        if name in found:
            raise ModelError(f"The name {name!r} stands twice among the {what}. Names must be unique there.")
        found[name] = value
    return found


def _domain(domain: str) -> str:
    return normalize_domain(_text(domain))


def _texts(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(_text, names))


def _text(name: str) -> str:
    """A name as it stands; protobuf hands out `bytes` where a file breaks the rule that text is UTF-8."""
    if isinstance(name, bytes):
        raise ModelError(f"The model has a name that is no UTF-8: {name!r}.")
    return name
