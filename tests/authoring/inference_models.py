"""Small inference models, as exporters write them, for the tests of authoring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

OPSETS = range(7, 29)


def weights(name: str, *shape: int, dtype: str = "float32", seed: int | None = None) -> TensorProto:
    """An initializer of small random numbers that depend on its name alone."""
    generator = np.random.default_rng(sum(name.encode()) if seed is None else seed)
    return numpy_helper.from_array(generator.normal(0, 0.5, shape).astype(dtype), name)


def vector(name: str, *values: float) -> TensorProto:
    """A float32 initializer with these values."""
    return numpy_helper.from_array(np.asarray(values, np.float32), name)


def integers(name: str, *values: int) -> TensorProto:
    """An int64 initializer with these values."""
    return numpy_helper.from_array(np.asarray(values, np.int64), name)


def floats(name: str, *shape: int | str, element_type: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """The declaration of a float value."""
    return helper.make_tensor_value_info(name, element_type, shape)


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[TensorProto] = (),
    *,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    ir_version: int = 8,
) -> onnx.ModelProto:
    """A model of these parts."""
    graph = helper.make_graph(nodes, "network", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(body.domain, 1) for body in functions)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, functions=functions)


def mlp(opset: int = 17, *, softmax: bool = False, dtype: str = "float32") -> onnx.ModelProto:
    """Two layers, 4 features to 3 classes."""
    nodes = [
        helper.make_node("Gemm", ["x", "W1", "b1"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "W2", "b2"], ["scores"], transB=1),
    ]
    if softmax:
        nodes.append(helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1))
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    initializers = [weights("W1", 4, 5, dtype=dtype), weights("b1", 5, dtype=dtype)]
    initializers += [weights("W2", 3, 5, dtype=dtype), weights("b2", 3, dtype=dtype)]
    return model_of(
        nodes,
        [floats("x", "batch", 4, element_type=element_type)],
        [floats(nodes[-1].output[0], "batch", 3, element_type=element_type)],
        initializers,
        opset=opset,
    )


def convolutional(opset: int = 17, *, ratio: float = 0.25) -> onnx.ModelProto:
    """Two convolutions with BatchNormalization, then Dropout and a dense layer: [N, 1, 6, 6] to 3 classes."""
    dropout = helper.make_node("Dropout", ["flat"], ["kept"], "dropout", ratio=ratio)
    initializers = []
    if opset >= 12:
        dropout = helper.make_node("Dropout", ["flat", "ratio"], ["kept"], "dropout")
        initializers.append(numpy_helper.from_array(np.asarray(ratio, np.float32), "ratio"))
    nodes = []
    value = "x"
    for index, (channels, filters) in enumerate([(1, 4), (4, 2)], start=1):
        nodes += [
            helper.make_node("Conv", [value, f"kernel{index}"], [f"conv{index}"], f"conv{index}"),
            helper.make_node(
                "BatchNormalization",
                [f"conv{index}", f"scale{index}", f"bias{index}", f"mean{index}", f"variance{index}"],
                [f"normal{index}"],
                f"norm{index}",
                momentum=0.8,
            ),
            helper.make_node("Relu", [f"normal{index}"], [f"active{index}"]),
        ]
        value = f"active{index}"
        initializers += [
            weights(f"kernel{index}", filters, channels, 3, 3),
            vector(f"scale{index}", *np.linspace(0.5, 1.5, filters)),
            weights(f"bias{index}", filters),
            weights(f"mean{index}", filters),
            vector(f"variance{index}", *np.linspace(0.8, 1.2, filters)),
        ]
    nodes += [
        helper.make_node("Flatten", ["active2"], ["flat"]),
        dropout,
        helper.make_node("Gemm", ["kept", "W", "b"], ["scores"]),
    ]
    initializers += [weights("W", 8, 3), weights("b", 3)]
    return model_of(nodes, [floats("x", "N", 1, 6, 6)], [floats("scores", "N", 3)], initializers, opset=opset)


def as_ir_3(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as an old exporter writes it: every initializer is also an input."""
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return model


def with_constant_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its weights in Constant nodes, as PaddlePaddle writes them."""
    constants = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in model.graph.initializer]
    nodes = [*constants, *model.graph.node]
    return model_of(
        nodes, model.graph.input, model.graph.output, opset=model.opset_import[0].version, ir_version=model.ir_version
    )


def with_branches() -> onnx.ModelProto:
    """A dense layer inside each branch of an If, with the same names inside, and one layer after it."""

    def branch(seed: int) -> onnx.GraphProto:
        nodes = [
            helper.make_node("Constant", [], ["b"], value=weights("b", 3, seed=seed + 1)),
            helper.make_node("Gemm", ["x", "W", "b"], [f"result{seed}"]),
        ]
        return helper.make_graph(
            nodes, f"branch{seed}", [], [floats(f"result{seed}", "N", 3)], [weights("W", 4, 3, seed=seed)]
        )

    nodes = [
        helper.make_node("If", ["choice"], ["chosen"], then_branch=branch(1), else_branch=branch(5)),
        helper.make_node("MatMul", ["chosen", "W_last"], ["scores"]),
    ]
    choice = helper.make_tensor_value_info("choice", TensorProto.BOOL, [])
    return model_of(
        nodes, [choice, floats("x", "N", 4)], [floats("scores", "N", 3)], [weights("W_last", 3, 3)], opset=17
    )


def with_function() -> onnx.ModelProto:
    """A model that calls a function with BatchNormalization and Dropout."""
    body = [
        helper.make_node("BatchNormalization", ["value", "s", "t", "m", "v"], ["normal"]),
        helper.make_node("Dropout", ["normal"], ["result"]),
    ]
    block = helper.make_function(
        "local", "Block", ["value", "s", "t", "m", "v"], ["result"], body, [helper.make_opsetid("", 17)]
    )
    nodes = [
        helper.make_node("MatMul", ["x", "W1"], ["hidden"]),
        helper.make_node("Block", ["hidden", "scale", "bias", "mean", "variance"], ["inner"], domain="local"),
        helper.make_node("MatMul", ["inner", "W2"], ["scores"]),
    ]
    initializers = [weights("W1", 4, 5), weights("W2", 5, 3), weights("bias", 5), weights("mean", 5)]
    initializers += [vector("scale", 1, 2, 3, 4, 5), vector("variance", 1, 2, 3, 4, 5)]
    return model_of(nodes, [floats("x", "N", 4)], [floats("scores", "N", 3)], initializers, opset=17, functions=[block])


def deduplicated() -> onnx.ModelProto:
    """A fresh network as PyTorch's exporter writes it: equal vectors are stored once and shared by Identity."""
    shared = [("scale1", "variance1"), ("bias1", "mean1"), ("scale1", "scale2"), ("bias1", "bias2")]
    shared += [("bias1", "mean2"), ("scale1", "variance2")]
    nodes = [helper.make_node("Identity", [source], [name]) for source, name in shared]
    value = "x"
    for index in (1, 2):
        parameters = [f"{name}{index}" for name in ("scale", "bias", "mean", "variance")]
        nodes += [
            helper.make_node("MatMul", [value, f"W{index}"], [f"hidden{index}"]),
            helper.make_node("BatchNormalization", [f"hidden{index}", *parameters], [f"normal{index}"]),
        ]
        value = f"normal{index}"
    nodes.append(helper.make_node("MatMul", [value, "W3"], ["scores"]))
    initializers = [weights("W1", 4, 3), weights("W2", 3, 3), weights("W3", 3, 3)]
    initializers += [vector("scale1", 1, 1, 1), vector("bias1", 0, 0, 0)]
    return model_of(nodes, [floats("x", "N", 4)], [floats("scores", "N", 3)], initializers)
