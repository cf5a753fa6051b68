"""Fresh names: whatever authoring adds to a model never meets a name that is already there."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from onnxtrain.authoring.protos import subgraphs


class Names:
    """The names of values and nodes of a model, in all of its graphs, and those given out since."""

    def __init__(self, model: onnx.ModelProto):
        self._taken = set(_names_in(model.graph))

    def fresh(self, wanted: str) -> str:
        """`wanted` itself where it is free, else `wanted_1`, `wanted_2`, ...; the name counts as taken from now on."""
        name, count = wanted, 0
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def _names_in(graph: onnx.GraphProto) -> Iterator[str]:
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        yield value.name
    for sparse in graph.sparse_initializer:
        yield sparse.values.name
    for node in graph.node:
        yield node.name
        yield from node.input
        yield from node.output
        for subgraph in subgraphs(node):
            yield from _names_in(subgraph)
