"""Every way in which a model's file breaks the training specification, found all at once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from onnxtrain.errors import Problem
from onnxtrain.graph.combine import (
    INFERENCE_PATH,
    algorithm_path,
    clash_problems,
    combination_problems,
    describe_type,
    inference_problems,
    initialization_path,
    types_agree,
)
from onnxtrain.graph.model import Binding, Model, TensorType
from onnxtrain.graph.names import Place, Scope, definitions, function_place, graph_place, with_subgraphs
from onnxtrain.graph.operators import operator_problems, recursion_problems
from onnxtrain.graph.order import describe_cycle, find_cycle, own_names
from onnxtrain.graph.read import read_model

if TYPE_CHECKING:
    import onnx


def validate(source: str | os.PathLike[str] | onnx.ModelProto | Model) -> list[Problem]:
    """Every way in which a model breaks the training specification; empty when it obeys.

    Raises:
      ModelError: the file cannot be read as an ONNX model at all.
    """
    return find_problems(source if isinstance(source, Model) else read_model(source))


def find_problems(model: Model) -> list[Problem]:
    """Every way in which a model breaks the training specification, in the order of the file."""
    inference = graph_place(model.graph, INFERENCE_PATH)
    # Values of algorithms are let through here: inference_problems reports every read of one (T-09).
    algorithm_values = frozenset(name for info in model.training_info for name in own_names(info.algorithm))
    lenient = graph_place(model.graph, INFERENCE_PATH, Scope(algorithm_values, {}))
    problems = [
        *_repeated_initializers(model),
        *inference_problems(model),
        *_place_problems(model, lenient, model.opset_imports),
    ]
    for index in range(len(model.training_info)):
        problems += _training_problems(model, index, inference.scope)
    problems += _repeated_updates(model)
    for function in model.functions.values():
        body = function_place(function)
        problems += clash_problems(definitions(body.graph, body.path))
        problems += _place_problems(model, body, function.opset_imports)
    return [*problems, *recursion_problems(model)]


def _training_problems(model: Model, index: int, inference_scope: Scope) -> Iterator[Problem]:
    info = model.training_info[index]
    variables = {**model.graph.initializers, **info.algorithm.initializers}
    variable_types = {name: TensorType(value.dtype, value.shape) for name, value in variables.items()}
    initialization = graph_place(
        info.initialization, initialization_path(index), Scope(frozenset(variables), variable_types)
    )
    algorithm = graph_place(info.algorithm, algorithm_path(index), inference_scope)

    yield from _initialization_inputs(initialization)
    yield from clash_problems(definitions(info.initialization, initialization.path))
    yield from _place_problems(model, initialization, model.opset_imports)
    yield from combination_problems(model, index)
    yield from _place_problems(model, algorithm, model.opset_imports, inference_scope.names)

    outputs = info.initialization.output_names
    initializing = _BindingField("T-06", index, "initialization_binding", outputs, "of its initialization graph")
    yield from _repeated_initializations(initializing, info.initialization_binding)
    yield from _binding_problems(initializing, info.initialization_binding, variable_types, initialization.scope)

    outputs = (*info.algorithm.output_names, *model.graph.output_names)
    updating = _BindingField("T-11", index, "update_binding", outputs, "of the algorithm or of the inference graph")
    yield from _binding_problems(updating, info.update_binding, variable_types, algorithm.scope)


def _place_problems(
    model: Model, place: Place, opset_imports: Mapping[str, int], given: frozenset[str] = frozenset()
) -> Iterator[Problem]:
    """What is wrong with the nodes of a place and of its subgraphs; `given` are the values before its first node."""
    for inner in with_subgraphs(place):
        if inner is not place:
            yield from clash_problems(definitions(inner.graph, inner.path))
        yield from _undefined_values(inner)
        yield from _cycles(inner, given if inner is place else frozenset())
        yield from operator_problems(model, inner, opset_imports)


def _cycles(place: Place, given: frozenset[str]) -> Iterator[Problem]:
    known = given.union(place.graph.input_names, place.graph.initializers)
    # A node that writes a known name has its problem already; through that name it would only seem to wait.
    cycle = find_cycle([node for node in place.graph.nodes if known.isdisjoint(node.outputs)])
    if cycle:
        message = f"Nodes wait for each other: {describe_cycle(cycle)}."
        yield Problem("T-08", place.path, message, "Break the cycle; a loop is written with Loop or Scan.")


def _undefined_values(place: Place) -> Iterator[Problem]:
    remedy = "Correct the name, or add what produces the value."
    for index, node in enumerate(place.graph.nodes):
        for name in dict.fromkeys(node.inputs):
            if name and name not in place.scope:
                message = (
                    f"The node reads {name!r}, but no input, initializer or node output that it can see has that name."
                )
                yield Problem("T-08", place.node_path(index), message, remedy)
    for name in place.graph.output_names:
        if name not in place.scope:
            yield Problem("T-08", f"{place.path}.output[{name!r}]", "Nothing produces this output.", remedy)


def _initialization_inputs(place: Place) -> Iterator[Problem]:
    if place.graph.inputs:
        yield Problem(
            "T-05",
            f"{place.path}.input",
            f"An initialization graph has no inputs, but this one has {', '.join(map(repr, place.graph.input_names))}.",
            "Turn the inputs into initializers or node outputs of the initialization graph.",
        )


@dataclass(frozen=True)
class _BindingField:
    """One of the two binding fields of a `TrainingInfoProto`; its values name `outputs`."""

    statement: str
    index: int
    name: str
    outputs: tuple[str, ...]
    whose: str

    def where(self, key: str) -> str:
        return f"training_info[{self.index}].{self.name}[{key!r}]"


def _binding_problems(
    field: _BindingField, binding: Binding, variable_types: Mapping[str, TensorType], scope: Scope
) -> Iterator[Problem]:
    for key, value in binding:
        if key not in variable_types:
            yield Problem(
                field.statement,
                field.where(key),
                f"{key!r} names no initializer of the inference graph or of the same algorithm.",
                f"Name an initializer, or add one of that name.{_suggestion(key, variable_types)}",
            )
        if value not in field.outputs:
            yield Problem(
                field.statement,
                field.where(key),
                f"The value {value!r} names no output {field.whose}.",
                f"Name an output, or list {value!r} among that graph's outputs.{_suggestion(value, field.outputs)}",
            )
        elif key in variable_types and not types_agree(scope.type_of(value), variable_types[key]):
            yield Problem(
                "T-14",
                field.where(key),
                f"Output {value!r} is {describe_type(scope.type_of(value))}, but the state variable {key!r} is "
                f"{describe_type(variable_types[key])}.",
                "Reshape or cast the output, or store the variable in the output's shape and type.",
            )


def _suggestion(name: str, candidates: Collection[str]) -> str:
    # A tool that renamed one side usually added a prefix or a suffix.
    longer = [
        candidate for candidate in candidates if name and (candidate.endswith(name) or candidate.startswith(name))
    ]
    similar = longer or get_close_matches(name, list(candidates))
    return f" Did you mean {similar[0]!r}?" if similar else ""


def _repeated_initializations(field: _BindingField, binding: Binding) -> Iterator[Problem]:
    for key, count in Counter(key for key, _ in binding).items():
        if count > 1:
            message = f"{key!r} is a key {count} times, but one initialization assigns a variable once."
            yield Problem(field.statement, field.where(key), message, "Keep one of the entries.")


def _repeated_updates(model: Model) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, info in enumerate(model.training_info):
        for key, _ in info.update_binding:
            if key in seen:
                yield Problem(
                    "T-11",
                    f"training_info[{index}].update_binding[{key!r}]",
                    f"{key!r} is updated by training_info[{seen[key]}].update_binding already; "
                    "over all of training_info a variable has one update.",
                    "Keep one of the two, or compute both in one algorithm.",
                )
            seen.setdefault(key, index)


def _repeated_initializers(model: Model) -> Iterator[Problem]:
    """Initializer names that stand twice in one graph; only the file shows them, a mapping cannot."""
    graphs = [(INFERENCE_PATH, model.proto.graph)]
    for index, info in enumerate(model.proto.training_info):
        graphs += [(initialization_path(index), info.initialization), (algorithm_path(index), info.algorithm)]
    for path, graph in graphs:
        names = [one.name for one in graph.initializer] + [one.values.name for one in graph.sparse_initializer]
        for name, count in Counter(names).items():
            if count > 1:
                message = f"{count} initializers of one graph have this name, but names of initializers are unique."
                yield Problem("T-08", f"{path}.initializer[{name!r}]", message, "Keep one of them.")
