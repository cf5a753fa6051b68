"""Small questions about protobuf messages that every part of authoring asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableSequence
from typing import Any, TypeVar

import onnx
from onnx import TensorProto, helper

FLOAT_TYPES = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16})
HALF_TYPES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})

Dimension = int | str | None
Dimensions = tuple[Dimension, ...]
Entry = TypeVar("Entry")


def default_opset(model: onnx.ModelProto) -> int:
    """The opset of the standard operators that a model imports; 0 when it imports none."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def is_standard(node: onnx.NodeProto, *op_types: str) -> bool:
    """Whether a node applies one of these operators of ai.onnx."""
    return node.op_type in op_types and node.domain in ("", "ai.onnx")


def attribute_value(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of an attribute, or `default` where the node does not carry it."""
    found = next((attribute for attribute in node.attribute if attribute.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs among the attributes of a node, such as the branches of If."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def input_at(node: onnx.NodeProto, index: int) -> str:
    """The name of an input, empty where the node leaves it out."""
    return node.input[index] if index < len(node.input) else ""


def output_at(node: onnx.NodeProto, index: int) -> str:
    """The name of an output, empty where the node leaves it out."""
    return node.output[index] if index < len(node.output) else ""


def dimensions(type_proto: onnx.TypeProto) -> Dimensions | None:
    """The shape of a tensor type: a size, a symbol or None for each axis; None when the rank is unknown."""
    if not type_proto.tensor_type.HasField("shape"):
        return None
    return tuple(_dimension(dim) for dim in type_proto.tensor_type.shape.dim)


def _dimension(dim: onnx.TensorShapeProto.Dimension) -> Dimension:
    if dim.HasField("dim_value"):
        # exporters write 0 and -1 for a size that is not fixed
        return dim.dim_value if dim.dim_value > 0 else None
    return dim.dim_param or None


def label(node: onnx.NodeProto) -> str:
    """What a user calls a node: its name, or where it has none the value that it writes first."""
    return node.name or output_at(node, 0)


def describe(node: onnx.NodeProto) -> str:
    """Words for a node in messages: its name is optional, so its first output helps out."""
    return f"{node.op_type} {node.name!r}" if node.name else f"{node.op_type} (unnamed, writes {output_at(node, 0)!r})"


def reads(node: onnx.NodeProto) -> set[str]:
    """Every name that a node and the nodes of its subgraphs read, those that a subgraph defines itself included."""
    names = set(node.input)
    for graph in subgraphs(node):
        names.update(value.name for value in graph.output)
        names.update(*(reads(inner) for inner in graph.node))
    return names - {""}


def needed_nodes(nodes: Iterable[onnx.NodeProto], targets: Iterable[str]) -> tuple[list[onnx.NodeProto], set[str]]:
    """The nodes that `targets` depend on, in their order, and every name that is read on the way."""
    wanted, found = set(targets), []
    for node in reversed(list(nodes)):
        if not wanted.isdisjoint(node.output):
            found.append(node)
            wanted |= reads(node)
    return found[::-1], wanted


def stored_tensors(graph: onnx.GraphProto) -> dict[str, TensorProto]:
    """The initializers of a graph and the tensors of its Constant nodes, by the name of the value."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        tensor = constant_tensor(node)
        if tensor is not None:
            stored[node.output[0]] = tensor
    return stored


def constant_tensor(node: onnx.NodeProto) -> TensorProto | None:
    """The tensor of a Constant node; None for other nodes, and for constants that are no dense tensor.

    None as well where a function takes the value from an attribute of its call.
    """
    if not is_standard(node, "Constant"):
        return None
    return next((one.t for one in node.attribute if one.name == "value" and not one.ref_attr_name), None)


def every_node(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """These nodes and those of their subgraphs, at any depth."""
    for node in nodes:
        yield node
        for body in subgraphs(node):
            yield from every_node(body.node)


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Gives a graph other nodes; they may be its own."""
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def keep_only(entries: MutableSequence[Entry], is_kept: Callable[[Entry], bool]) -> None:
    """Drops the other entries of a repeated field."""
    for index in reversed(range(len(entries))):
        if not is_kept(entries[index]):
            del entries[index]
