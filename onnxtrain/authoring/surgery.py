"""Changes what a model gives out: more outputs, or an earlier end."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence

import onnx

from onnxtrain.authoring.protos import keep_only, needed_nodes, replace_nodes, stored_tensors, subgraphs
from onnxtrain.authoring.selection import listed
from onnxtrain.authoring.source import load
from onnxtrain.authoring.value_types import infer_types
from onnxtrain.errors import ModelError


def add_outputs(model: str | os.PathLike[str] | onnx.ModelProto, values: str | Sequence[str]) -> onnx.ModelProto:
    """Makes values inside a model outputs too, after those that it has; all else stays as it is.

    Args:
      model: a file or a `ModelProto`, which is not changed. Its training information stays.
      values: names of values of the main graph; one that is an output already is not added again.

    Raises:
      ModelError: the model computes no such value, or nothing says of which type it is.
    """
    proto = load(model)
    _declare(proto, [name for name in _names(values) if name not in {value.name for value in proto.graph.output}])
    return proto


def cut(model: str | os.PathLike[str] | onnx.ModelProto, values: str | Sequence[str]) -> onnx.ModelProto:
    """Ends a model at values inside it: they become its outputs, and what they do not need is dropped.

    Nodes, initializers, inputs and functions that stay are what they were.

    Args:
      model: a file or a `ModelProto`, which is not changed.
      values: names of values of the main graph, in the order of the new outputs.

    Raises:
      ModelError: the model computes no such value, nothing says of which type it is, or the model has training
        information, which may need what is dropped.
    """
    proto = load(model)
    refuse_training_info(proto)
    kept = {value.name: value for value in proto.graph.output}
    names = _names(values)
    _declare(proto, [name for name in names if name not in kept])
    declared = {value.name: value for value in proto.graph.output}
    outputs = [onnx.ValueInfoProto.FromString(declared[name].SerializeToString()) for name in names]
    del proto.graph.output[:]
    proto.graph.output.extend(outputs)
    drop_unneeded(proto)
    return proto


def refuse_training_info(model: onnx.ModelProto) -> None:
    """Stops a change that algorithms would not know of: they read any value of the network by its name.

    Raises:
      ModelError: the model has training information.
    """
    if model.training_info:
        raise ModelError(
            f"The model has training information ({len(model.training_info)} training_info), which reads its values "
            "and weights by name. Export it for inference first, change the exported model, then prepare that."
        )


def drop_unneeded(model: onnx.ModelProto) -> None:
    """Drops nodes, tensors, inputs, declarations and functions that no output needs."""
    graph = model.graph
    needed, read = needed_nodes(graph.node, {value.name for value in graph.output})
    read |= {value.name for value in graph.output}
    if len(needed) < len(graph.node):
        replace_nodes(graph, needed)
    keep_only(graph.initializer, lambda tensor: tensor.name in read)
    keep_only(graph.sparse_initializer, lambda tensor: tensor.values.name in read)
    keep_only(graph.input, lambda value: value.name in read)
    known = read | {name for node in graph.node for name in node.output}
    keep_only(graph.value_info, lambda value: value.name in known)
    keep_only(graph.quantization_annotation, lambda entry: entry.tensor_name in known)
    called = _called_functions(model)
    keep_only(model.functions, lambda body: (body.domain, body.name, body.overload) in called)


def _names(values: str | Sequence[str]) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else tuple(values)


def _declare(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Adds outputs of the types that these values have."""
    graph = model.graph
    known = {name: None for node in graph.node for name in node.output if name}
    known |= {value.name: None for value in graph.input} | dict.fromkeys(stored_tensors(graph))
    types = infer_types(model)
    for name in names:
        if name not in known:
            raise _no_value(name, known)
        found = types.declaration(name)
        if found is None:
            raise ModelError(
                f"Value {name!r} cannot be an output: nothing says of which type it is. Declare it in the value_info "
                "of the graph."
            )
        graph.output.append(found)


def _no_value(name: str, known: Iterable[str]) -> ModelError:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"Did you mean {', '.join(map(repr, close))}?" if close else f"It has {listed(known)}."
    return ModelError(
        f"The main graph computes no value {name!r}. {hint} Values inside If, Loop, Scan and functions are not reached."
    )


def _called_functions(model: onnx.ModelProto) -> set[tuple[str, str, str]]:
    bodies = {(body.domain, body.name, body.overload): body for body in model.functions}
    called: set[tuple[str, str, str]] = set()
    pending = list(model.graph.node)
    while pending:
        node = pending.pop()
        pending.extend(inner for graph in subgraphs(node) for inner in graph.node)
        key = (node.domain, node.op_type, node.overload)
        if key in bodies and key not in called:
            called.add(key)
            pending.extend(bodies[key].node)
    return called
