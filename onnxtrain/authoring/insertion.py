"""Layers that an inference model has lost, put back on request: Dropout that its exporter left out, and
BatchNormalization that was folded into the layer before it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxtrain.authoring.names import Names
from onnxtrain.authoring.protos import (
    FLOAT_TYPES,
    attribute_value,
    is_standard,
    label,
    needed_nodes,
    reads,
    replace_nodes,
    stored_tensors,
)
from onnxtrain.authoring.selection import listed, matches, select
from onnxtrain.authoring.survey import Use, find_uses
from onnxtrain.authoring.value_types import Types
from onnxtrain.errors import ModelError
from onnxtrain.graph.write import NORMALIZED_KEY

_FOLDS_NORMALIZATION = ("Conv", "ConvTranspose", "Gemm")
_EPSILON = 1e-5


def choose_dropouts(
    graph: onnx.GraphProto, types: Types, targets: Collection[str], ratios: Mapping[str, float]
) -> dict[str, float]:
    """The values that training drops from, and which share of each.

    Args:
      graph: the inference graph.
      types: the types of its values.
      targets: what the loss reads.
      ratios: shares by pattern: a glob over the names of values, or `node:` and a glob over those of nodes, which
        means their first outputs. The first pattern that matches a value counts.

    Raises:
      ModelError: a pattern matches no float value that depends on the data and that the loss depends on, or a ratio
        does not lie in [0, 1).
    """
    producers = _droppable(graph, types, targets)
    chosen: dict[str, float] = {}
    for pattern, ratio in ratios.items():
        if not 0 <= ratio < 1:
            raise ModelError(
                f"dropout[{pattern!r}] is {ratio}. It must be the share of values to drop: 0 <= ratio < 1."
            )
        kind, _, rest = pattern.partition(":")
        found = [name for name in producers if matches(name, pattern)]
        if kind == "node" and not found:
            found = [name for name, node in producers.items() if node and matches(label(node), rest)]
        if not found:
            raise ModelError(
                f"dropout[{pattern!r}] matches no float value that the loss depends on and that depends on the data. "
                f"There are {listed(producers)}."
            )
        chosen = {**dict.fromkeys(found, ratio), **chosen}
    return chosen


def _droppable(graph: onnx.GraphProto, types: Types, targets: Collection[str]) -> dict[str, onnx.NodeProto | None]:
    """The float values that Dropout can work on, with the node whose first output each of them is."""
    stored = stored_tensors(graph)
    needed, _ = needed_nodes(graph.node, targets)
    data = {value.name for value in graph.input if value.name not in stored}
    found: dict[str, onnx.NodeProto | None] = dict.fromkeys(sorted(data))
    for node in needed:
        if not data.isdisjoint(reads(node)):
            data.update(node.output)
            found.update((name, None if index else node) for index, name in enumerate(node.output) if name)
    return {name: node for name, node in found.items() if types.element_type(name) in FLOAT_TYPES}


def insert_normalization(model: onnx.ModelProto, names: Names, types: Types, patterns: Sequence[str]) -> None:
    """Puts a BatchNormalization after every Conv, ConvTranspose and Gemm whose kernel matches a pattern.

    It has mean 0, variance 1, scale 1 and bias 0, so that the model infers what it inferred. Export folds it again.

    Raises:
      ModelError: a pattern matches no kernel of such a layer.
    """
    uses = find_uses(model, stored_tensors(model.graph), types)
    foldable = {name: use for name, use in uses.items() if _is_foldable(use, model.graph)}
    if not foldable:
        raise ModelError("There is no Conv, ConvTranspose or Gemm without BatchNormalization: drop `normalize`.")
    chosen = {foldable[name].node.output[0]: name for name in select(patterns, foldable, "normalize")}
    nodes: list[onnx.NodeProto] = []
    inserted: list[str] = []
    for node in list(model.graph.node):
        nodes.append(node)
        if node.output[0] in chosen:
            kernel = chosen[node.output[0]]
            element_type = stored_tensors(model.graph)[kernel].data_type
            nodes.append(_normalize(model.graph, names, node, _channels(foldable[kernel]), element_type))
            inserted.append(nodes[-1].name)
    replace_nodes(model.graph, nodes)
    model.metadata_props.add(key=NORMALIZED_KEY, value=json.dumps(inserted))


def _is_foldable(use: Use, graph: onnx.GraphProto) -> bool:
    """Whether a layer may have had a BatchNormalization: it stands in the main graph and has none now."""
    result = use.node.output[0]
    readers = [node for node in graph.node if result in node.input]
    return (
        use.index == 1
        and is_standard(use.node, *_FOLDS_NORMALIZATION)
        and any(result in node.output for node in graph.node)
        and not any(is_standard(node, "BatchNormalization") for node in readers)
    )


def _channels(use: Use) -> int:
    """How many channels a layer writes, on axis 1 of its output."""
    if is_standard(use.node, "Conv"):
        return use.dims[0]
    if is_standard(use.node, "ConvTranspose"):
        return use.dims[1] * attribute_value(use.node, "group", 1)
    return use.dims[0 if attribute_value(use.node, "transB", 0) else 1]


def _normalize(
    graph: onnx.GraphProto, names: Names, node: onnx.NodeProto, channels: int, element_type: int
) -> onnx.NodeProto:
    """The BatchNormalization that takes over the output of a layer."""
    result, layer = node.output[0], label(node)
    node.output[0] = names.fresh(f"{result}/before_normalization")
    values = {"scale": 1.0, "bias": 0.0, "running_mean": 0.0, "running_variance": 1.0 - _EPSILON}
    dtype = helper.tensor_dtype_to_np_dtype(element_type)
    inputs = []
    for what, value in values.items():
        inputs.append(names.fresh(f"{layer}/{what}"))
        graph.initializer.append(numpy_helper.from_array(np.full(channels, value).astype(dtype), inputs[-1]))
    name = names.fresh_node(f"{layer}/normalization")
    return helper.make_node("BatchNormalization", [node.output[0], *inputs], [result], name, epsilon=_EPSILON)
