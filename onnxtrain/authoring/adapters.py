"""Low-rank adapters (LoRA): small tensors beside a weight, which train in its place.

A layer with an adapter is a call of a local function, which holds the layer as it was and adds what the adapter makes
of its input:

    y = layer(x) + alpha / rank * (dropout(x) A) B

`A` is drawn and `B` is zero, so that at first nothing changes. Merging adds the product of `A` and `B` to the weight,
and puts the layer back in the place of the call.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxtrain.authoring.initializers import Initialization, draw
from onnxtrain.authoring.names import Names
from onnxtrain.authoring.operands import Operand, Operands
from onnxtrain.authoring.protos import (
    FLOAT_TYPES,
    attribute_value,
    constant_tensor,
    default_opset,
    is_standard,
    keep_only,
)
from onnxtrain.authoring.roles import Role
from onnxtrain.authoring.schemes import KEEP, Scheme, VarianceScaling
from onnxtrain.authoring.selection import select
from onnxtrain.authoring.survey import Use
from onnxtrain.authoring.weights import Weight, influential_values
from onnxtrain.errors import ModelError
from onnxtrain.graph import tensors

ADAPTER_DOMAIN = "onnxtrain.adapters"

_IR_WITH_FUNCTIONS = 8
_DROPOUT_WITH_INPUT = 12  # the opset in which Dropout got its ratio as an input
_SCHEME = VarianceScaling(1 / 3, "in", "uniform")  # up to one over the square root of the number of inputs


@dataclass(frozen=True)
class LoRA:
    """Which weights get adapters, and of what kind.

    Attributes:
      weights: patterns as in `trainable`, over the stored matrices of MatMul and Gemm and the kernels of Conv without
        groups, where one layer alone reads them.
      rank: the size between `A` and `B`.
      alpha: the adapter is scaled by alpha / rank.
      dropout: the share of the layer's input that the adapter does not see in a step of training.
    """

    weights: str | Sequence[str] = "*"
    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.rank < 1 or not 0 <= self.dropout < 1:
            raise ModelError(f"{self} needs a rank of 1 or more, and a dropout of 0 or more and below 1.")


@dataclass(frozen=True)
class Strength:
    """How an adapter acts on its layer.

    Attributes:
      scale: alpha / rank.
      dropout: the share of inputs that are dropped in training.
    """

    scale: float
    dropout: float = 0.0


@dataclass(frozen=True)
class Layer:
    """A layer that can have an adapter.

    Attributes:
      node: a MatMul, Gemm or Conv.
      weight: its second input.
      tensor: where that is stored.
    """

    node: onnx.NodeProto
    weight: Operand
    tensor: TensorProto

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape of the weight as the layer reads it."""
        return tuple(self.tensor.dims[axis] for axis in self.weight.axes)

    @property
    def is_turned(self) -> bool:
        """Whether the layer reads its matrix as [outputs, inputs]."""
        return self.node.op_type == "Gemm" and bool(attribute_value(self.node, "transB", 0))

    def adapter_dims(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of `A` and `B`: matrices [inputs, rank] and [rank, outputs], or a kernel and one of size 1."""
        if self.node.op_type == "Conv":
            outputs, inputs, *window = self.dims
            return (rank, inputs, *window), (outputs, rank, *(1 for _ in window))
        inputs, outputs = self.dims[::-1] if self.is_turned else self.dims
        return (inputs, rank), (rank, outputs)

    def fresh_values(self, rank: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """`A` and `B` of an adapter that changes nothing yet."""
        first, second = self.adapter_dims(rank)
        matmul_or_conv = onnx.NodeProto(op_type="Conv" if self.node.op_type == "Conv" else "MatMul")
        weight = Weight(
            "A", self.tensor.data_type, first, Use(Role.KERNEL, matmul_or_conv, 1, first, places=frozenset())
        )
        return draw([weight], {"A": _SCHEME}, seed)["A"], np.zeros(second, numpy_helper.to_array(self.tensor).dtype)

    def add(self, first: np.ndarray, second: np.ndarray, scale: float) -> None:
        """Adds what an adapter does to the stored weight."""
        first, second = first.astype(np.float64), second.astype(np.float64)
        if self.node.op_type == "Conv":
            change = np.tensordot(second.reshape(second.shape[:2]), first, 1)
        else:
            change = (first @ second).T if self.is_turned else first @ second
        value = numpy_helper.to_array(self.tensor)
        changed = value.astype(np.float64) + scale * change.transpose(np.argsort(self.weight.axes))
        tensors.store(self.tensor, changed.astype(value.dtype))


@dataclass(frozen=True)
class Adapter:
    """An adapter in a model.

    Attributes:
      node: the call that stands for the layer.
      layer: the layer, which the function of that call holds.
      strength: how it acts.
    """

    node: onnx.NodeProto
    layer: Layer
    strength: Strength

    @property
    def names(self) -> tuple[str, str]:
        """The names of `A` and `B`."""
        return self.node.input[-2], self.node.input[-1]


def find_layers(graph: onnx.GraphProto) -> dict[str, Layer]:
    """The layers of the main graph that can have an adapter, by the name of their weight."""
    operands = Operands(graph)
    found = {}
    for node in graph.node:
        if not is_standard(node, "MatMul", "Gemm", "Conv") or attribute_value(node, "group", 1) != 1:
            continue
        weight = operands.find(node.input[1])
        if weight is None or operands.has_other_readers(weight):
            continue
        tensor = operands.stored[weight.tensor]
        if tensor.data_type in FLOAT_TYPES and (node.op_type == "Conv" or len(tensor.dims) == 2):
            found[weight.tensor] = Layer(node, weight, tensor)
    return found


def insert_adapters(model: onnx.ModelProto, names: Names, lora: LoRA, outputs: Collection[str], seed: int) -> None:
    """Gives every chosen weight of the main graph that influences `outputs` an adapter that changes nothing yet.

    Raises:
      ModelError: a pattern matches no weight that can have one.
    """
    reached = influential_values(model.graph, outputs)
    layers = {name: layer for name, layer in find_layers(model.graph).items() if layer.node.output[0] in reached}
    if not layers:
        raise ModelError(
            f"No weight that influences {', '.join(map(repr, sorted(outputs)))} can have an adapter: that "
            "takes a MatMul, Gemm or Conv without "
            "groups in the main graph, whose weight is a float tensor that no other layer reads."
        )
    uses = {name: Use(Role.KERNEL, layer.node, 1, layer.dims, _places(layer)) for name, layer in layers.items()}
    patterns = (lora.weights,) if isinstance(lora.weights, str) else lora.weights
    chosen = select(patterns, uses, "adapters")
    strength = Strength(lora.alpha / lora.rank, lora.dropout)
    for index, (name, layer) in enumerate(layers.items()):
        if name in chosen:
            insert_adapter(model, names, layer, strength, layer.fresh_values(lora.rank, seed + index))


def insert_adapter(
    model: onnx.ModelProto, names: Names, layer: Layer, strength: Strength, values: Sequence[np.ndarray]
) -> None:
    """Puts a call, with `A` and `B` of these values, in the place of a layer."""
    node, weight = layer.node, layer.weight.tensor
    called = _add_function(model, _function(layer, default_opset(model), strength))
    for suffix, value in zip("AB", values, strict=True):
        node.input.append(names.fresh(f"{weight}/lora_{suffix}"))
        model.graph.initializer.append(numpy_helper.from_array(value, node.input[-1]))
    node.op_type, node.domain = called, ADAPTER_DOMAIN
    del node.attribute[:]
    model.ir_version = max(model.ir_version, _IR_WITH_FUNCTIONS)
    if all(entry.domain != ADAPTER_DOMAIN for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(ADAPTER_DOMAIN, 1))


def find_adapters(model: onnx.ModelProto) -> Iterator[Adapter]:
    """The adapters of a model, in the order of its nodes."""
    bodies = {body.name: body for body in model.functions if body.domain == ADAPTER_DOMAIN}
    operands = Operands(model.graph)
    for node in model.graph.node:
        if node.domain == ADAPTER_DOMAIN:
            body, weight = bodies[node.op_type], operands.find(node.input[1])
            if weight is None:
                raise ModelError(f"The adapted weight {node.input[1]!r} must be stored in the model.")
            layer = Layer(_layer_in(body, node), weight, operands.stored[weight.tensor])
            yield Adapter(node, layer, _strength_of(body))


def adapter_names(graph: onnx.GraphProto, outputs: Collection[str]) -> tuple[str, ...]:
    """The names of the tensors of all adapters that influence `outputs`."""
    reached = influential_values(graph, outputs)
    calls = [node for node in graph.node if node.domain == ADAPTER_DOMAIN and node.output[0] in reached]
    return tuple(name for node in calls for name in node.input[-2:])


def fresh_adapters(graph: onnx.GraphProto, trained: Container[str], initialize: Initialization) -> Initialization:
    """Where all weights are drawn anew: draws adapters such that they change nothing."""
    if isinstance(initialize, Mapping) or initialize == KEEP:
        return initialize
    schemes: dict[str, str | Scheme] = {}
    for node in graph.node:
        if node.domain == ADAPTER_DOMAIN:
            schemes |= {node.input[-2]: _SCHEME, node.input[-1]: "zeros"}
    return {**{name: scheme for name, scheme in schemes.items() if name in trained}, "*": initialize}


def merge_in_place(model: onnx.ModelProto) -> None:
    """Adds every adapter to its weight, and puts the layers back where they were."""
    adapters = list(find_adapters(model))
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    merged = {name for adapter in adapters for name in adapter.names}
    for adapter in adapters:
        first, second = (numpy_helper.to_array(stored[name]) for name in adapter.names)
        adapter.layer.add(first, second, adapter.strength.scale)
        adapter.node.CopyFrom(adapter.layer.node)
    keep_only(model.graph.initializer, lambda tensor: tensor.name not in merged)
    keep_only(model.functions, lambda body: body.domain != ADAPTER_DOMAIN)
    keep_only(model.opset_import, lambda entry: entry.domain != ADAPTER_DOMAIN)


def _places(layer: Layer) -> frozenset[str]:
    return frozenset({layer.node.name or layer.node.output[0]})


def _function(layer: Layer, opset: int, strength: Strength) -> onnx.FunctionProto:
    """The layer and its adapter; the name is that of the operator, to be made unique."""
    node, data = layer.node, "data"
    inputs = ["data", "weight", "bias"][: len(node.input)]
    given = [formal if actual else "" for formal, actual in zip(inputs, node.input, strict=True)]
    own = onnx.NodeProto(op_type=node.op_type, input=given, output=["own"], attribute=node.attribute)
    if node.HasField("domain"):
        own.domain = node.domain
    nodes = [own]
    if attribute_value(node, "transA", 0):
        nodes.append(helper.make_node("Transpose", [data], ["turned"], perm=[1, 0]))
        data = "turned"
    if strength.dropout:
        nodes += _dropout(data, opset, strength.dropout)
        data = "seen"
    if node.op_type == "Conv":
        window = [attribute for attribute in node.attribute if attribute.name != "group"]
        nodes.append(onnx.NodeProto(op_type="Conv", input=[data, "lora_A"], output=["low"], attribute=window))
        nodes.append(helper.make_node("Conv", ["low", "lora_B"], ["high"]))
    else:
        nodes.append(helper.make_node("MatMul", [data, "lora_A"], ["low"]))
        nodes.append(helper.make_node("MatMul", ["low", "lora_B"], ["high"]))
    # a Gemm multiplies all that comes of its weight by its own alpha
    scale = np.asarray(strength.scale * attribute_value(node, "alpha", 1.0))
    scale = scale.astype(helper.tensor_dtype_to_np_dtype(layer.tensor.data_type))
    nodes.append(helper.make_node("Constant", [], ["scale"], value=numpy_helper.from_array(scale)))
    nodes.append(helper.make_node("Mul", ["high", "scale"], ["change"]))
    nodes.append(helper.make_node("Add", ["own", "change"], ["result"]))
    return helper.make_function(
        ADAPTER_DOMAIN,
        f"{node.op_type}WithAdapter",
        [*inputs, "lora_A", "lora_B"],
        ["result"],
        nodes,
        [helper.make_opsetid("", opset)],
        doc_string=f"{node.op_type} with a low-rank adapter of scale {strength.scale:g}.",
    )


def _dropout(data: str, opset: int, ratio: float) -> list[onnx.NodeProto]:
    if opset < _DROPOUT_WITH_INPUT:
        return [helper.make_node("Dropout", [data], ["seen"], ratio=ratio)]
    value = numpy_helper.from_array(np.asarray(ratio, np.float32))
    return [
        helper.make_node("Constant", [], ["ratio"], value=value),
        helper.make_node("Dropout", [data, "ratio"], ["seen"]),
    ]


def _strength_of(body: onnx.FunctionProto) -> Strength:
    constants = {node.output[0]: tensor for node in body.node if (tensor := constant_tensor(node)) is not None}
    scale = float(numpy_helper.to_array(constants["scale"])) / attribute_value(body.node[0], "alpha", 1.0)
    if "ratio" in constants:
        return Strength(scale, float(numpy_helper.to_array(constants["ratio"])))
    return Strength(scale, sum(attribute_value(node, "ratio", 0.5) for node in body.node if node.op_type == "Dropout"))


def _layer_in(body: onnx.FunctionProto, call: onnx.NodeProto) -> onnx.NodeProto:
    """The layer that a call stands for, as it was before it got its adapter."""
    node = onnx.NodeProto()
    node.CopyFrom(call)
    del node.input[-2:]
    own = body.node[0]
    node.op_type = own.op_type
    node.attribute.extend(own.attribute)
    node.ClearField("domain")
    if own.HasField("domain"):
        node.domain = own.domain
    return node


def _add_function(model: onnx.ModelProto, body: onnx.FunctionProto) -> str:
    """Adds a function to the model, unless it has the same one already; the name of the function."""
    known = {other.name: other for other in model.functions if other.domain == ADAPTER_DOMAIN}
    wanted, count = body.name, 0
    while body.name in known and known[body.name] != body:
        count += 1
        body.name = f"{wanted}_{count}"
    if body.name not in known:
        model.functions.append(body)
    return body.name
