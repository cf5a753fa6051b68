"""Training models that are broken in one way each, with the one problem that must be found: bindings and names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.graph.training_models import (
    floats,
    linear_with_sgd,
    running_mean_from_inference,
    tensor,
    two_algorithms,
)

Change = Callable[[onnx.ModelProto], object]


def algorithm(model: onnx.ModelProto, index: int = 0) -> onnx.GraphProto:
    return model.training_info[index].algorithm


def initialization(model: onnx.ModelProto) -> onnx.GraphProto:
    return model.training_info[0].initialization


def add_node(graph: onnx.GraphProto, op_type: str, inputs: str, outputs: str, **attributes: Any) -> None:
    graph.node.append(helper.make_node(op_type, inputs.split(), outputs.split(), **attributes))


def bind(field: Any, key: str, value: str) -> None:
    field.append(onnx.StringStringEntryProto(key=key, value=value))


def add_output(model: onnx.ModelProto, name: str, shape: list[int], element: int = TensorProto.FLOAT) -> None:
    """An output of the algorithm that copies a constant of that shape, and updates W with it."""
    algorithm(model).node.append(
        helper.make_node(
            "Constant", [], [name], value=tensor("", np.zeros(shape), helper.tensor_dtype_to_np_dtype(element))
        )
    )
    algorithm(model).output.append(helper.make_tensor_value_info(name, element, shape))
    model.training_info[0].update_binding[0].value = name


def branch(*nodes: onnx.NodeProto, output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, "branch", [], [floats(output)])


def choose(*, then: onnx.GraphProto, otherwise: onnx.GraphProto, output: str) -> onnx.NodeProto:
    return helper.make_node("If", ["condition"], [output], then_branch=then, else_branch=otherwise)


def add_choice(model: onnx.ModelProto, then: onnx.GraphProto) -> None:
    """An If in the algorithm of `linear_with_sgd` whose other branch returns the outer value `loss`."""
    algorithm(model).initializer.append(tensor("condition", True, np.bool_))
    algorithm(model).node.append(choose(then=then, otherwise=branch(output="loss"), output="chosen"))
    algorithm(model).output.append(floats("chosen"))


@dataclass(frozen=True)
class Broken:
    """A change that breaks a right model in one way, and the one problem it must be told by."""

    name: str
    statement: str
    where: str
    change: Change
    words: str = ""
    model: Callable[[], onnx.ModelProto] = linear_with_sgd


INITIALIZATION = "training_info[0].initialization"
ALGORITHM = "training_info[0].algorithm"
INITIALIZATION_BINDING = "training_info[0].initialization_binding"
UPDATE_BINDING = "training_info[0].update_binding"

BROKEN_BINDINGS = (
    Broken(
        "an initialization graph with an input",
        "T-05",
        f"{INITIALIZATION}.input",
        lambda m: initialization(m).input.append(floats("mean")),
        "'mean'",
    ),
    Broken(
        "an initialization key that is no initializer",
        "T-06",
        f"{INITIALIZATION_BINDING}['y']",
        lambda m: bind(m.training_info[0].initialization_binding, "y", "W_random"),
        "'y' names no initializer",
    ),
    Broken(
        "an initialization key of another algorithm",
        "T-06",
        f"{INITIALIZATION_BINDING}['hidden_state']",
        lambda m: (
            m.training_info.add().algorithm.initializer.append(tensor("hidden_state", np.zeros((3, 2)))),
            bind(m.training_info[0].initialization_binding, "hidden_state", "W_random"),
        ),
        "of the same algorithm",
    ),
    Broken(
        "an initialization value that is no output",
        "T-06",
        f"{INITIALIZATION_BINDING}['W']",
        lambda m: setattr(m.training_info[0].initialization_binding[0], "value", "W_new"),
        "'W_new' names no output",
    ),
    Broken(
        "an initialization key that stands twice",
        "T-06",
        f"{INITIALIZATION_BINDING}['W']",
        lambda m: bind(m.training_info[0].initialization_binding, "W", "W_random"),
        "2 times",
    ),
    Broken(
        "an update key that is no initializer",
        "T-11",
        f"{UPDATE_BINDING}['y']",
        lambda m: setattr(m.training_info[0].update_binding[0], "key", "y"),
        "'y' names no initializer",
    ),
    Broken(
        "an update value that is no output",
        "T-11",
        f"{UPDATE_BINDING}['W']",
        lambda m: setattr(m.training_info[0].update_binding[0], "value", "W_step"),
        "'W_step' names no output",
    ),
    Broken(
        "two updates of one variable in one algorithm",
        "T-11",
        f"{UPDATE_BINDING}['W']",
        lambda m: bind(m.training_info[0].update_binding, "W", "W_new"),
        "updated by training_info[0].update_binding already",
    ),
    Broken(
        "two updates of one variable in two algorithms",
        "T-11",
        "training_info[1].update_binding['a']",
        lambda m: bind(m.training_info[1].update_binding, "a", "b_new"),
        "updated by training_info[0].update_binding already",
        two_algorithms,
    ),
    Broken(
        "an update key that is private to another algorithm",
        "T-11",
        "training_info[1].update_binding['one']",
        lambda m: bind(m.training_info[1].update_binding, "one", "b_new"),
        "no initializer",
        two_algorithms,
    ),
    Broken(
        "an update of another shape",
        "T-14",
        f"{UPDATE_BINDING}['W']",
        lambda m: add_output(m, "V", [2, 3]),
        "'V' is float32[2, 3], but the state variable 'W' is float32[3, 2]",
    ),
    Broken(
        "an update of another element type",
        "T-14",
        f"{UPDATE_BINDING}['W']",
        lambda m: add_output(m, "V", [3, 2], TensorProto.DOUBLE),
        "'V' is float64[3, 2]",
    ),
    Broken(
        "a vector of one that updates a scalar",
        "T-14",
        f"{UPDATE_BINDING}['mean']",
        lambda m: m.graph.output[1].CopyFrom(floats("batch_mean", 1)),
        "float32[1]",
        running_mean_from_inference,
    ),
    Broken(
        "an initial value of another shape",
        "T-14",
        f"{INITIALIZATION_BINDING}['W']",
        lambda m: initialization(m).output[0].CopyFrom(floats("W_random", 6)),
        "'W_random' is float32[6]",
    ),
)

BROKEN_NAMES = (
    Broken(
        "two inference nodes that write one name",
        "T-08",
        "graph.node[1] Relu (unnamed, writes 'y')",
        lambda m: add_node(m.graph, "Relu", "x", "y"),
        "'y' is defined a second time, after graph.node[0]",
    ),
    Broken(
        "two nodes of an algorithm that write one name",
        "T-08",
        f"{ALGORITHM}.node[6] Abs (unnamed, writes 'loss')",
        lambda m: add_node(algorithm(m), "Abs", "squared", "loss"),
        "node[2] ReduceMean",
    ),
    Broken(
        "an algorithm node that writes a value of the inference graph",
        "T-08",
        f"{ALGORITHM}.node[6] Abs (unnamed, writes 'y')",
        lambda m: add_node(algorithm(m), "Abs", "squared", "y"),
        "graph.node[0] MatMul 'predict'",
    ),
    Broken(
        "an algorithm input that the inference graph computes",
        "T-08",
        f"{ALGORITHM}.input['y']",
        lambda m: algorithm(m).input.append(floats("y", "N", 2)),
        "graph.node[0] MatMul 'predict'",
    ),
    Broken(
        "an algorithm initializer that the inference graph has",
        "T-08",
        f"{ALGORITHM}.initializer['W']",
        lambda m: algorithm(m).initializer.append(tensor("W", np.zeros((3, 2)))),
        "graph.initializer['W']",
    ),
    Broken(
        "a node of a branch that writes a name twice",
        "T-08",
        f"{ALGORITHM}.node[6] If (unnamed, writes 'chosen').then_branch.node[1] Neg (unnamed, writes 'b')",
        lambda m: add_choice(
            m, branch(helper.make_node("Abs", ["loss"], ["b"]), helper.make_node("Neg", ["loss"], ["b"]), output="b")
        ),
        "node[0] Abs",
    ),
    Broken(
        "an inference node that reads an unknown name",
        "T-08",
        "graph.node[1] Relu (unnamed, writes 'z')",
        lambda m: add_node(m.graph, "Relu", "nowhere", "z"),
        "'nowhere'",
    ),
    Broken(
        "an algorithm node that reads an unknown name",
        "T-08",
        f"{ALGORITHM}.node[6] Relu (unnamed, writes 'z')",
        lambda m: add_node(algorithm(m), "Relu", "nowhere", "z"),
        "'nowhere'",
    ),
    Broken(
        "an initialization node that reads a value of the inference graph",
        "T-08",
        f"{INITIALIZATION}.node[1] Relu (unnamed, writes 'z')",
        lambda m: add_node(initialization(m), "Relu", "y", "z"),
        "'y'",
    ),
    Broken(
        "a node of a branch that reads an unknown name",
        "T-08",
        f"{ALGORITHM}.node[6] If (unnamed, writes 'chosen').then_branch.node[0] Abs (unnamed, writes 'b')",
        lambda m: add_choice(m, branch(helper.make_node("Abs", ["nowhere"], ["b"]), output="b")),
        "'nowhere'",
    ),
    Broken(
        "an algorithm node that reads a value of another algorithm",
        "T-08",
        "training_info[1].algorithm.node[0] Identity (unnamed, writes 'b_new')",
        lambda m: algorithm(m, 1).node[0].input.__setitem__(0, "one"),
        "'one'",
        two_algorithms,
    ),
    Broken(
        "an output that nothing produces",
        "T-08",
        f"{ALGORITHM}.output['accuracy']",
        lambda m: algorithm(m).output.append(floats("accuracy")),
        "Nothing produces",
    ),
    Broken(
        "nodes that wait for each other",
        "T-08",
        ALGORITHM,
        lambda m: (add_node(algorithm(m), "Neg", "p", "q"), add_node(algorithm(m), "Abs", "q", "p")),
        "Neg (unnamed, writes 'q') needs Abs (unnamed, writes 'p')",
    ),
    Broken(
        "an inference node that reads a value of an algorithm",
        "T-09",
        "graph.node[0] MatMul 'predict'",
        lambda m: m.graph.node[0].input.__setitem__(1, "learning_rate"),
        "only training_info[0].algorithm defines",
    ),
    Broken(
        "an inference output that an algorithm computes",
        "T-09",
        "graph.output['loss']",
        lambda m: m.graph.output.append(floats("loss")),
        "'loss'",
    ),
    Broken(
        "an initializer of two algorithms with two values",
        "T-15",
        "training_info[1].algorithm.initializer['one']",
        lambda m: algorithm(m, 1).initializer.append(tensor("one", 2.0)),
        "training_info[0].algorithm has",
        two_algorithms,
    ),
    Broken(
        "an input of two types",
        "T-16",
        f"{ALGORITHM}.input['x']",
        lambda m: algorithm(m).input.append(helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["N", 3])),
        "float64[N, 3] here and as float32[N, 3]",
    ),
)
