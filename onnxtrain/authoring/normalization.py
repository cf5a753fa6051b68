"""BatchNormalization in training mode, at every opset.

The running statistics follow ONNX: `running * momentum + batch * (1 - momentum)`, with the variance of the population.
PyTorch uses the unbiased variance here, and its momentum is one minus ONNX's.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.protos import attribute_value, describe
from onnxtrain.errors import UnsupportedError

_WITH_TRAINING_MODE = 14  # the opset in which the operator got its attribute `training_mode`


@dataclass(frozen=True)
class BatchResult:
    """Names of what a BatchNormalization computes in training mode."""

    output: str
    mean: str
    variance: str


def write_training(node: onnx.NodeProto, builder: GraphBuilder, element_type: int) -> BatchResult:
    """Writes what `node` computes in training mode; its inputs are named already, its output gets a new name."""
    output = f"{node.output[0]}/training"
    attributes = {"epsilon": attribute_value(node, "epsilon", 1e-5), "momentum": attribute_value(node, "momentum", 0.9)}
    if builder.opset >= _WITH_TRAINING_MODE:
        names = (output, f"{node.name}/mean", f"{node.name}/variance")
        written = builder.add_node(node.op_type, node.input, names, name=node.name, training_mode=1, **attributes)
        return BatchResult(*written)
    if not attribute_value(node, "spatial", 1):
        raise UnsupportedError(
            f"{describe(node)} normalizes every activation by itself (spatial=0), which ONNX dropped in opset 9. "
            "Freeze its scale and bias."
        )
    return _write_in_parts(node, builder, output, element_type, **attributes)


def _write_in_parts(
    node: onnx.NodeProto, builder: GraphBuilder, output: str, element_type: int, *, epsilon: float, momentum: float
) -> BatchResult:
    """The training mode in elementary operators, over the data as [batch, channels, everything else]."""
    data, scale, bias, running_mean, running_variance = node.input
    name = node.name
    flat = builder.add("Reshape", (data, builder.integers(f"{name}/flat_shape", (0, 0, -1))), f"{name}/flat", name=name)
    mean = builder.mean(flat, f"{name}/batch_mean", axes=(0, 2), keepdims=1)
    centred = builder.add("Sub", (flat, mean), f"{name}/centred")
    squared = builder.add("Mul", (centred, centred), f"{name}/squared")
    variance = builder.mean(squared, f"{name}/batch_variance", axes=(0, 2), keepdims=1)
    small = builder.initializer(f"{name}/epsilon", epsilon, element_type)
    deviation = builder.add("Sqrt", (builder.add("Add", (variance, small), f"{name}/shifted"),), f"{name}/deviation")
    normalized = builder.add("Div", (centred, deviation), f"{name}/normalized")
    by_channel = builder.integers(f"{name}/by_channel", (-1, 1))
    scale = builder.add("Reshape", (scale, by_channel), f"{name}/scale")
    bias = builder.add("Reshape", (bias, by_channel), f"{name}/bias")
    moved = builder.add("Add", (builder.add("Mul", (normalized, scale), f"{name}/scaled"), bias), f"{name}/moved")
    result = builder.add("Reshape", (moved, builder.add("Shape", (data,), f"{name}/shape")), output)
    blend = _Blend(builder, name, momentum, element_type)
    return BatchResult(
        output=result,
        mean=blend.write(running_mean, mean, "mean"),
        variance=blend.write(running_variance, variance, "variance"),
    )


class _Blend:
    """Moves running statistics towards those of the batch."""

    def __init__(self, builder: GraphBuilder, name: str, momentum: float, element_type: int):
        self._builder = builder
        self._name = name
        self._keep = builder.initializer(f"{name}/keep", momentum, element_type)
        self._take = builder.initializer(f"{name}/take", 1.0 - momentum, element_type)
        self._vector = builder.integers(f"{name}/vector", (-1,))

    def write(self, running: str, batch: str, what: str) -> str:
        builder, name = self._builder, f"{self._name}/{what}"
        flat = builder.add("Reshape", (batch, self._vector), f"{name}/flat")
        old = builder.add("Mul", (running, self._keep), f"{name}/kept")
        new = builder.add("Mul", (flat, self._take), f"{name}/taken")
        return builder.add("Add", (old, new), name)
