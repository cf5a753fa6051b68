"""Rewrites of the inference graph that training needs; what the graph infers stays the same.

Only an initializer of the main graph can be a state variable, and each state variable takes one update a step. So
tensors are moved out of subgraphs, and tensors that an exporter shares only because their values happened to be equal
get a copy for each place.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxtrain.authoring.names import Names
from onnxtrain.authoring.protos import (
    FLOAT_TYPES,
    constant_tensor,
    every_node,
    input_at,
    is_standard,
    reads,
    replace_nodes,
    stored_tensors,
    subgraphs,
)
from onnxtrain.authoring.roles import ARITHMETIC, is_statistic, may_be_updated, weight_role
from onnxtrain.graph.write import CONSTANTS_KEY

_STATISTICS = {3: "running_mean", 4: "running_variance"}  # inputs of BatchNormalization
# attributes of Constant for values that are no tensor, and their types
_NUMBERS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


def spell_out_constants(model: onnx.ModelProto) -> None:
    """Turns Constant nodes with a number or a list of numbers into those of a tensor, the form that all else reads."""
    bodies = [model.graph.node, *(function.node for function in model.functions)]
    for node in (node for nodes in bodies for node in every_node(nodes)):
        for attribute in node.attribute if is_standard(node, "Constant") else ():
            dtype = _NUMBERS.get(attribute.name)
            if dtype is not None and not attribute.ref_attr_name:
                tensor = numpy_helper.from_array(np.asarray(helper.get_attribute_value(attribute), dtype))
                attribute.CopyFrom(helper.make_attribute("value", tensor))


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


def constant_nodes(graph: onnx.GraphProto) -> dict[str, str]:
    """The names of the Constant nodes of a graph, by that of their value."""
    return {node.output[0]: node.name for node in graph.node if constant_tensor(node) is not None}


def remember_constants(model: onnx.ModelProto, constants: Mapping[str, str]) -> None:
    """Writes down which initializers were Constant nodes, so that they become such again when it is exported."""
    promoted = {tensor.name: constants[tensor.name] for tensor in model.graph.initializer if tensor.name in constants}
    model.metadata_props.add(key=CONSTANTS_KEY, value=json.dumps(promoted))


def switch_to_inference(graph: onnx.GraphProto) -> None:
    """Takes BatchNormalization and Dropout out of training mode, as models exported for training carry them."""
    stored = stored_tensors(graph)
    read = {value.name for value in graph.output}.union(*(reads(node) for node in graph.node))
    for node in graph.node:
        if is_standard(node, "BatchNormalization"):
            _switch_normalization(node, read)
        elif is_standard(node, "Dropout") and input_at(node, 2) in stored:
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


def move_weights_out(graph: onnx.GraphProto, names: Names) -> None:
    """Moves float tensors that can be weights out of If, Loop and Scan bodies into the main graph."""
    bodies = list(nested_graphs(graph.node))
    defined = Counter(name for body in bodies for name in _defined_names(body))
    for body in bodies:
        for tensor in take_weights(body, lambda name: names.fresh(name) if defined[name] > 1 else name):
            graph.initializer.add().CopyFrom(tensor)


def nested_graphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """The subgraphs of nodes, at any depth."""
    for node in nodes:
        for body in subgraphs(node):
            yield body
            yield from nested_graphs(body.node)


def _defined_names(body: onnx.GraphProto) -> set[str]:
    written = {name for node in body.node for name in node.output}
    return written.union(value.name for value in (*body.input, *body.initializer))


def take_weights(body: onnx.GraphProto, rename: Callable[[str], str]) -> list[TensorProto]:
    """Takes the tensors that can be weights out of a subgraph, which then reads them from outside by new names."""
    taken = _nested_weights(body)
    for tensor in taken:
        old, tensor.name = tensor.name, rename(tensor.name)
        _forget(body, old)
        _rename_reads(body, {old: tensor.name})
    return taken


def _nested_weights(body: onnx.GraphProto) -> list[TensorProto]:
    """The tensors that a subgraph stores and that are more than one number; named as the value is."""
    places = {name for node in body.node for index, name in enumerate(node.input) if may_be_updated(node, index)}
    captured = {name for inner in nested_graphs(body.node) for node in inner.node for name in node.input}
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


def _rename_reads(graph: onnx.GraphProto, renamed: dict[str, str]) -> None:
    """Lets the nodes of a graph, at any depth, read other values than before."""
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
        for body in subgraphs(node):
            _rename_reads(body, renamed)
    for value in graph.output:
        value.name = renamed.get(value.name, value.name)


def separate_vectors(graph: onnx.GraphProto, names: Names) -> None:
    """Gives every layer scales, biases and running statistics of its own where an exporter shares them.

    PyTorch's exporters store tensors of equal values once, such as the zero biases and unit scales of a fresh network:
    the older one lets the others be an Identity of it, the newer one lets all layers read it. Matrices stay shared:
    equal matrices are tied on purpose.
    """
    norms = [node for node in graph.node if is_standard(node, "BatchNormalization")]
    promote_constants(graph, {name for node in norms for name in node.input[1:5]})
    _separate_identities(graph)
    _separate_repeated_values(graph, names)


def _separate_identities(graph: onnx.GraphProto) -> None:
    """Turns an Identity of a stored vector into a vector of its own."""
    stored = stored_tensors(graph)
    outputs = {value.name for value in graph.output}
    kept = []
    for node in graph.node:
        source = stored.get(input_at(node, 0)) if is_standard(node, "Identity") else None
        if source is not None and _is_float_vector(source) and node.output[0] not in outputs:
            stored[node.output[0]] = _add_copy(graph, source, node.output[0])
        else:
            kept.append(node)
    replace_nodes(graph, kept)


def _separate_repeated_values(graph: onnx.GraphProto, names: Names) -> None:
    """Copies a vector of one repeated value for every layer but the first that reads it.

    Only where no other vector equals it: a model with two equal ones does not share tensors for their values, so that
    a layer that it applies twice is one layer.
    """
    vectors = {name: tensor for name, tensor in stored_tensors(graph).items() if _is_float_vector(tensor)}
    values = {name: numpy_helper.to_array(tensor) for name, tensor in vectors.items()}
    count = Counter((value.dtype, value.tobytes()) for value in values.values())
    seen: set[str] = set()
    for node in graph.node:
        for index, name in enumerate(node.input):
            role = _parameter(node, index)
            if role is None or name not in vectors or not _is_repeated(values[name]):
                continue
            if name in seen and count[values[name].dtype, values[name].tobytes()] == 1:
                node.input[index] = names.fresh(f"{node.name or node.output[0]}/{role}")
                _add_copy(graph, vectors[name], node.input[index])
            seen.add(name)


def _parameter(node: onnx.NodeProto, index: int) -> str | None:
    """What a vector at an input of a layer is called; None where it is no parameter."""
    if is_statistic(node, index):
        return _STATISTICS[index]
    role = ARITHMETIC.get(node.op_type) if is_standard(node, *ARITHMETIC) else weight_role(node, index)
    return None if role is None else role.value


def _is_float_vector(tensor: TensorProto) -> bool:
    return tensor.data_type in FLOAT_TYPES and len(tensor.dims) == 1


def _is_repeated(value: np.ndarray) -> bool:
    return value.size > 1 and bool((value == value[0]).all())


def _add_copy(graph: onnx.GraphProto, tensor: TensorProto, name: str) -> TensorProto:
    copy = graph.initializer.add()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy
