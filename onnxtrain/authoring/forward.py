"""The training-mode forward pass.

BatchNormalization and Dropout of the inference graph stay in inference mode (T-21). Where the loss depends on them, the
algorithm gets a copy of every node from the first of them on, in which they are in training mode; what comes before is
read from the inference graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper, inliner, numpy_helper

from onnxtrain.authoring import normalization
from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.protos import (
    attribute_value,
    describe,
    every_node,
    input_at,
    is_standard,
    needed_nodes,
    output_at,
    reads,
    stored_tensors,
    subgraphs,
)
from onnxtrain.authoring.selection import listed
from onnxtrain.authoring.state import Update
from onnxtrain.authoring.value_types import Types, without_large_tensors
from onnxtrain.errors import UnsupportedError

_DROPOUT_WITH_MODE = 12  # the opset in which Dropout got its input `training_mode`


class TrainingForward:
    """Writes the nodes of the training-mode forward pass into an algorithm.

    Attributes:
      renamed: each inference value that the pass computes anew, and the name of its counterpart.
      statistics: the running statistics that the pass brings up to date.
      normalized: for each of them, the scale and the bias of the BatchNormalization that it belongs to.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        types: Types,
        targets: Collection[str],
        trained: Collection[str],
        builder: GraphBuilder,
        dropouts: Mapping[str, float],
    ):
        self.renamed: dict[str, str] = {}
        self.normalized: dict[str, frozenset[str]] = {}
        self._types = types
        self._builder = builder
        self._trained = frozenset(trained)
        self._stored = stored_tensors(model.graph)
        self._latest: dict[str, str] = {}  # running statistics, and what they are after the nodes so far
        self._initial: dict[str, float] = {}
        self._dropouts = dropouts  # ratios by value name
        needed, _ = needed_nodes(_without_function_calls(model), targets)
        self._drop_new(value.name for value in model.graph.input)
        self._copy(needed, _value_names(model.graph))
        self.statistics = tuple(self._update(name, value) for name, value in self._latest.items())

    def _copy(self, nodes: Iterable[onnx.NodeProto], inference: frozenset[str]) -> None:
        for node in nodes:
            is_new = inference.isdisjoint(node.output)
            if is_new or self._differs(node) or not reads(node).isdisjoint(self.renamed):
                self._write(node, self._builder, self.renamed)
            if not is_standard(node, "Dropout"):  # one that is there already has its ratio
                self._drop_new(node.output)

    def _drop_new(self, names: Iterable[str]) -> None:
        """Writes a Dropout that the model does not have for each of these values that has a ratio."""
        for name in names:
            if self._dropouts.get(name):
                node = helper.make_node("Dropout", [name], [name], f"dropout/{name}")
                self._write_dropout(node, self._builder, self.renamed)

    def _update(self, name: str, value: str) -> Update:
        tensor = self._stored[name]
        return Update(name, value, tensor.data_type, tuple(tensor.dims), self._initial[name])

    def _differs(self, node: onnx.NodeProto) -> bool:
        """Whether a node computes something else in training mode."""
        changes = self._normalizes_batch(node) or self._drops(node)
        return changes or any(self._differs(inner) for graph in subgraphs(node) for inner in graph.node)

    def _normalizes_batch(self, node: onnx.NodeProto) -> bool:
        """Whether a BatchNormalization is trained: a frozen one keeps its running statistics and goes on using them."""
        if not is_standard(node, "BatchNormalization"):
            return False
        scale_and_bias = [name for name in node.input[1:3] if name in self._stored]
        is_frozen = bool(scale_and_bias) and self._trained.isdisjoint(scale_and_bias)
        return not is_frozen and all(name in self._stored for name in node.input[3:5])

    def _drops(self, node: onnx.NodeProto) -> bool:
        if not is_standard(node, "Dropout") or input_at(node, 2):
            return False  # whoever feeds `training_mode` has decided
        return self._ratio(node) != 0.0

    def _ratio(self, node: onnx.NodeProto) -> float | None:
        """The share of values that a Dropout drops; None where the model computes it."""
        if node.output[0] in self._dropouts:
            return self._dropouts[node.output[0]]
        given = input_at(node, 1)
        if not given:
            return attribute_value(node, "ratio", 0.5)
        return float(numpy_helper.to_array(self._stored[given])) if given in self._stored else None

    def _write(self, node: onnx.NodeProto, builder: GraphBuilder, renamed: dict[str, str]) -> None:
        if self._normalizes_batch(node):
            self._write_normalization(node, builder, renamed)
        elif self._drops(node):
            self._write_dropout(node, builder, renamed)
        else:
            copy, outside = self._twin(node, renamed), dict(renamed)
            self._name_anew(copy, renamed)
            self._rewrite_bodies(copy, builder, outside)
            builder.nodes.append(copy)

    def _twin(self, node: onnx.NodeProto, renamed: Mapping[str, str]) -> onnx.NodeProto:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = f"training/{node.name or node.op_type}"
        copy.input[:] = [renamed.get(name, name) for name in node.input]
        return copy

    def _name_anew(self, node: onnx.NodeProto, renamed: dict[str, str]) -> None:
        node.name = self._builder.names.fresh_node(node.name)
        for index, name in enumerate(node.output):
            if name:
                node.output[index] = renamed[name] = self._builder.names.fresh(f"{name}/training")

    def _rewrite_bodies(self, node: onnx.NodeProto, builder: GraphBuilder, renamed: Mapping[str, str]) -> None:
        """Puts the subgraphs of a node into training mode; running statistics that they update leave it as outputs."""
        statistics = list(dict.fromkeys(self._statistics_inside(node)))
        if statistics and not is_standard(node, "If", "Loop", "Scan"):
            raise UnsupportedError(
                f"{describe(node)} holds a BatchNormalization whose running statistics {listed(statistics)} cannot be "
                "updated from there. Freeze its scale and bias, by name in `frozen`."
            )
        if not statistics:
            for body in subgraphs(node):
                self._rewrite_body(body, builder, renamed)
        elif node.op_type == "If":
            self._update_in_branches(node, statistics, builder, renamed)
        else:
            self._update_in_loop(node, statistics, builder, renamed)

    def _statistics_inside(self, node: onnx.NodeProto) -> Iterator[str]:
        inner = (one for body in subgraphs(node) for one in every_node(body.node))
        return (name for one in inner if self._normalizes_batch(one) for name in one.input[3:5])

    def _rewrite_body(self, graph: onnx.GraphProto, builder: GraphBuilder, renamed: Mapping[str, str]) -> None:
        inner, names = builder.nested(), dict(renamed)
        for node in graph.node:
            self._write(node, inner, names)
        del graph.node[:]
        graph.node.extend(inner.nodes)
        del graph.value_info[:]
        for value in graph.output:
            value.name = names.get(value.name, value.name)

    def _update_in_branches(
        self, node: onnx.NodeProto, statistics: Sequence[str], builder: GraphBuilder, renamed: Mapping[str, str]
    ) -> None:
        """Lets both branches of an If give the running statistics, also the one that leaves them as they were."""
        before = dict(self._latest)
        for body in subgraphs(node):
            self._latest = dict(before)
            self._rewrite_body(body, builder, renamed)
            for name in statistics:
                value = self._latest.get(name, name)
                if value == before.get(name, name):  # a branch can give no value of the graph around it
                    value = builder.names.fresh(f"{name}/kept")
                    body.node.append(helper.make_node("Identity", [before.get(name, name)], [value]))
                body.output.append(self._declared(name, value))
        self._latest = {**before, **self._give(node, len(node.output), statistics)}

    def _update_in_loop(
        self, node: onnx.NodeProto, statistics: Sequence[str], builder: GraphBuilder, renamed: Mapping[str, str]
    ) -> None:
        """Lets a Loop or Scan carry the running statistics from one iteration to the next."""
        (body,) = subgraphs(node)
        before = dict(self._latest)
        formal = {name: builder.names.fresh(f"{name}/carried") for name in statistics}
        self._latest = {**before, **formal}
        self._rewrite_body(body, builder, renamed)
        # a Loop hands its body the iteration and the condition before, and takes the condition back
        is_loop = node.op_type == "Loop"
        carried = len(node.input) - (2 if is_loop else attribute_value(node, "num_scan_inputs"))
        place = carried + (2 if is_loop else 0)
        _insert(node.input, place, [before.get(name, name) for name in statistics])
        _insert(body.input, place, [self._declared(name, value) for name, value in formal.items()])
        _insert(body.output, carried + is_loop, [self._declared(name, self._latest[name]) for name in statistics])
        self._latest = {**before, **self._give(node, carried, statistics)}

    def _give(self, node: onnx.NodeProto, place: int, statistics: Sequence[str]) -> dict[str, str]:
        """Adds outputs for the running statistics to a node."""
        node.output.extend([""] * (place - len(node.output)))
        given = {name: self._builder.names.fresh(f"{name}/updated") for name in statistics}
        _insert(node.output, place, list(given.values()))
        return given

    def _declared(self, name: str, value: str) -> onnx.ValueInfoProto:
        tensor = self._stored[name]
        return helper.make_tensor_value_info(value, tensor.data_type, tensor.dims)

    def _write_normalization(self, node: onnx.NodeProto, builder: GraphBuilder, renamed: dict[str, str]) -> None:
        twin = self._twin(node, renamed)
        # a module that is applied twice updates its statistics twice, one after the other
        twin.input[3:5] = [self._latest.get(name, name) for name in node.input[3:5]]
        result = normalization.write_training(twin, builder, self._stored[node.input[3]].data_type)
        renamed[node.output[0]] = result.output
        mean, variance = node.input[3:5]
        self._latest.update({mean: result.mean, variance: result.variance})
        self._initial.update({mean: 0.0, variance: 1.0})
        self.normalized.update({name: frozenset(node.input[1:3]) for name in (mean, variance)})

    def _write_dropout(self, node: onnx.NodeProto, builder: GraphBuilder, renamed: dict[str, str]) -> None:
        twin = self._twin(node, renamed)
        if builder.opset >= _DROPOUT_WITH_MODE:
            ratio = input_at(twin, 1)
            if node.output[0] in self._dropouts:
                ratio = builder.initializer(f"{twin.name}/ratio", self._dropouts[node.output[0]], TensorProto.FLOAT)
            mode = builder.initializer(f"{twin.name}/training_mode", True, TensorProto.BOOL)
            twin.input[:] = [twin.input[0], ratio, mode]
            self._name_anew(twin, renamed)
            builder.nodes.append(twin)
        else:
            element_type = self._types.element_type(node.input[0]) or TensorProto.FLOAT
            output, mask = _write_dropout_in_parts(twin, builder, self._ratio(node) or 0.0, element_type)
            renamed[node.output[0]] = output
            if output_at(node, 1):
                renamed[node.output[1]] = mask


def _insert(field: MutableSequence[Any], place: int, values: Iterable[Any]) -> None:
    """Inserts into a repeated field of a message."""
    entries = list(field)
    del field[:]
    field.extend([*entries[:place], *values, *entries[place:]])


def _write_dropout_in_parts(
    twin: onnx.NodeProto, builder: GraphBuilder, ratio: float, element_type: int
) -> tuple[str, str]:
    """Dropout of an opset in which the operator knows no training mode: the names of its output and its mask."""
    data, name = twin.input[0], twin.name
    noise = builder.add("RandomUniformLike", (data,), f"{name}/noise", name=name, dtype=TensorProto.FLOAT)
    threshold = builder.initializer(f"{name}/ratio", ratio, TensorProto.FLOAT)
    dropped = builder.add("Less", (noise, threshold), f"{name}/dropped")
    mask = builder.add("Not", (dropped,), f"{name}/mask")
    scale = builder.initializer(f"{name}/scale", 1.0 / (1.0 - ratio), element_type)
    factor = builder.add("Mul", (builder.cast(mask, element_type, f"{name}/kept"), scale), f"{name}/factor")
    return builder.add("Mul", (data, factor), f"{twin.output[0]}/training"), mask


def _value_names(graph: onnx.GraphProto) -> frozenset[str]:
    return frozenset(name for node in graph.node for name in node.output if name)


def _without_function_calls(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes of the main graph, with calls of functions that hold BatchNormalization or Dropout written out."""
    changing = _changing_functions(model)
    if not changing:
        return list(model.graph.node)
    inlined = inliner.inline_selected_functions(without_large_tensors(model), sorted(changing), exclude=False)
    left = next((node for node in inlined.graph.node if (node.domain, node.op_type) in changing), None)
    if left is not None:
        raise UnsupportedError(
            f"{describe(left)} calls a function with BatchNormalization or Dropout that imports other opsets than the "
            "model. Inline the function before (onnx.inliner)."
        )
    return list(inlined.graph.node)


def _changing_functions(model: onnx.ModelProto) -> set[tuple[str, str]]:
    """(domain, name) of the functions that hold BatchNormalization or Dropout, themselves or in what they call."""
    found: set[tuple[str, str]] = set()
    while True:
        new = {
            (body.domain, body.name) for body in model.functions if any(_calls(node, found) for node in body.node)
        } - found
        if not new:
            return found
        found |= new


def _calls(node: onnx.NodeProto, functions: Collection[tuple[str, str]]) -> bool:
    if is_standard(node, "BatchNormalization", "Dropout") or (node.domain, node.op_type) in functions:
        return True
    return any(_calls(inner, functions) for graph in subgraphs(node) for inner in graph.node)
