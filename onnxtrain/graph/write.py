"""`Model` and values to `ModelProto`, and `ModelProto` to file, with nothing lost if the machine stops halfway."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import stat
import warnings
from collections.abc import Callable, Container, Iterable, Mapping, MutableSequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
from google.protobuf.message import EncodeError

from onnxtrain.errors import ModelError, ModelWarning, StateError
from onnxtrain.graph import external_data, tensors
from onnxtrain.graph.model import FunctionKey, Model, Node
from onnxtrain.graph.order import TRAINING_DOMAIN
from onnxtrain.graph.read import MISTAKEN_DOMAINS, TRAINING_IR_VERSION, with_subgraphs

METADATA_PREFIX = "onnxtrain."
# which state variable holds the moving average of which weight, as JSON
AVERAGES_KEY = f"{METADATA_PREFIX}averages"
# how the training information was written, as JSON
RECIPE_KEY = f"{METADATA_PREFIX}recipe"
# which BatchNormalizations were put in, and are folded for inference, by the names of their nodes, as JSON
NORMALIZED_KEY = f"{METADATA_PREFIX}normalized"
# which initializers were Constant nodes and become such again for inference, with the names of the nodes, as JSON
CONSTANTS_KEY = f"{METADATA_PREFIX}constants"

_PROTOBUF_LIMIT = 2**31 - 1  # bytes that protobuf accepts in one message

Entry = TypeVar("Entry")


def with_values(model: Model, values: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> onnx.ModelProto:
    """A copy of the model's file with other values in its initializers (M-08).

    Each value goes into every initializer of its name, in the inference graph and in the algorithms, in the same
    element type and encoding; a sparse one becomes dense. Entries of `metadata` are set, the others stay.

    Raises:
      StateError: no initializer has the name, or the value differs from it in shape or element type.
    """
    proto = _copy(model)
    _assign(values, [proto.graph, *(info.algorithm for info in proto.training_info)])
    _set_metadata(proto, metadata)
    if proto.training_info:
        proto.ir_version = max(proto.ir_version, TRAINING_IR_VERSION)  # T-19
    return proto


def inference_only(model: Model, values: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """A copy of the model's file without training information, with other values in its initializers.

    What only the training information needs goes with it: functions that nothing else calls, the import of the
    training operators' domain, and the metadata that onnxtrain wrote. Values that only algorithms hold are left out.
    Initializers that `CONSTANTS_KEY` of the metadata names become the Constant nodes that they were.

    Raises:
      StateError: no initializer has the name, or the value differs from it in shape or element type.
    """
    unknown = [name for name in values if model.find_initializer(name) is None]
    if unknown:
        raise _no_initializer(unknown[0])
    proto = _copy(model)
    del proto.training_info[:]
    _assign({name: value for name, value in values.items() if name in model.graph.initializers}, [proto.graph])
    _restore_constants(proto.graph, json.loads(model.metadata.get(CONSTANTS_KEY, "{}")))
    _remove(proto.metadata_props, lambda entry: entry.key.startswith(METADATA_PREFIX))
    _drop_training_parts(proto, model)
    return proto


def save_proto(proto: onnx.ModelProto, path: str | os.PathLike[str], *, limit: int = _PROTOBUF_LIMIT) -> None:
    """Writes a model so that at every moment `path` holds either what it held before or the whole new model.

    A model of more than `limit` bytes has its large tensors written to `<name>.<token>.data` beside it. Such a file
    belongs to the model at `path`, and is removed when that model is replaced.

    Raises:
      ModelError: the model is too large even so, or refers to external data that was not loaded.
    """
    target = Path(path).absolute()
    external_data.refuse_unloaded(proto)
    content, data = _serialized(proto, limit), None
    superseded = external_data.owned_files(target)
    try:
        if content is None:
            proto, data = external_data.move_out(proto, target)
            content = _serialized(proto, limit)
        if content is None:
            raise ModelError(f"{str(target)!r} cannot be written: protobuf takes no more than {limit} bytes.")
        _replace(target, content)
    except BaseException:
        if data is not None and data not in external_data.owned_files(target):
            data.unlink()
        raise
    external_data.sync_folder(target.parent)
    for file in superseded:
        file.unlink(missing_ok=True)


def _copy(model: Model) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    return proto


def _assign(values: Mapping[str, np.ndarray], graphs: Iterable[onnx.GraphProto]) -> None:
    missing = dict(values)
    for graph in graphs:
        _make_dense(graph, values)
        for tensor in graph.initializer:
            if tensor.name in values:
                tensors.store(tensor, values[tensor.name])
                missing.pop(tensor.name, None)
    if missing:
        raise _no_initializer(next(iter(missing)))


def _restore_constants(graph: onnx.GraphProto, node_names: Mapping[str, str]) -> None:
    """Turns initializers into Constant nodes of these names, which stand before all others."""
    nodes = []
    for tensor in [tensor for tensor in graph.initializer if tensor.name in node_names]:
        node = onnx.NodeProto(op_type="Constant", name=node_names[tensor.name], output=[tensor.name])
        node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(tensor)
        nodes.append(node)
        graph.initializer.remove(tensor)
    nodes += [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def _make_dense(graph: onnx.GraphProto, names: Container[str]) -> None:
    """Replaces sparse initializers of these names by dense ones, whose values are still to be stored (T-18)."""
    for sparse in graph.sparse_initializer:
        values = sparse.values
        if values.name in names:
            warnings.warn(
                f"The sparse initializer {values.name!r} of graph {graph.name!r} is a state variable, and is written "
                "as a dense one.",
                ModelWarning,
                stacklevel=4,
            )
            graph.initializer.add(
                name=values.name,
                data_type=values.data_type,
                dims=sparse.dims,
                doc_string=values.doc_string or None,
                metadata_props=values.metadata_props,
            )
    _remove(graph.sparse_initializer, lambda sparse: sparse.values.name in names)


def _no_initializer(name: str) -> StateError:
    return StateError(f"No initializer of the inference graph or of an algorithm has the name {name!r}.")


def _set_metadata(proto: onnx.ModelProto, metadata: Mapping[str, str]) -> None:
    for key, value in metadata.items():
        entries = [entry for entry in proto.metadata_props if entry.key == key] or [proto.metadata_props.add(key=key)]
        for entry in entries:
            entry.value = value


def _remove(entries: MutableSequence[Entry], unwanted: Callable[[Entry], bool]) -> None:
    for index in reversed(range(len(entries))):
        if unwanted(entries[index]):
            del entries[index]


def _drop_training_parts(proto: onnx.ModelProto, model: Model) -> None:
    inference = _called_functions(model, model.graph.nodes)
    graphs = [graph for info in model.training_info for graph in (info.initialization, info.algorithm)]
    training = _called_functions(model, [node for graph in graphs for node in graph.nodes])
    dropped = training - inference
    for index, key in reversed(list(enumerate(model.functions))):
        if key in dropped:
            del proto.functions[index]
    remaining = {key: function for key, function in model.functions.items() if key not in dropped}
    nodes = [*model.graph.nodes, *itertools.chain.from_iterable(body.nodes for body in remaining.values())]
    used = {domain for domain, _, _ in remaining} | {node.domain for node in with_subgraphs(nodes)}
    unused = {TRAINING_DOMAIN, *MISTAKEN_DOMAINS, *(domain for domain, _, _ in dropped)} - used
    _remove(proto.opset_import, lambda entry: entry.domain in unused)


def _called_functions(model: Model, nodes: Iterable[Node]) -> set[FunctionKey]:
    """The model-local functions that the nodes call, and those that these call in turn."""
    called: set[FunctionKey] = set()
    pending = list(with_subgraphs(nodes))
    while pending:
        node = pending.pop()
        key = (node.domain, node.op_type, node.overload)
        if key in model.functions and key not in called:
            called.add(key)
            pending.extend(with_subgraphs(model.functions[key].nodes))
    return called


def _serialized(proto: onnx.ModelProto, limit: int) -> bytes | None:
    """The content of the file, or None when it would take more than `limit` bytes."""
    try:
        content = proto.SerializeToString()
    except (EncodeError, ValueError):  # which of the two depends on the implementation of protobuf
        return None
    return content if len(content) <= limit else None


def _replace(target: Path, content: bytes) -> None:
    """Puts a file in the place of another in one step, with the permissions of the other."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
