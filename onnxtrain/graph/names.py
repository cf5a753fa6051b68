"""Names in a model: what defines each of them, and which of them a node can read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from onnxtrain.graph.model import Function, Graph, Node, TensorType, ValueInfo, ValueType
from onnxtrain.graph.order import describe, own_names


@dataclass(frozen=True)
class Definition:
    """One place that defines a value; `kind` is ``input``, ``initializer`` or ``node``."""

    name: str
    kind: str
    graph: str
    where: str


def definitions(graph: Graph, path: str) -> Iterator[Definition]:
    """Everything that a graph defines, in the order of its fields; `path` is where the graph stands in the file."""
    for name in graph.input_names:
        yield Definition(name, "input", path, f"{path}.input[{name!r}]")
    for name in graph.initializers:
        yield Definition(name, "initializer", path, f"{path}.initializer[{name!r}]")
    for index, node in enumerate(graph.nodes):
        for name in node.outputs:
            if name:
                yield Definition(name, "node", path, _node_path(path, index, node))


def clashes(defined: Iterable[Definition], after: Iterable[Definition] = ()) -> Iterator[tuple[Definition, Definition]]:
    """Definitions that break single assignment, each behind the earlier one that it clashes with.

    An initializer may also be an input (T-17), and two graphs that run as one may share an input (T-16).
    """
    earlier: dict[str, list[Definition]] = {}
    for definition in after:
        earlier.setdefault(definition.name, []).append(definition)
    for definition in defined:
        same_name = earlier.setdefault(definition.name, [])
        clash = next((other for other in same_name if not _may_share(other, definition)), None)
        if clash is not None:
            yield clash, definition
        same_name.append(definition)


def _may_share(first: Definition, second: Definition) -> bool:
    kinds = {first.kind, second.kind}
    return kinds == {"input", "initializer"} or (kinds == {"input"} and first.graph != second.graph)


@dataclass(frozen=True)
class Scope:
    """The values that a node can read: those of its own graph, then those around it."""

    names: frozenset[str]
    types: Mapping[str, ValueType | None]
    outer: Scope | None = None

    def __contains__(self, name: object) -> bool:
        return name in self.names or (self.outer is not None and name in self.outer)

    def type_of(self, name: str) -> ValueType | None:
        """The type that the file states for a value; None where it does not say."""
        if name in self.names:
            return self.types.get(name)
        return self.outer.type_of(name) if self.outer else None


def graph_scope(graph: Graph, outer: Scope | None = None) -> Scope:
    """The values of a graph, with the types that it declares for them."""
    types: dict[str, ValueType | None] = {}
    for value in (*graph.value_info, *graph.outputs, *graph.inputs):
        types[value.name] = value.type or types.get(value.name)
    types.update((name, TensorType(value.dtype, value.shape)) for name, value in graph.initializers.items())
    return Scope(own_names(graph), types, outer)


@dataclass(frozen=True)
class Place:
    """A graph, a subgraph or the body of a function, where it stands in the file, and what its nodes can read."""

    path: str
    graph: Graph
    scope: Scope

    def node_path(self, index: int) -> str:
        """Where one of the nodes stands in the file."""
        return _node_path(self.path, index, self.graph.nodes[index])


def graph_place(graph: Graph, path: str, outer: Scope | None = None) -> Place:
    """The place of a graph inside the scope around it."""
    return Place(path, graph, graph_scope(graph, outer))


def function_place(function: Function) -> Place:
    """The place of a function's body; its values have no types before it is called."""
    body = Graph(
        name=function.name,
        inputs=tuple(ValueInfo(name, None) for name in function.inputs),
        outputs=tuple(ValueInfo(name, None) for name in function.outputs),
        nodes=function.nodes,
    )
    return graph_place(body, f"functions[{function_name(function)!r}]")


def function_name(function: Function) -> str:
    """A function's full name in messages: ``my.domain.Block``, with its overload if it has one."""
    return f"{function.domain}.{function.name}" + (f":{function.overload}" if function.overload else "")


def with_subgraphs(place: Place) -> Iterator[Place]:
    """The place itself and every subgraph inside it, at any depth."""
    yield place
    for index, node in enumerate(place.graph.nodes):
        for attribute, graph in _named_subgraphs(node):
            yield from with_subgraphs(graph_place(graph, f"{place.node_path(index)}.{attribute}", place.scope))


def _node_path(path: str, index: int, node: Node) -> str:
    return f"{path}.node[{index}] {describe(node)}"


def _named_subgraphs(node: Node) -> Iterator[tuple[str, Graph]]:
    for name, value in node.attributes.items():
        if isinstance(value, Graph):
            yield name, value
        elif isinstance(value, tuple):
            yield from ((f"{name}[{index}]", item) for index, item in enumerate(value) if isinstance(item, Graph))
