"""Small training models written by hand, as the specification writes them, for every test that needs one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

TRAINING_DOMAIN = "ai.onnx.preview.training"
OPSETS = {"": 17, TRAINING_DOMAIN: 1}


def tensor(name: str, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> TensorProto:
    """A named tensor of a nested list or an array."""
    return numpy_helper.from_array(np.array(value, np.dtype(dtype)), name)


def floats(name: str, *shape: int | str | None) -> onnx.ValueInfoProto:
    """The declaration of a float32 value."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def training_node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    """A node of the training domain."""
    return helper.make_node(op_type, inputs, outputs, domain=TRAINING_DOMAIN, **attributes)


def training_info(
    algorithm: onnx.GraphProto,
    updates: Mapping[str, str],
    initialization: onnx.GraphProto | None = None,
    initial: Mapping[str, str] | None = None,
) -> onnx.TrainingInfoProto:
    """A `TrainingInfoProto`; the mappings are its bindings, from initializer to output."""
    bindings = (list((initial or {}).items()), list(updates.items()))
    return helper.make_training_info(algorithm, bindings[1], initialization, bindings[0])


def training_model(
    graph: onnx.GraphProto, *infos: onnx.TrainingInfoProto, functions: Sequence[onnx.FunctionProto] = ()
) -> onnx.ModelProto:
    """The model of an inference graph and its training information."""
    opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)
    model.training_info.extend(infos)
    return model


def edited(model: onnx.ModelProto, *changes: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    """The model after some changes in place."""
    for change in changes:
        change(model)
    return model


def linear_with_sgd(learning_rate: float = 0.1) -> onnx.ModelProto:
    """y = x W, trained by mean squared error and plain gradient descent; initialization draws W at random."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["y"], name="predict")],
        "linear",
        [floats("x", "N", 3)],
        [floats("y", "N", 2)],
        [tensor("W", [[1.0, -1.0], [0.5, 2.0], [0.0, 1.5]])],
    )
    algorithm = helper.make_graph(
        [
            helper.make_node("Sub", ["y", "target"], ["error"]),
            helper.make_node("Mul", ["error", "error"], ["squared"]),
            helper.make_node("ReduceMean", ["squared"], ["loss"], keepdims=0),
            training_node("Gradient", ["W"], ["W_gradient"], xs=["W"], y="loss"),
            helper.make_node("Mul", ["learning_rate", "W_gradient"], ["W_step"]),
            helper.make_node("Sub", ["W", "W_step"], ["W_new"]),
        ],
        "descend",
        [floats("target", "N", 2)],
        [floats("loss"), floats("W_new", 3, 2)],
        [tensor("learning_rate", learning_rate)],
    )
    initialization = helper.make_graph(
        [helper.make_node("RandomNormal", [], ["W_random"], shape=[3, 2])], "start", [], [floats("W_random", 3, 2)]
    )
    return training_model(graph, training_info(algorithm, {"W": "W_new"}, initialization, {"W": "W_random"}))


def mlp_with_momentum(
    features: int = 4, hidden: int = 8, classes: int = 3, mode: str = "standard", seed: int = 0
) -> onnx.ModelProto:
    """A classifier with one hidden layer, trained by cross-entropy and Momentum with weight decay.

    Feed `x` [N, features] and `labels` int64 [N]; a step returns `loss`. The state is the four parameters, the
    momentum of each, and the step count `T`.
    """
    rng = np.random.default_rng(seed)
    shapes = {"W1": (features, hidden), "b1": (hidden,), "W2": (hidden, classes), "b2": (classes,)}
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "W1", "b1"], ["hidden"]),
            helper.make_node("Relu", ["hidden"], ["active"]),
            helper.make_node("Gemm", ["active", "W2", "b2"], ["logits"]),
        ],
        "classifier",
        [floats("x", "N", features)],
        [floats("logits", "N", classes)],
        [tensor(name, rng.normal(0, 0.5, shape)) for name, shape in shapes.items()],
    )
    algorithm = helper.make_graph(
        [
            helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"]),
            training_node("Gradient", list(shapes), [f"{name}_grad" for name in shapes], xs=list(shapes), y="loss"),
            training_node(
                "Momentum",
                ["R", "T", *shapes, *(f"{name}_grad" for name in shapes), *(f"{name}_momentum" for name in shapes)],
                [*(f"{name}_new" for name in shapes), *(f"{name}_momentum_new" for name in shapes)],
                alpha=0.9,
                beta=1.0,
                mode=mode,
                norm_coefficient=0.001,
            ),
            helper.make_node("Add", ["T", "one"], ["T_new"]),
        ],
        "momentum",
        [helper.make_tensor_value_info("labels", TensorProto.INT64, ["N"])],
        [
            floats("loss"),
            *(floats(f"{name}_new", *shape) for name, shape in shapes.items()),
            *(floats(f"{name}_momentum_new", *shape) for name, shape in shapes.items()),
            helper.make_tensor_value_info("T_new", TensorProto.INT64, []),
        ],
        [
            tensor("R", 0.1),
            tensor("T", 0, np.int64),
            tensor("one", 1, np.int64),
            *(tensor(f"{name}_momentum", np.zeros(shape)) for name, shape in shapes.items()),
        ],
    )
    initialization = helper.make_graph(
        [
            helper.make_node("RandomNormal", [], [f"{name}_start"], shape=list(shapes[name]), scale=0.5)
            for name in ("W1", "W2")
        ],
        "draw_weights",
        [],
        [floats(f"{name}_start", *shapes[name]) for name in ("W1", "W2")],
    )
    updated = [*shapes, *(f"{name}_momentum" for name in shapes), "T"]
    updates = {name: f"{name}_new" for name in updated}
    return training_model(
        graph, training_info(algorithm, updates, initialization, {"W1": "W1_start", "W2": "W2_start"})
    )


def two_algorithms() -> onnx.ModelProto:
    """y = a x + b with a state variable for each of two algorithms, which a step runs one after the other.

    The first sets `a` to `a + 1`; the second sets `b` to `a`, so that it shows which `a` it saw.
    """
    graph = helper.make_graph(
        [helper.make_node("Mul", ["a", "x"], ["ax"]), helper.make_node("Add", ["ax", "b"], ["y"])],
        "affine",
        [floats("x")],
        [floats("y")],
        [tensor("a", 1.0), tensor("b", 0.0)],
    )
    first = helper.make_graph(
        [helper.make_node("Add", ["a", "one"], ["a_new"])], "count", [], [floats("a_new")], [tensor("one", 1.0)]
    )
    second = helper.make_graph([helper.make_node("Identity", ["a"], ["b_new"])], "copy", [], [floats("b_new")])
    return training_model(graph, training_info(first, {"a": "a_new"}), training_info(second, {"b": "b_new"}))


def running_mean_from_inference() -> onnx.ModelProto:
    """y = x - mean, where an output of the inference graph updates `mean` and the algorithm is empty."""
    graph = helper.make_graph(
        [
            helper.make_node("Sub", ["x", "mean"], ["y"]),
            helper.make_node("ReduceMean", ["x"], ["batch_mean"], keepdims=0),
        ],
        "centre",
        [floats("x", "N")],
        [floats("y", "N"), floats("batch_mean")],
        [tensor("mean", 0.0)],
    )
    return training_model(graph, training_info(onnx.GraphProto(name="empty"), {"mean": "batch_mean"}))


ALL_TRAINING_MODELS: tuple[Callable[[], onnx.ModelProto], ...] = (
    linear_with_sgd,
    mlp_with_momentum,
    two_algorithms,
    running_mean_from_inference,
)
