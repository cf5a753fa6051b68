"""Training models written by hand, each with a twin in `tests.parity.twins`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.graph.training_models import floats, tensor, training_info, training_model, training_node

LOCAL_DOMAIN = "tests.parity"
Shapes = Mapping[str, tuple[int, ...]]

MLP_SHAPES = {"W1": (12, 24), "b1": (24,), "W2": (24, 16), "b2": (16,), "W3": (16, 5), "b3": (5,)}
LENET_SHAPES = {
    "conv1": (6, 1, 5, 5),
    "conv1_bias": (6,),
    "conv2": (16, 6, 5, 5),
    "conv2_bias": (16,),
    "dense1": (400, 120),
    "dense1_bias": (120,),
    "dense2": (120, 84),
    "dense2_bias": (84,),
    "dense3": (84, 10),
    "dense3_bias": (10,),
}
GENERATOR_SHAPES = {"G1": (4, 16), "g1": (16,), "G2": (16, 2), "g2": (2,)}
CRITIC_SHAPES = {"D1": (2, 16), "d1": (16,), "D2": (16, 1), "d2": (1,)}


@dataclass(frozen=True)
class Descent:
    """How an optimizer operator trains tensors: the parts of an algorithm that come after its loss."""

    nodes: list[onnx.NodeProto]
    outputs: list[onnx.ValueInfoProto]
    initializers: list[TensorProto]
    updates: dict[str, str]


def mlp_with_momentum(mode: str) -> onnx.ModelProto:
    """A classifier of two hidden layers, trained by Momentum with weight decay and a rate that falls by 2 % a step.

    Feed `x` [N, 12] and `labels` int64 [N]; a step returns `loss`.
    """
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "W1", "b1"], ["h1"]),
            helper.make_node("Tanh", ["h1"], ["a1"]),
            helper.make_node("MatMul", ["a1", "W2"], ["h2"]),
            helper.make_node("Add", ["h2", "b2"], ["z2"]),
            helper.make_node("Relu", ["z2"], ["a2"]),
            helper.make_node("Gemm", ["a2", "W3", "b3"], ["logits"]),
        ],
        "mlp",
        [floats("x", "N", 12)],
        [floats("logits", "N", 5)],
        random_weights(MLP_SHAPES, seed=1),
    )
    coefficients = {"alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.01, "mode": mode}
    descent = descend("Momentum", "loss", MLP_SHAPES, ["velocity"], rate=0.05, **coefficients)
    descent.nodes.append(helper.make_node("Mul", ["R", "decay"], ["R_new"]))
    descent.outputs.append(floats("R_new"))
    descent.initializers.append(tensor("decay", 0.98))
    descent.updates["R"] = "R_new"
    loss = helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"])
    return training_model(graph, algorithm([loss], ["loss"], [class_numbers()], descent))


def lenet_with_adam() -> onnx.ModelProto:
    """LeNet-5 for images of 28 by 28, trained by Adam with its default coefficients, epsilon = 0 among them.

    Feed `image` [N, 1, 28, 28] and `labels` int64 [N]; a step returns `loss`.
    """
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "conv1", "conv1_bias"], ["c1"], pads=[2, 2, 2, 2]),
            helper.make_node("Tanh", ["c1"], ["t1"]),
            helper.make_node("MaxPool", ["t1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Conv", ["p1", "conv2", "conv2_bias"], ["c2"]),
            helper.make_node("Tanh", ["c2"], ["t2"]),
            helper.make_node("AveragePool", ["t2"], ["p2"], kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Flatten", ["p2"], ["flat"]),
            helper.make_node("Gemm", ["flat", "dense1", "dense1_bias"], ["h1"]),
            helper.make_node("Tanh", ["h1"], ["a1"]),
            helper.make_node("Gemm", ["a1", "dense2", "dense2_bias"], ["h2"]),
            helper.make_node("Tanh", ["h2"], ["a2"]),
            helper.make_node("Gemm", ["a2", "dense3", "dense3_bias"], ["logits"]),
        ],
        "lenet",
        [floats("image", "N", 1, 28, 28)],
        [floats("logits", "N", 10)],
        random_weights(LENET_SHAPES, seed=2),
    )
    loss = helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"])
    descent = descend("Adam", "loss", LENET_SHAPES, ["mean", "square"], rate=1e-3)
    return training_model(graph, algorithm([loss], ["loss"], [class_numbers()], descent))


def adversarial() -> onnx.ModelProto:
    """A generator and a critic of it, a GAN: one algorithm trains the critic, the next one the generator against it.

    The inference graph is the generator. The critic stands in both algorithms, as a function and as initializers of
    the same names and values, which are one set of state variables.

    Feed `noise` [N, 4] and, to the first algorithm, `real` [N, 2]; they return `critic_loss` and `generator_loss`.
    """
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["noise", "G1", "g1"], ["hidden"]),
            helper.make_node("Tanh", ["hidden"], ["active"]),
            helper.make_node("Gemm", ["active", "G2", "g2"], ["fake"]),
        ],
        "generator",
        [floats("noise", "N", 4)],
        [floats("fake", "N", 2)],
        random_weights(GENERATOR_SHAPES, seed=3),
    )
    critic = random_weights(CRITIC_SHAPES, seed=4)
    slots = ["mean", "square"]
    coefficients = {"alpha": 0.5, "beta": 0.99}
    critic_loss = [
        *critic_says_real("real", "loss_of_real", negate=True),
        *critic_says_real("fake", "loss_of_fake", negate=False),
        helper.make_node("Add", ["loss_of_real", "loss_of_fake"], ["critic_loss"]),
    ]
    critic_descent = descend("Adam", "critic_loss", CRITIC_SHAPES, slots, 0.01, prefix="critic_", **coefficients)
    train_critic = algorithm(critic_loss, ["critic_loss"], [floats("real", "N", 2)], critic_descent, critic)
    generator_loss = critic_says_real("fake", "generator_loss", negate=True, prefix="generator_")
    generator_descent = descend(
        "Adam", "generator_loss", GENERATOR_SHAPES, slots, 0.005, prefix="generator_", **coefficients
    )
    train_generator = algorithm(generator_loss, ["generator_loss"], [], generator_descent, critic)
    model = training_model(graph, train_critic, train_generator, functions=[critic_function()])
    model.opset_import.append(helper.make_opsetid(LOCAL_DOMAIN, 1))
    return model


def critic_function() -> onnx.FunctionProto:
    """How real the critic takes each sample to be, as the logarithm of the odds."""
    nodes = [
        helper.make_node("Gemm", ["sample", "D1", "d1"], ["hidden"]),
        helper.make_node("LeakyRelu", ["hidden"], ["active"], alpha=0.2),
        helper.make_node("Gemm", ["active", "D2", "d2"], ["odds"]),
    ]
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_function(LOCAL_DOMAIN, "Critic", ["sample", *CRITIC_SHAPES], ["odds"], nodes, opsets)


def critic_says_real(sample: str, loss: str, negate: bool, prefix: str = "") -> list[onnx.NodeProto]:
    """The mean loss of a critic that should call the samples fake, or with `negate` call them real."""
    odds, signed, each = (f"{prefix}{sample}_{what}" for what in ("odds", "signed", "losses"))
    return [
        helper.make_node("Critic", [sample, *CRITIC_SHAPES], [odds], domain=LOCAL_DOMAIN),
        helper.make_node("Neg" if negate else "Identity", [odds], [signed]),
        helper.make_node("Softplus", [signed], [each]),
        helper.make_node("ReduceMean", [each], [loss], keepdims=0),
    ]


def classifier_with_dropout() -> onnx.ModelProto:
    """A classifier with BatchNormalization and two Dropouts, which its algorithm repeats in training mode.

    Feed `x` [N, 12] and `labels` int64 [N]; a step returns `loss`.
    """
    shapes = {"W1": (12, 32), "scale": (32,), "bias": (32,), "W2": (32, 32), "W3": (32, 5)}
    statistics = {"mean": np.zeros(32), "variance": np.ones(32)}
    graph = helper.make_graph(
        layers_with_dropout("", training=False),
        "classifier",
        [floats("x", "N", 12)],
        [floats("logits", "N", 5)],
        [*random_weights(shapes, seed=5), *(tensor(*item) for item in statistics.items()), tensor("half", 0.5)],
    )
    loss = helper.make_node("SoftmaxCrossEntropyLoss", ["trained_logits", "labels"], ["loss"])
    descent = descend("Adam", "loss", shapes, ["mean", "square"], rate=1e-2, epsilon=1e-8)
    descent.outputs.extend(floats(f"trained_{name}", 32) for name in statistics)
    descent.updates.update({name: f"trained_{name}" for name in statistics})
    nodes = [*layers_with_dropout("trained_", training=True), loss]
    return training_model(
        graph, algorithm(nodes, ["loss"], [class_numbers()], descent, [tensor("yes", True, np.bool_)])
    )


def layers_with_dropout(prefix: str, training: bool) -> list[onnx.NodeProto]:
    """The layers in one of both modes; the names of their values begin with `prefix`."""
    h1, n1, d1, h2, a2, d2, logits, *statistics = (
        f"{prefix}{name}" for name in ("h1", "n1", "d1", "h2", "a2", "d2", "logits", "mean", "variance")
    )
    mode = ["yes"] if training else []
    return [
        helper.make_node("MatMul", ["x", "W1"], [h1]),
        helper.make_node(
            "BatchNormalization",
            [h1, "scale", "bias", "mean", "variance"],
            [n1, *(statistics if training else [])],
            training_mode=int(training),
        ),
        helper.make_node("Dropout", [n1, "half", *mode], [d1]),
        helper.make_node("MatMul", [d1, "W2"], [h2]),
        helper.make_node("Relu", [h2], [a2]),
        helper.make_node("Dropout", [a2, "half", *mode], [d2]),
        helper.make_node("MatMul", [d2, "W3"], [logits]),
    ]


def random_weights(shapes: Shapes, seed: int) -> list[TensorProto]:
    """Initializers of these shapes, scaled by how many values each neuron sums up; vectors are near 0."""
    generator = np.random.default_rng(seed)
    tensors = []
    for name, shape in shapes.items():
        inputs = np.prod(shape[1:]) if len(shape) == 4 else shape[0]
        scale = 0.1 if len(shape) == 1 else inputs**-0.5
        tensors.append(tensor(name, generator.normal(0, scale, shape)))
    return tensors


def descend(
    op_type: str, loss: str, shapes: Shapes, slots: Sequence[str], rate: float, prefix: str = "", **attributes: Any
) -> Descent:
    """Gradients of `loss` and one node that updates all tensors, at step T = 1, 2, ... with learning rate R."""
    gradients = [f"{name}_gradient" for name in shapes]
    states = [f"{name}_{slot}" for slot in slots for name in shapes]
    updated = [f"{name}_new" for name in (*shapes, *states)]
    step, one, rate_name = f"{prefix}T", f"{prefix}one", f"{prefix}R"
    slot_shapes = [shape for _ in slots for shape in shapes.values()]
    return Descent(
        nodes=[
            training_node("Gradient", list(shapes), gradients, xs=list(shapes), y=loss),
            helper.make_node("Add", [step, one], [f"{step}_new"]),
            training_node(op_type, [rate_name, f"{step}_new", *shapes, *gradients, *states], updated, **attributes),
        ],
        outputs=[
            helper.make_tensor_value_info(f"{step}_new", TensorProto.INT64, []),
            *(floats(name, *shape) for name, shape in zip(updated, [*shapes.values(), *slot_shapes], strict=True)),
        ],
        initializers=[
            tensor(step, 0, np.int64),
            tensor(one, 1, np.int64),
            tensor(rate_name, rate),
            *(tensor(name, np.zeros(shape)) for name, shape in zip(states, slot_shapes, strict=True)),
        ],
        updates={name: f"{name}_new" for name in (*shapes, *states, step)},
    )


def algorithm(
    nodes: Iterable[onnx.NodeProto],
    losses: Iterable[str],
    inputs: Sequence[onnx.ValueInfoProto],
    descent: Descent,
    initializers: Iterable[TensorProto] = (),
) -> onnx.TrainingInfoProto:
    """Training information without initialization: the nodes of the loss, and the descent."""
    graph = helper.make_graph(
        [*nodes, *descent.nodes],
        "train",
        inputs,
        [*(floats(loss) for loss in losses), *descent.outputs],
        [*descent.initializers, *initializers],
    )
    return training_info(graph, descent.updates)


def class_numbers() -> onnx.ValueInfoProto:
    """The declaration of the input `labels`."""
    return helper.make_tensor_value_info("labels", TensorProto.INT64, ["N"])


def stored_values(model: onnx.ModelProto, names: Iterable[str]) -> dict[str, np.ndarray]:
    """What the initializers of these names hold, wherever they stand."""
    graphs = [model.graph, *(info.algorithm for info in model.training_info)]
    held = {one.name: numpy_helper.to_array(one) for graph in graphs for one in graph.initializer}
    return {name: held[name] for name in names}
