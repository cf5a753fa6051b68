"""Fresh names: whatever authoring adds to a model never meets a name that is already there."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from onnxtrain.authoring.protos import subgraphs


class Names:
    """The names that a model uses, and those given out since; nodes and values have names of their own."""

    def __init__(self, model: onnx.ModelProto):
        self._values = set(_value_names(model.graph))
        self._nodes = {node.name for node in model.graph.node}

    def fresh(self, wanted: str) -> str:
        """A name for a value: `wanted` itself where it is free, else `wanted_1`, `wanted_2`, ..."""
        return take(wanted, self._values)

    def fresh_node(self, wanted: str) -> str:
        """A name for a node, likewise."""
        return take(wanted, self._nodes)


def take(wanted: str, taken: set[str]) -> str:
    """`wanted`, with a number behind it where it is among the names that are taken; it is taken from now on."""
    name, count = wanted, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name


def _value_names(graph: onnx.GraphProto) -> Iterator[str]:
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        yield value.name
    for sparse in graph.sparse_initializer:
        yield sparse.values.name
    for node in graph.node:
        yield from node.input
        yield from node.output
        for subgraph in subgraphs(node):
            yield from _value_names(subgraph)
