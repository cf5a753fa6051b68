"""Rewrites of the inference graph that training needs; what the graph infers stays the same.

Only an initializer of the main graph can be a state variable, and each state variable takes one update a step. So
tensors are moved out of subgraphs, and tensors that an exporter shares only because their values happened to be equal
get a copy for each place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import onnx
from onnx import TensorProto, numpy_helper

from onnxtrain.authoring.names import Names
from onnxtrain.authoring.protos import (
    FLOAT_TYPES,
    constant_tensor,
    input_at,
    is_standard,
    reads,
    replace_nodes,
    stored_tensors,
    subgraphs,
)
from onnxtrain.authoring.roles import may_hold_weight

# inputs 1 to 4 of BatchNormalization
_PARAMETERS = ("scale", "bias", "running_mean", "running_variance")


def promote_constants(graph: onnx.GraphProto, names: Iterable[str]) -> None:
    """Turns Constant nodes into initializers of the same name and value, for only these can be state variables."""
    wanted = set(names)
    kept = []
    for node in graph.node:
        tensor = constant_tensor(node)
        if tensor is None or node.output[0] not in wanted:
            kept.append(node)
        else:
            graph.initializer.add().CopyFrom(tensor)
            graph.initializer[-1].name = node.output[0]
    replace_nodes(graph, kept)


def switch_to_inference(graph: onnx.GraphProto) -> None:
    """Takes BatchNormalization and Dropout out of training mode, as models exported for training carry them."""
    stored = stored_tensors(graph)
    read = {value.name for value in graph.output}.union(*(reads(node) for node in graph.node))
    for node in graph.node:
        if is_standard(node, "BatchNormalization"):
            _switch_normalization(node, read)
        elif is_standard(node, "Dropout") and _is_true(stored.get(input_at(node, 2))):
            del node.input[2:]
        for subgraph in subgraphs(node):
            switch_to_inference(subgraph)


def _switch_normalization(node: onnx.NodeProto, read: set[str]) -> None:
    if not read.isdisjoint(node.output[1:]):
        return  # someone computes with the statistics of the batch, so this is no ordinary training export
    for attribute in list(node.attribute):
        if attribute.name == "training_mode":
            node.attribute.remove(attribute)
    del node.output[1:]


def _is_true(tensor: TensorProto | None) -> bool:
    return tensor is not None and bool(numpy_helper.to_array(tensor).all())


def move_weights_out(graph: onnx.GraphProto, names: Names) -> None:
    """Moves float tensors that can be weights out of If, Loop and Scan bodies into the main graph."""
    bodies = list(_nested(graph))
    defined = Counter(name for body in bodies for name in stored_tensors(body))
    for body in bodies:
        for tensor in _nested_weights(body):
            fresh = names.fresh(tensor.name) if defined[tensor.name] > 1 else tensor.name
            graph.initializer.add().CopyFrom(tensor)
            graph.initializer[-1].name = fresh
            _forget(body, tensor.name)
            rename_reads(body, {tensor.name: fresh})


def _nested(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for node in graph.node:
        for body in subgraphs(node):
            yield body
            yield from _nested(body)


def _nested_weights(body: onnx.GraphProto) -> list[TensorProto]:
    """The tensors that a subgraph stores and that are more than one number; named as the value is."""
    places = Counter(
        name for node in body.node for index, name in enumerate(node.input) if may_hold_weight(node, index)
    )
    captured = {name for inner in _nested(body) for node in inner.node for name in node.input}
    exposed = {value.name for value in (*body.input, *body.output)}
    found = []
    for name, tensor in stored_tensors(body).items():
        usable = (name in places or name in captured) and name not in exposed
        if usable and tensor.data_type in FLOAT_TYPES and any(size > 1 for size in tensor.dims):
            copy = TensorProto.FromString(tensor.SerializeToString())
            copy.name = name
            found.append(copy)
    return found


def _forget(body: onnx.GraphProto, name: str) -> None:
    for tensor in list(body.initializer):
        if tensor.name == name:
            body.initializer.remove(tensor)
    for node in list(body.node):
        if name in node.output and constant_tensor(node) is not None:
            body.node.remove(node)


def rename_reads(graph: onnx.GraphProto, renamed: dict[str, str]) -> None:
    """Lets the nodes of a graph, at any depth, read other values than before."""
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
        for body in subgraphs(node):
            rename_reads(body, renamed)
    for value in graph.output:
        value.name = renamed.get(value.name, value.name)


def separate_vectors(graph: onnx.GraphProto) -> None:
    """Turns an Identity of a stored vector into a vector of its own.

    PyTorch's exporter keeps one of several tensors of equal values, such as the zero biases and unit scales of a fresh
    network, and lets the others be its Identity. Matrices stay shared: equal matrices are tied on purpose.
    """
    stored = stored_tensors(graph)
    outputs = {value.name for value in graph.output}
    kept = []
    for node in graph.node:
        source = stored.get(input_at(node, 0))
        is_copy = is_standard(node, "Identity") and source is not None and node.output[0] not in outputs
        if is_copy and source is not None and source.data_type in FLOAT_TYPES and len(source.dims) == 1:
            graph.initializer.add().CopyFrom(source)
            graph.initializer[-1].name = node.output[0]
            stored[node.output[0]] = graph.initializer[-1]
        else:
            kept.append(node)
    replace_nodes(graph, kept)


def separate_statistics(graph: onnx.GraphProto, names: Names) -> None:
    """Gives every BatchNormalization running statistics that nothing else reads.

    Nodes that share all four parameters are one module applied several times, and go on sharing them; where two of the
    four are one tensor, it is only shared for its values.
    """
    norms = [node for node in graph.node if is_standard(node, "BatchNormalization")]
    promote_constants(graph, {name for node in norms for name in node.input[1:5]})
    stored = {tensor.name: tensor for tensor in graph.initializer}
    modules = _modules(graph)
    others = (node for node in graph.node if not is_standard(node, "BatchNormalization"))
    readers = Counter(name for node in others for name in reads(node))
    readers.update(name for nodes in modules for name in nodes[0].input[1:5])
    for nodes in modules:
        parameters = tuple(nodes[0].input[1:5])
        if all(readers[name] == 1 for name in parameters[2:]):
            continue  # nothing else reads these statistics
        for index, (name, word) in enumerate(zip(parameters, _PARAMETERS, strict=True), start=1):
            if readers[name] > 1 and name in stored:
                readers[name] -= 1
                copy = graph.initializer.add()
                copy.CopyFrom(stored[name])
                copy.name = names.fresh(f"{nodes[0].name or nodes[0].output[0]}/{word}")
                for node in nodes:
                    node.input[index] = copy.name


def _modules(graph: onnx.GraphProto) -> list[list[onnx.NodeProto]]:
    """The BatchNormalization nodes, those of one module together."""
    modules: dict[tuple[str, ...], list[onnx.NodeProto]] = {}
    for node in graph.node:
        if is_standard(node, "BatchNormalization"):
            parameters = tuple(node.input[1:5])
            is_module = len(set(parameters)) == len(parameters)
            modules.setdefault(parameters if is_module else (node.output[0],), []).append(node)
    return list(modules.values())
