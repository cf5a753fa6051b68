"""Commands that look at a model: `inspect` and `check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console

from onnxtrain.authoring.overview import Overview, byte_size, describe_weight, weights_of
from onnxtrain.authoring.protos import label
from onnxtrain.authoring.weights import Weight
from onnxtrain.cli.console import describe_bytes, print_table, results
from onnxtrain.cli.options import Freeze, LossOutput, ModelPath, Trainable
from onnxtrain.dtypes import name_of
from onnxtrain.errors import OnnxTrainError
from onnxtrain.graph.combine import data_inputs, describe_type
from onnxtrain.graph.model import Graph, Model, Node, ValueInfo
from onnxtrain.graph.names import function_place, graph_place, with_subgraphs
from onnxtrain.graph.order import TRAINING_DOMAIN, is_gradient
from onnxtrain.graph.read import read_model
from onnxtrain.graph.validate import find_problems


def add_commands(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(inspect)
    app.command()(check)


def inspect(
    model: ModelPath, trainable: Trainable = None, freeze: Freeze = None, loss_output: LossOutput = None
) -> None:
    """Show what a model holds: inputs, outputs, state variables, algorithms, bindings, operators with no rule.

    For an inference model it shows instead which tensors `prepare` would train, with the same options.

    ```
    onnxtrain inspect model.onnx
    onnxtrain inspect model.onnx --trainable last:2
    ```
    """
    read = read_model(model)
    console = results()
    _print_heading(console, model, read)
    print_table(console, "Inputs", ("name", "type", "fed to"), _inputs(read))
    print_table(console, "Outputs", ("name", "type", "of"), _outputs(read))
    if read.training_info:
        _print_training_information(console, read)
    else:
        _print_trainable(console, read, trainable=trainable, frozen=freeze, output=loss_output)
    print_table(console, "Operators with no rule", ("operator", "version", "nodes"), _operators_without_rule(read))


def check(model: ModelPath) -> None:
    """Check a model against the training specification: exit code 0, or 1 with every problem listed.

    ```
    onnxtrain check training.onnx && echo "ready to train"
    ```
    """
    read = read_model(model)
    problems = find_problems(read)
    console = results()
    for problem in problems:
        console.print(f"{problem.statement}  {problem.where}", style="bold red")
        console.print(f"      {problem.message}")
        console.print(f"      {problem.remedy}")
    if problems:
        console.print(f"{model}: {_count(problems, 'problem')}.")
        raise typer.Exit(1)
    if read.training_info:
        parts = f"{_count(read.training_info, 'algorithm')}, {_count(read.state_variables, 'state variable')}"
        console.print(f"{model} obeys the training specification: {parts}.")
    else:
        console.print(f"{model} has no problems, and no training information: `onnxtrain prepare` adds it.")


def _count(things: Iterable[object], word: str) -> str:
    number = len(tuple(things))
    return f"{number} {word}{'' if number == 1 else 's'}"


def _print_heading(console: Console, path: Path, model: Model) -> None:
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in sorted(model.opset_imports.items()))
    stored = model.graph.initializers.values()
    size = describe_bytes(sum(value.nbytes for value in stored))
    parts = [_count(model.graph.nodes, "node"), f"{_count(stored, 'initializer')} ({size})"]
    if model.functions:
        parts.append(_count(model.functions, "function"))
    console.print(f"{path}: {'training' if model.training_info else 'inference'} model", style="bold")
    console.print(f"IR version {model.ir_version}; {opsets}")
    console.print(f"{', '.join(parts)}\n")


def _inputs(model: Model) -> Iterator[tuple[str, str, str]]:
    for graph, name in _graphs_with_data(model):
        for value in data_inputs(model, graph):
            yield value.name, _type(value), name if value.required else f"{name} (optional)"


def _outputs(model: Model) -> Iterator[tuple[str, str, str]]:
    bound = {output for info in model.training_info for _, output in info.update_binding}
    for graph, name in _graphs_with_data(model):
        yield from ((value.name, _type(value), name) for value in graph.outputs if value.name not in bound)


def _graphs_with_data(model: Model) -> Iterator[tuple[Graph, str]]:
    yield model.graph, "inference graph"
    for index, info in enumerate(model.training_info):
        yield info.algorithm, f"algorithm {index}"


def _type(value: ValueInfo) -> str:
    return describe_type(value.type)


def _print_training_information(console: Console, model: Model) -> None:
    _print_variables(console, "State variables", model, model.state_variables)
    print_table(console, "Algorithms", ("number", "nodes", "initialization nodes", "operators"), _algorithms(model))
    print_table(console, "Bindings", ("variable", "initialized to", "updated to"), _bindings(model))


def _print_variables(console: Console, title: str, model: Model, names: Sequence[str]) -> None:
    values = {name: model.find_initializer(name) for name in names}
    total = describe_bytes(sum(value.nbytes for value in values.values() if value is not None))
    rows = (_describe_variable(model, name, value) for name, value in values.items())
    title = f"{title}: {_count(names, 'tensor')}, {total}"
    print_table(console, title, ("name", "type", "size", "initializer of"), rows)


def _describe_variable(model: Model, name: str, value: np.ndarray | None) -> tuple[str, str, str, str]:
    if value is None:
        return name, "missing", "", "no graph"
    homes = [home for graph, home in _graphs_with_data(model) if name in graph.initializers]
    return name, f"{name_of(value.dtype)}{list(value.shape)}", describe_bytes(value.nbytes), ", ".join(homes)


def _algorithms(model: Model) -> Iterator[tuple[str, str, str, str]]:
    for index, info in enumerate(model.training_info):
        nodes, initialization = info.algorithm.nodes, info.initialization.nodes
        used = sorted({node.op_type for node in nodes if node.domain == TRAINING_DOMAIN})
        yield str(index), str(len(nodes)), str(len(initialization)), ", ".join(used) or "standard ones only"


def _bindings(model: Model) -> Iterator[tuple[str, str, str]]:
    """Each state variable with the outputs that become its value, behind the numbers of their `training_info`."""
    initial: dict[str, list[str]] = {}
    updated: dict[str, list[str]] = {}
    for index, info in enumerate(model.training_info):
        for found, binding in ((initial, info.initialization_binding), (updated, info.update_binding)):
            for variable, output in binding:
                found.setdefault(variable, []).append(f"{index}: {output}")
    for name in model.state_variables:
        yield name, ", ".join(initial.get(name, ())), ", ".join(updated.get(name, ()))


def _print_trainable(console: Console, model: Model, **options: Any) -> None:
    try:
        found = weights_of(model.proto, **options)
    except OnnxTrainError as error:
        console.print("Nothing would be trained", style="bold")
        console.print(f"{error}\n")
        return
    sizes = [byte_size(weight) for weight in found.weights]
    title = f"Would be trained: {_count(found.weights, 'tensor')}, {describe_bytes(sum(sizes))}"
    rows = (_weight_row(found, weight, size) for weight, size in zip(found.weights, sizes, strict=True))
    print_table(console, title, ("name", "type", "size", "role", "layer", "node"), rows)
    for tie in found.ties:
        what = "the transpose" if tie.transposed else "a copy"
        console.print(f"{tie.copy} is {what} of {tie.weight}: `prepare --tie` trains them as one weight.")
    kept = describe_bytes(sum(found.constant.values()))
    console.print(f"Would stay as they are: {_count(found.constant, 'float tensor')}, {kept}\n")


def _weight_row(found: Overview, weight: Weight, size: int) -> tuple[str, ...]:
    node = label(weight.use.node) if weight.use else ""
    layer = str(found.layers.get(weight.name, ""))
    return weight.name, describe_weight(weight), describe_bytes(size), weight.role.value, layer, node


def _operators_without_rule(model: Model) -> Iterator[tuple[str, str, str]]:
    from onnxtrain.lowering import registry  # imports JAX, which takes longer than everything else here

    counts: Counter[tuple[str, str, int]] = Counter()
    for node, opsets in _every_node(model):
        version = opsets.get(node.domain, 0)
        _, rule = registry.resolve(node.domain, node.op_type, version)
        if rule is None and not is_gradient(node) and (node.domain, node.op_type, node.overload) not in model.functions:
            counts[(node.domain, node.op_type, version)] += 1
    for (domain, op_type, version), count in sorted(counts.items()):
        yield op_type, f"{domain or 'ai.onnx'} {version or 'not imported'}", str(count)


def _every_node(model: Model) -> Iterator[tuple[Node, Mapping[str, int]]]:
    """Every node of every graph, subgraph and function, with the opsets that hold for it."""
    graphs = [model.graph, *(graph for info in model.training_info for graph in (info.initialization, info.algorithm))]
    places = [(graph_place(graph, graph.name), model.opset_imports) for graph in graphs]
    places += [(function_place(function), function.opset_imports) for function in model.functions.values()]
    for place, opsets in places:
        for inner in with_subgraphs(place):
            yield from ((node, opsets) for node in inner.graph.nodes)
