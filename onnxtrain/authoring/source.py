"""Loads a model for authoring: a private copy in memory, whose nodes stand in an order in which they can run."""

from __future__ import annotations

import os

import onnx

from onnxtrain.authoring.protos import replace_nodes
from onnxtrain.graph.order import sort_nodes
from onnxtrain.graph.read import read_model


def load(source: str | os.PathLike[str] | onnx.ModelProto) -> onnx.ModelProto:
    """Reads a file with its external data, or copies a `ModelProto`, and sorts the nodes of the main graph.

    Raises:
      ModelError: the file is no ONNX model, or is broken.
    """
    model = read_model(source)
    proto, graph = model.proto, model.graph
    positions = {id(node): index for index, node in enumerate(graph.nodes)}
    ordered = sort_nodes(graph.nodes, {*graph.input_names, *graph.initializers}, graph.name)
    order = [positions[id(node)] for node in ordered]
    if order != sorted(order):
        replace_nodes(proto.graph, [proto.graph.node[index] for index in order])
    return proto
