"""The order of nodes: what a node reads, which nodes come first, and which are needed at all.

Names are opaque. A subgraph's own inputs, initializers and node outputs hide outer values of the same name.
Files may hold their nodes in any order; everything downstream gets them sorted.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnxtrain.errors import ModelError
from onnxtrain.graph.model import Function, Graph, Node

TRAINING_DOMAIN = "ai.onnx.preview.training"


def is_gradient(node: Node) -> bool:
    """Whether the node is the operator `Gradient` of the training domain, which names values in its attributes."""
    return node.op_type == "Gradient" and node.domain == TRAINING_DOMAIN


def describe(node: Node) -> str:
    """Words for a node in messages: its name is optional and need not be unique, so its first output helps out."""
    if node.name:
        return f"{node.op_type} {node.name!r}"
    written = next((name for name in node.outputs if name), "")
    return f"{node.op_type} (unnamed, writes {written!r})" if written else f"{node.op_type} (unnamed)"


def gradient_names(node: Node) -> frozenset[str]:
    """The values that a Gradient names in `xs`, `zs` and `y`; it depends on them as on inputs."""
    names: set[str] = set()
    for attribute in ("xs", "zs", "y"):
        value = node.attributes.get(attribute, ())
        names.update(item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, str))
    return frozenset(names - {""})


def reads(node: Node) -> frozenset[str]:
    """Every value that a node needs: its inputs, what its subgraphs capture, and the names inside a Gradient."""
    names = {name for name in node.inputs if name}
    if is_gradient(node):
        names |= gradient_names(node)
    for subgraph in node.subgraphs:
        names |= captured_names(subgraph)
    return frozenset(names)


def captured_names(graph: Graph) -> frozenset[str]:
    """The outer values that a subgraph reads, at any depth; an output it does not produce is one of them."""
    names = {name for name in graph.output_names if name}
    for node in graph.nodes:
        names |= reads(node)
    return frozenset(names.difference(own_names(graph)))


def own_names(graph: Graph) -> frozenset[str]:
    """Every value that a graph defines: inputs, initializers and node outputs."""
    written = (name for node in graph.nodes for name in node.outputs if name)
    return frozenset((*graph.input_names, *graph.initializers, *written))


@dataclass(frozen=True)
class UndefinedRead:
    """A node reads a name that nothing defines."""

    node: Node
    name: str


def undefined_reads(nodes: Sequence[Node], known_names: Container[str]) -> Iterator[UndefinedRead]:
    """Every read of a name that is neither known nor written by one of the nodes, in file order."""
    written = {name for node in nodes for name in node.outputs}
    for node in nodes:
        for name in sorted(reads(node)):
            if name not in written and name not in known_names:
                yield UndefinedRead(node, name)


def repeated_outputs(nodes: Iterable[Node]) -> Iterator[tuple[str, Node, Node]]:
    """Every name that is written twice, with the first node that writes it and the later one."""
    writers: dict[str, Node] = {}
    for node in nodes:
        for name in node.outputs:
            if name and name in writers:
                yield name, writers[name], node
            elif name:
                writers[name] = node


def find_cycle(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes of one cycle, each reading the next; empty when there is none."""
    _, cycle = depth_first(_predecessors(nodes))
    return tuple(nodes[index] for index in cycle)


def sort_nodes(nodes: Sequence[Node], known_names: Container[str], graph_name: str) -> tuple[Node, ...]:
    """The nodes in topological order; nodes that are in order already stay as they are.

    `known_names` are the values there are before the first node: inputs, initializers and outer values.

    Raises:
      ModelError: a value is written twice, a value is undefined, or the nodes form a cycle; the message names them.
    """
    for name, first, second in repeated_outputs(nodes):
        raise ModelError(
            f"Graph {graph_name!r} writes {name!r} twice: by {describe(first)} and by {describe(second)}. "
            "A value has one producer; rename one of the two outputs."
        )
    for missing in undefined_reads(nodes, known_names):
        raise ModelError(
            f"{describe(missing.node)} in graph {graph_name!r} reads {missing.name!r}, but no input, initializer or "
            "node output has that name. Correct the name, or add what produces the value."
        )
    order, cycle = depth_first(_predecessors(nodes))
    if cycle:
        raise ModelError(
            f"Nodes of graph {graph_name!r} wait for each other: {describe_cycle([nodes[index] for index in cycle])}. "
            "Break the cycle; a loop is written with Loop or Scan."
        )
    return tuple(nodes[index] for index in order)


def describe_cycle(cycle: Sequence[Node]) -> str:
    """A cycle in words, ending where it begins."""
    return " needs ".join(describe(node) for node in (*cycle, cycle[0]))


def needed_nodes(nodes: Sequence[Node], outputs: Iterable[str]) -> tuple[Node, ...]:
    """The nodes that the outputs depend on, in the order given."""
    writers = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    pending = [writers[name] for name in outputs if name in writers]
    needed = set(pending)
    while pending:
        for name in reads(nodes[pending.pop()]):
            index = writers.get(name)
            if index is not None and index not in needed:
                needed.add(index)
                pending.append(index)
    return tuple(node for index, node in enumerate(nodes) if index in needed)


def sort_graph(graph: Graph, outer_names: frozenset[str] = frozenset()) -> Graph:
    """The graph with its nodes sorted, those of its subgraphs at any depth included."""
    nodes = sort_nodes(graph.nodes, outer_names.union(graph.input_names, graph.initializers), graph.name)
    return replace(graph, nodes=tuple(sort_subgraphs(node) for node in nodes))


def sort_function(function: Function) -> Function:
    """The function with the nodes of its body sorted, those of its subgraphs included."""
    nodes = sort_nodes(function.nodes, frozenset(function.inputs), function.name)
    return replace(function, nodes=tuple(sort_subgraphs(node) for node in nodes))


def sort_subgraphs(node: Node) -> Node:
    """The node with the nodes of its subgraphs sorted; what they capture is taken to be there."""
    if not node.subgraphs:
        return node
    return replace(node, attributes={name: _sort_attribute(value) for name, value in node.attributes.items()})


def depth_first(edges: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Order vertices so that each follows those its edges lead to, or find a cycle: (order, cycle), one of them empty.

    `edges[i]` are the vertices that vertex `i` needs. Vertices already in order keep it. The stack is explicit
    because a chain of thousands of nodes would exceed Python's own.
    """
    order: list[int] = []
    done = [False] * len(edges)
    on_path = [False] * len(edges)
    for root in range(len(edges)):
        path = [] if done[root] else [(root, iter(edges[root]))]
        while path:
            vertex, remaining = path[-1]
            on_path[vertex] = True
            following = next((target for target in remaining if not done[target]), None)
            if following is None:
                path.pop()
                on_path[vertex] = False
                done[vertex] = True
                order.append(vertex)
            elif on_path[following]:
                stack = [entry for entry, _ in path]
                return [], stack[stack.index(following) :]
            else:
                path.append((following, iter(edges[following])))
    return order, []


def _predecessors(nodes: Sequence[Node]) -> list[list[int]]:
    writers = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    # Sorted, because the order of a set of strings changes from run to run.
    return [sorted({writers[name] for name in reads(node) if name in writers}) for node in nodes]


def _sort_attribute(value: Any) -> Any:
    if isinstance(value, Graph):
        return sort_graph(value, captured_names(value))
    if isinstance(value, tuple):
        return tuple(_sort_attribute(item) for item in value)
    return value
