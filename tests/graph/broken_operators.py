"""Training models that are broken in one way each, with the one problem that must be found: operators and functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.graph.broken_models import ALGORITHM, Broken, add_node, algorithm, branch, choose
from tests.graph.training_models import OPSETS, tensor, training_node

GRADIENT = f"{ALGORITHM}.node[3] Gradient (unnamed, writes 'W_gradient')"


def set_gradient(model: onnx.ModelProto, inputs: str = "W", outputs: str = "W_gradient", **attributes: Any) -> None:
    """Replaces the Gradient of `linear_with_sgd`."""
    algorithm(model).node[3].CopyFrom(training_node("Gradient", inputs.split(), outputs.split(), **attributes))


def function(name: str, *nodes: onnx.NodeProto, inputs: str = "X", outputs: str = "Y") -> onnx.FunctionProto:
    opsets = [helper.make_opsetid(domain, version) for domain, version in {**OPSETS, "my": 1}.items()]
    return helper.make_function("my", name, inputs.split(), outputs.split(), nodes, opsets)


def call(name: str, inputs: str = "X", outputs: str = "Y") -> onnx.NodeProto:
    return helper.make_node(name, inputs.split(), outputs.split(), domain="my")


def add_functions(model: onnx.ModelProto, *functions: onnx.FunctionProto) -> None:
    model.functions.extend(functions)
    model.opset_import.append(helper.make_opsetid("my", 1))


BROKEN_OPERATORS = (
    Broken(
        "a GraphCall",
        "T-20",
        f"{ALGORITHM}.node[6] GraphCall (unnamed, writes 'called')",
        lambda m: algorithm(m).node.append(training_node("GraphCall", ["x"], ["called"], graph_name="linear")),
        "was removed from ONNX",
    ),
    Broken(
        "an unknown operator",
        "M-01",
        f"{ALGORITHM}.node[6] NotAnOp (unnamed, writes 'z')",
        lambda m: add_node(algorithm(m), "NotAnOp", "y", "z"),
        "ai.onnx has no operator 'NotAnOp'",
    ),
    Broken(
        "an operator that came later",
        "M-01",
        f"{ALGORITHM}.node[6] Gelu (unnamed, writes 'z')",
        lambda m: add_node(algorithm(m), "Gelu", "y", "z"),
        "it came with version 20",
    ),
    Broken(
        "a domain that is not imported",
        "M-01",
        f"{ALGORITHM}.node[6] Normalizer (unnamed, writes 'z')",
        lambda m: add_node(algorithm(m), "Normalizer", "y", "z", domain="ai.onnx.ml"),
        "opset_import does not list",
    ),
    Broken(
        "an operator without an input that it needs",
        "M-01",
        f"{ALGORITHM}.node[6] Sub (unnamed, writes 'z')",
        lambda m: add_node(algorithm(m), "Sub", "y", "z"),
        "Input 'B' of Sub of version 14 is missing",
    ),
    Broken(
        "a variadic operator with too few inputs",
        "M-01",
        f"{ALGORITHM}.node[6] Momentum (unnamed, writes 'z')",
        lambda m: algorithm(m).node.append(training_node("Momentum", ["loss", "loss"], ["z"])),
        "at least 3 inputs, but 2",
    ),
    Broken(
        "an operator with too many inputs",
        "M-01",
        f"{ALGORITHM}.node[6] Relu (unnamed, writes 'z')",
        lambda m: add_node(algorithm(m), "Relu", "y x", "z"),
        "at most 1 inputs, but 2",
    ),
    Broken(
        "an operator with too many outputs",
        "M-01",
        f"{ALGORITHM}.node[6] Relu (unnamed, writes 'z')",
        lambda m: add_node(algorithm(m), "Relu", "y", "z w"),
        "at most 1 outputs, but 2",
    ),
    Broken(
        "an unknown operator in a function",
        "M-01",
        "functions['my.F'].node[0] NotAnOp (unnamed, writes 'Y')",
        lambda m: add_functions(m, function("F", helper.make_node("NotAnOp", ["X"], ["Y"]))),
        "'NotAnOp'",
    ),
    Broken(
        "an undefined name in a function",
        "T-08",
        "functions['my.F'].node[0] Relu (unnamed, writes 'Y')",
        lambda m: add_functions(m, function("F", helper.make_node("Relu", ["W"], ["Y"]))),
        "'W'",
    ),
    Broken(
        "a function that writes its input",
        "T-08",
        "functions['my.F'].node[0] Relu (unnamed, writes 'X')",
        lambda m: add_functions(m, function("F", helper.make_node("Relu", ["X"], ["X"]), outputs="X")),
        "input['X']",
    ),
    Broken(
        "a function that calls itself",
        "M-02",
        "functions['my.F']",
        lambda m: add_functions(m, function("F", call("F"))),
        "my.F calls my.F",
    ),
    Broken(
        "functions that call each other, one inside a branch",
        "M-02",
        "functions['my.F']",
        lambda m: add_functions(
            m,
            function("G", helper.make_node("Relu", ["X"], ["Y"])),
            function("F", call("G", outputs="g"), call("H", "g g")),
            function(
                "H",
                choose(then=branch(call("F", outputs="f"), output="f"), otherwise=branch(output="X"), output="Y"),
                inputs="X condition",
            ),
        ),
        "my.F calls my.H calls my.F",
    ),
    Broken(
        "a call with too many inputs",
        "M-02",
        f"{ALGORITHM}.node[6] F (unnamed, writes 'z')",
        lambda m: (
            add_functions(m, function("F", helper.make_node("Relu", ["X"], ["Y"]))),
            algorithm(m).node.append(call("F", "y y", "z")),
        ),
        "2 inputs, but function 'my.F' has 1",
    ),
    Broken(
        "a training operator in the default domain",
        "T-20",
        f"{ALGORITHM}.node[6] Adam (unnamed, writes 'z')",
        lambda m: add_node(algorithm(m), "Adam", "loss loss W W W W", "z"),
        "Set the node's domain",
    ),
)

BROKEN_GRADIENTS = (
    Broken("no xs", "G-01", GRADIENT, lambda m: set_gradient(m, y="loss"), "no 'xs'"),
    Broken("no y", "G-01", GRADIENT, lambda m: set_gradient(m, xs=["W"]), "no 'y'"),
    Broken(
        "more outputs than xs",
        "G-01",
        GRADIENT,
        lambda m: set_gradient(m, outputs="W_gradient other", xs=["W"], y="loss"),
        "1 names in 'xs', but 2 are named",
    ),
    Broken(
        "another number of inputs than xs and zs",
        "G-03",
        GRADIENT,
        lambda m: set_gradient(m, "W", xs=["W"], zs=["x"], y="loss"),
        "but 1 are given",
    ),
    Broken("an unknown x", "G-08", f"{GRADIENT}.xs", lambda m: set_gradient(m, xs=["V"], y="loss"), "'V'"),
    Broken("an unknown y", "G-08", f"{GRADIENT}.y", lambda m: set_gradient(m, xs=["W"], y="cost"), "'cost'"),
    Broken(
        "an unknown z", "G-08", f"{GRADIENT}.zs", lambda m: set_gradient(m, "W x", xs=["W"], zs=["X"], y="loss"), "'X'"
    ),
    Broken(
        "an integer x",
        "G-07",
        f"{GRADIENT}.xs",
        lambda m: (
            algorithm(m).initializer.append(tensor("steps", 0, np.int64)),
            set_gradient(m, "steps", xs=["steps"], y="loss"),
        ),
        "'steps' holds int64",
    ),
    Broken(
        "an integer fed for x",
        "G-07",
        f"{GRADIENT}.xs",
        lambda m: (
            algorithm(m).input.append(helper.make_tensor_value_info("fed", TensorProto.INT32, [3, 2])),
            set_gradient(m, "fed", xs=["W"], y="loss"),
        ),
        "'fed' holds int32",
    ),
)
