"""Quantization-aware training: a model that rounds its values as the int8 model that it becomes at export.

Weights are rounded to int8, symmetrically and for each output of a layer by itself; their scales follow the weights, as
nodes of the graph. What flows between layers is rounded to uint8 in ranges that were measured before. Gradients go
straight through the rounding. At export the weights are stored as int8, and biases as int32.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper, version_converter

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.folding import fold_normalizations, output_axis
from onnxtrain.authoring.names import Names
from onnxtrain.authoring.operands import Operands
from onnxtrain.authoring.protos import (
    attribute_value,
    default_opset,
    input_at,
    is_standard,
    keep_only,
    label,
    needed_nodes,
    replace_nodes,
)
from onnxtrain.authoring.readiness import drop_inputs, make_ready
from onnxtrain.authoring.rewrites import promote_constants
from onnxtrain.authoring.roles import Role
from onnxtrain.authoring.selection import listed, select
from onnxtrain.authoring.source import load
from onnxtrain.authoring.surgery import refuse_training_info
from onnxtrain.authoring.survey import Use
from onnxtrain.errors import ModelError, UnsupportedError

Ranges = Mapping[str, tuple[float, float]]

QUANTIZATION_KEY = "onnxtrain.quantization"
_OLDEST_OPSET = 13  # in which the operators got scales for each index of an axis
_LARGEST = 127  # of the magnitudes of int8, which go to either side
_SMALLEST_SCALE = 1e-12  # for outputs whose weights are all zero


@dataclass(frozen=True)
class QuantizedLayer:
    """What export has to know of a layer, by the names of values.

    Attributes:
      weight: the weight.
      axis: the axis of the weight that has a scale for each index.
      scale: of the weight.
      zero_point: of the weight.
      quantized: the weight in int8.
      data_scale: the scale of the layer's input.
      bias: a bias that the layer alone reads; None where there is none.
    """

    weight: str
    axis: int
    scale: str
    zero_point: str
    quantized: str
    data_scale: str
    bias: str | None


def fake_quantize(
    model: str | os.PathLike[str] | onnx.ModelProto, ranges: Ranges, weights: str | Sequence[str] = "*"
) -> onnx.ModelProto:
    """Lets a trained inference model round its values as an int8 model does; `make_trainable` trains it on.

    BatchNormalization is folded into the layers before it, and a model of an opset older than 13, in which quantization
    by channel begins, is converted to that. `session.export` then writes a static int8 model, of
    QuantizeLinear and DequantizeLinear around every layer, which onnxruntime turns into integer operators.

    Args:
      model: a file or a `ModelProto`, which is not changed.
      ranges: the least and the greatest number of each value that is quantized, from `training.calibration.calibrate`.
      weights: patterns over the weights of MatMul, Gemm and Conv, as in `trainable`; the layers of others stay floats.

    Raises:
      ModelError: a pattern matches nothing, a range is missing, or the model has training information.
      UnsupportedError: the model's opset is older than 13, and ONNX cannot convert it.
    """
    proto, layers = _ready(model, weights)
    names = Names(proto)
    inputs = _inputs(proto.graph, layers)
    values = _values(proto.graph, layers)
    missing = [value for value in values if value not in ranges]
    if missing:
        raise ModelError(
            f"The range of {listed(missing)} is not known. Measure all of them: training.calibration.calibrate("
            "model, data)."
        )
    rounding = _Rounding(proto, names)
    scales = {value: rounding.round_value(value, *ranges[value]) for value in values}
    records = [rounding.round_weight(layer, scales[value]) for layer, value in zip(layers, inputs, strict=True)]
    rounding.finish()
    entry = proto.metadata_props.add(key=QUANTIZATION_KEY)
    entry.value = json.dumps([asdict(record) for record in records])
    return proto


def values_to_calibrate(
    model: str | os.PathLike[str] | onnx.ModelProto, weights: str | Sequence[str] = "*"
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The values whose ranges `fake_quantize` needs, and the model as it has it then, in which to measure them.

    They are the inputs and outputs of the layers that are quantized.
    """
    proto, layers = _ready(model, weights)
    return proto, _values(proto.graph, layers)


def store_integers(model: onnx.ModelProto, record: str) -> None:
    """Writes weights as int8 and biases as int32 where the model rounded them; `record` is what it says of itself."""
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    computed: set[str] = set()
    for layer in (QuantizedLayer(**entry) for entry in json.loads(record)):
        quantized, scale = quantize(numpy_helper.to_array(stored[layer.weight]), layer.axis)
        graph.initializer.append(numpy_helper.from_array(quantized, layer.quantized))
        graph.initializer.append(numpy_helper.from_array(scale, layer.scale))
        graph.initializer.append(numpy_helper.from_array(np.zeros(scale.shape, np.int8), layer.zero_point))
        computed |= {layer.quantized, layer.scale, layer.zero_point}
        if layer.bias is not None:
            _store_bias(model, stored[layer.bias], scale * numpy_helper.to_array(stored[layer.data_scale]))
    keep_only(graph.node, lambda node: computed.isdisjoint(node.output))
    _drop_unread(graph)


def quantize(value: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """A weight in int8, and its scale for each index of the axis, as the nodes of the graph compute them."""
    others = tuple(other for other in range(value.ndim) if other != axis)
    scale = np.maximum(np.abs(value).max(others) * np.float32(1 / _LARGEST), np.float32(_SMALLEST_SCALE))
    steps = np.rint(value / np.expand_dims(scale, others))
    return np.clip(steps, -_LARGEST, _LARGEST).astype(np.int8), scale


class _Rounding:
    """Writes the nodes that round, and puts them where they belong among those of the model."""

    def __init__(self, model: onnx.ModelProto, names: Names):
        self._graph = model.graph
        self._builder = GraphBuilder(names, default_opset(model))
        self._after: dict[str, list[onnx.NodeProto]] = {}  # nodes that follow the producer of a value
        self._renamed: dict[str, str] = {}
        self._operands = Operands(model.graph)

    def round_value(self, value: str, low: float, high: float) -> str:
        """Rounds a value to uint8, whose range then has 0 in it; the name of the scale."""
        builder, before = self._builder, len(self._builder.nodes)
        low, high = min(low, 0.0), max(high, 0.0)
        step = (high - low) / 255 or 1.0
        scale = builder.initializer(f"{value}/scale", step, TensorProto.FLOAT)
        zero_point = builder.initializer(f"{value}/zero_point", round(-low / step), TensorProto.UINT8)
        quantized = builder.add("QuantizeLinear", (value, scale, zero_point), f"{value}/quantized")
        self._renamed[value] = builder.add("DequantizeLinear", (quantized, scale, zero_point), f"{value}/dequantized")
        self._after[value] = builder.nodes[before:]
        return scale

    def round_weight(self, layer: onnx.NodeProto, data_scale: str) -> QuantizedLayer:
        """Rounds the weight of a layer to int8, with scales that are computed from it."""
        builder, weight, before = self._builder, layer.input[1], len(self._builder.nodes)
        tensor = self._operands.stored[weight]
        axis = output_axis(layer, len(tensor.dims))
        magnitude = self._magnitude(weight, [other for other in range(len(tensor.dims)) if other != axis])
        # compilers make a product of a division by a constant; written as one, it gives the same scale everywhere
        factor = builder.initializer(f"{weight}/step_factor", 1 / _LARGEST, TensorProto.FLOAT)
        smallest = builder.initializer(f"{weight}/smallest_scale", _SMALLEST_SCALE, TensorProto.FLOAT)
        scale = builder.add("Mul", (magnitude, factor), f"{weight}/step")
        scale = builder.add("Max", (scale, smallest), f"{weight}/scale")
        zero = numpy_helper.from_array(np.zeros(1, np.int8))
        shape = builder.add("Shape", (scale,), f"{weight}/outputs")
        zero_point = builder.add("ConstantOfShape", (shape,), f"{weight}/zero_point", value=zero)
        quantized = builder.add("QuantizeLinear", (weight, scale, zero_point), f"{weight}/quantized", axis=axis)
        result = builder.add("DequantizeLinear", (quantized, scale, zero_point), f"{weight}/dequantized", axis=axis)
        self._renamed[weight] = result
        self._after[weight] = builder.nodes[before:]
        return QuantizedLayer(weight, axis, scale, zero_point, quantized, data_scale, self._own_bias(layer))

    def finish(self) -> None:
        """Lets every node read the rounded values."""
        for node in self._graph.node:
            node.input[:] = [self._renamed.get(name, name) for name in node.input]
        available = [value.name for value in self._graph.input]
        available += [name for name in self._after if name in self._operands.stored]
        ordered = [new for name in dict.fromkeys(available) for new in self._after.get(name, ())]
        for node in self._graph.node:
            ordered.append(node)
            ordered += [new for name in node.output for new in self._after.get(name, ())]
        self._graph.initializer.extend(self._builder.initializers)
        replace_nodes(self._graph, ordered)

    def _magnitude(self, weight: str, axes: Sequence[int]) -> str:
        builder = self._builder
        absolute = builder.add("Abs", (weight,), f"{weight}/absolute")
        if builder.opset < 18:
            return builder.add("ReduceMax", (absolute,), f"{weight}/magnitude", axes=list(axes), keepdims=0)
        stored = builder.integers(f"{weight}/inner_axes", axes)
        return builder.add("ReduceMax", (absolute, stored), f"{weight}/magnitude", keepdims=0)

    def _own_bias(self, layer: onnx.NodeProto) -> str | None:
        """The bias of a layer, if it can be stored as integers: a vector of its own that nothing multiplies."""
        tensor = self._operands.stored.get(input_at(layer, 2))
        is_own = tensor is not None and len(tensor.dims) == 1 and self._operands.count(layer.input[2]) == 1
        factors = attribute_value(layer, "alpha", 1.0), attribute_value(layer, "beta", 1.0)
        return layer.input[2] if is_own and factors == (1.0, 1.0) else None


def _ready(
    model: str | os.PathLike[str] | onnx.ModelProto, weights: str | Sequence[str]
) -> tuple[onnx.ModelProto, list[onnx.NodeProto]]:
    """A copy of the model whose layers can be quantized, and those that a pattern chooses."""
    proto = load(model)
    refuse_training_info(proto)
    if default_opset(proto) < _OLDEST_OPSET and _quantizable(proto.graph):
        proto = _converted(proto)
    names = Names(proto)
    make_ready(proto, names)
    fold_normalizations(proto.graph, names)
    layers = _quantizable(proto.graph)
    if not layers:
        raise ModelError(
            "The model has no layer to quantize: that takes a MatMul, Gemm or Conv in the main graph, whose weight is "
            "a float32 tensor that no other layer reads."
        )
    uses = {name: Use(Role.KERNEL, node, 1, (), frozenset({label(node)})) for name, node in layers.items()}
    chosen = select((weights,) if isinstance(weights, str) else weights, uses, "weights")
    stored = [name for layer in layers.values() for name in layer.input[1:3]]
    promote_constants(proto.graph, stored)
    drop_inputs(proto.graph, set(stored))
    return proto, list(_quantizable(proto.graph, chosen).values())


def _converted(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        converted = version_converter.convert_version(model, _OLDEST_OPSET)
    except (RuntimeError, version_converter.ConvertError) as error:
        raise UnsupportedError(
            f"The model imports opset {default_opset(model)} of ai.onnx, but quantization by channel begins with opset "
            f"{_OLDEST_OPSET}, and ONNX cannot convert the model to that: {error}"
        ) from error
    del converted.metadata_props[:]
    converted.metadata_props.extend(model.metadata_props)
    return converted


def _quantizable(graph: onnx.GraphProto, chosen: set[str] | None = None) -> dict[str, onnx.NodeProto]:
    """The layers whose weight is a float32 tensor that they alone read, by its name."""
    operands, found = Operands(graph), {}
    for node in graph.node:
        if not is_standard(node, "MatMul", "Gemm", "Conv"):
            continue
        tensor = operands.stored.get(node.input[1])
        if tensor is None or node.input[0] in operands.stored or operands.count(node.input[1]) > 1:
            continue
        is_matrix = node.op_type == "Conv" or len(tensor.dims) == 2
        if tensor.data_type == TensorProto.FLOAT and is_matrix and (chosen is None or node.input[1] in chosen):
            found[node.input[1]] = node
    return found


def _values(graph: onnx.GraphProto, layers: Sequence[onnx.NodeProto]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*_inputs(graph, layers), *(end for end in _ends(graph, layers) if end is not None)]))


def _inputs(graph: onnx.GraphProto, layers: Sequence[onnx.NodeProto]) -> list[str]:
    """What each layer reads, before any Dropout: in training that takes values out of the range that was measured."""
    producers = {name: node for node in graph.node for name in node.output}
    values = []
    for layer in layers:
        value = layer.input[0]
        while value in producers and is_standard(producers[value], "Dropout", "Identity"):
            value = producers[value].input[0]
        values.append(value)
    return values


def _ends(graph: onnx.GraphProto, layers: Sequence[onnx.NodeProto]) -> list[str | None]:
    """What each layer gives on, its bias and activation included; None where that is an output of the model."""
    outputs = {value.name for value in graph.output}
    operands = Operands(graph)
    readers = {name: node for node in graph.node for name in node.input}
    ends: list[str | None] = []
    for layer in layers:
        value = layer.output[0]
        if layer.op_type == "MatMul" and operands.count(value) == 1 and _adds_bias(readers.get(value), operands):
            value = readers[value].output[0]
        following = readers.get(value)
        if operands.count(value) == 1 and following is not None and is_standard(following, "Relu", "Clip"):
            value = following.output[0]
        ends.append(None if value in outputs else value)
    return ends


def _adds_bias(node: onnx.NodeProto | None, operands: Operands) -> bool:
    return node is not None and is_standard(node, "Add") and any(name in operands.stored for name in node.input)


def _store_bias(model: onnx.ModelProto, tensor: TensorProto, scale: np.ndarray) -> None:
    """Stores a bias as multiples of the scale that the sums of its layer have."""
    names, graph, name = Names(model), model.graph, tensor.name
    steps = np.rint(numpy_helper.to_array(tensor).astype(np.float64) / scale)
    limits = np.iinfo(np.int32)
    tensor.CopyFrom(numpy_helper.from_array(np.clip(steps, limits.min, limits.max).astype(np.int32)))
    tensor.name = names.fresh(f"{name}/quantized")
    stored = numpy_helper.from_array(scale.astype(np.float32), names.fresh(f"{name}/scale"))
    graph.initializer.append(stored)
    node = onnx.helper.make_node("DequantizeLinear", [tensor.name, stored.name], [name], axis=0)
    graph.node.insert(0, node)


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Drops the nodes and tensors that only led to what is stored now."""
    needed, read = needed_nodes(graph.node, {value.name for value in graph.output})
    replace_nodes(graph, needed)
    keep_only(graph.initializer, lambda tensor: tensor.name in read)
