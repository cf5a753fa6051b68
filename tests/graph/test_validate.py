from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import compose, helper

from onnxtrain.errors import ModelWarning
from onnxtrain.graph.read import read_model
from onnxtrain.graph.validate import validate
from tests.graph.broken_models import (
    BROKEN_BINDINGS,
    BROKEN_NAMES,
    Broken,
    Change,
    add_choice,
    add_node,
    algorithm,
    bind,
    branch,
    initialization,
)
from tests.graph.broken_operators import BROKEN_GRADIENTS, BROKEN_OPERATORS, add_functions, call, function
from tests.graph.training_models import (
    ALL_TRAINING_MODELS,
    edited,
    floats,
    linear_with_sgd,
    mlp_with_momentum,
    tensor,
    training_node,
    two_algorithms,
)


def statements(model: onnx.ModelProto) -> list[str]:
    return sorted(problem.statement for problem in validate(model))


@pytest.mark.parametrize("build", ALL_TRAINING_MODELS)
def test_a_right_training_model_has_no_problem(build: Callable[[], onnx.ModelProto]) -> None:
    assert validate(build()) == []


@pytest.mark.spec(
    "T-05", "T-06", "T-08", "T-09", "T-11", "T-14", "T-15", "T-16", "T-20", "M-01", "M-02", "G-03", "G-07", "G-08"
)
@pytest.mark.parametrize(
    "broken", [*BROKEN_BINDINGS, *BROKEN_NAMES, *BROKEN_OPERATORS, *BROKEN_GRADIENTS], ids=lambda broken: broken.name
)
def test_the_one_problem_is_found_and_worded(broken: Broken) -> None:
    problems = validate(edited(broken.model(), broken.change))
    assert [(problem.statement, problem.where) for problem in problems] == [(broken.statement, broken.where)]
    assert broken.words in problems[0].message + problems[0].remedy
    assert problems[0].remedy.endswith((".", "?"))


def test_all_problems_are_found_at_once() -> None:
    # What a checker that does not look into training_info accepts: a dangling key, a dangling value, an undefined
    # tensor, an operator that does not exist.
    model = linear_with_sgd()
    bind(model.training_info[0].update_binding, "no_such_key", "no_such_value")
    add_node(algorithm(model), "NotAnOp", "no_such_tensor", "z")
    onnx.checker.check_model(model, full_check=True)
    found = {(problem.statement, problem.where) for problem in validate(model)}
    key = "training_info[0].update_binding['no_such_key']"
    node = "training_info[0].algorithm.node[6] NotAnOp (unnamed, writes 'z')"
    assert found == {("T-11", key), ("M-01", node), ("T-08", node)}
    assert len(validate(model)) == 4


@pytest.mark.spec("T-06", "T-11")
def test_bindings_that_a_tool_left_behind_while_prefixing_names_are_found() -> None:
    model = linear_with_sgd()
    model.graph.CopyFrom(compose.add_prefix_graph(model.graph, "p_"))
    dangling = [problem for problem in validate(model) if "binding" in problem.where]
    assert [(problem.statement, problem.where) for problem in dangling] == [
        ("T-06", "training_info[0].initialization_binding['W']"),
        ("T-11", "training_info[0].update_binding['W']"),
    ]
    assert all("Did you mean 'p_W'?" in problem.remedy for problem in dangling)


@pytest.mark.spec("T-06", "T-11")
def test_bindings_that_an_optimizer_left_behind_while_fusing_nodes_are_found() -> None:
    def fuse(model: onnx.ModelProto) -> None:
        model.graph.initializer[0].CopyFrom(tensor("W_fused_transposed", np.zeros((2, 3))))
        model.graph.node[0].CopyFrom(helper.make_node("Gemm", ["x", "W_fused_transposed"], ["y"], transB=1))

    # The algorithm's own reads of W dangle too: in Gradient's input, in its xs, and in the last Sub.
    assert statements(edited(linear_with_sgd(), fuse)) == ["G-08", "T-06", "T-08", "T-08", "T-11"]


@pytest.mark.spec("T-08")
def test_initializers_that_stand_twice_in_a_graph_are_found() -> None:
    model = linear_with_sgd()
    model.graph.initializer.append(tensor("W", np.zeros((3, 2))))
    algorithm(model).sparse_initializer.append(
        helper.make_sparse_tensor(tensor("learning_rate", [1.0]), tensor("", [1], np.int64), [3])
    )
    assert [(problem.statement, problem.where) for problem in validate(model)] == [
        ("T-08", "graph.initializer['W']"),
        ("T-08", "training_info[0].algorithm.initializer['learning_rate']"),
    ]


@pytest.mark.spec("T-08")
def test_two_inference_nodes_that_write_one_name_are_found_without_training_information() -> None:
    model = linear_with_sgd()
    del model.training_info[:]
    add_node(model.graph, "Relu", "x", "y")
    assert [problem.where for problem in validate(model)] == ["graph.node[1] Relu (unnamed, writes 'y')"]


@pytest.mark.spec("T-19")
def test_an_ir_version_that_is_too_low_is_a_warning_and_no_problem() -> None:
    with pytest.warns(ModelWarning, match="IR version 7"):
        assert validate(edited(linear_with_sgd(), lambda model: setattr(model, "ir_version", 6))) == []


@pytest.mark.spec("T-20")
@pytest.mark.parametrize("domain", ["ai.onnx.preview", "ai.onnx.training"])
def test_gradient_in_a_domain_that_exporters_wrote_by_mistake_is_a_warning_and_no_problem(domain: str) -> None:
    with pytest.warns(ModelWarning, match=f"Gradient stands in the domain '{domain}'"):
        assert validate(edited(linear_with_sgd(), lambda m: setattr(algorithm(m).node[3], "domain", domain))) == []


def test_a_path_and_a_read_model_are_accepted_too(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(edited(linear_with_sgd(), lambda model: bind(model.training_info[0].update_binding, "V", "W_new")), path)
    assert [problem.statement for problem in validate(path)] == ["T-11"]
    assert validate(str(path)) == validate(read_model(path)) == validate(onnx.load(path))


def shuffle_nodes(model: onnx.ModelProto) -> None:
    for graph in (model.graph, algorithm(model)):
        nodes = list(graph.node)[::-1]
        del graph.node[:]
        graph.node.extend(nodes)


def share_node_names(model: onnx.ModelProto) -> None:
    for node in algorithm(model).node:
        node.name = "same"


def read_state_in_initialization(model: onnx.ModelProto) -> None:
    add_node(initialization(model), "Mul", "W learning_rate", "scaled")
    model.training_info[0].initialization_binding[0].value = "scaled"
    initialization(model).output.append(floats("scaled", 3, 2))


def name_own_values_like_the_state(model: onnx.ModelProto) -> None:
    initialization(model).node[0].output[0] = "W"
    initialization(model).output[0].name = "W"
    model.training_info[0].initialization_binding[0].value = "W"


def share_a_variable(model: onnx.ModelProto) -> None:
    info = model.training_info.add()
    info.algorithm.initializer.append(algorithm(model).initializer[0])
    info.algorithm.node.append(helper.make_node("Identity", ["learning_rate"], ["rate"]))
    info.algorithm.output.append(floats("rate"))


def shadow_in_a_branch(model: onnx.ModelProto) -> None:
    add_choice(model, branch(helper.make_node("Neg", ["x"], ["error"]), output="error"))


def differentiate_in_a_branch(model: onnx.ModelProto) -> None:
    add_choice(model, branch(training_node("Gradient", ["W"], ["inner"], xs=["W"], y="loss"), output="inner"))


def differentiate_in_a_function(model: onnx.ModelProto) -> None:
    add_functions(
        model,
        function(
            "Slope",
            helper.make_node("Mul", ["X", "X"], ["square"]),
            training_node("Gradient", ["X"], ["Y"], xs=["X"], y="square"),
        ),
    )
    algorithm(model).node.append(call("Slope", "W", "slope"))


def define_graph_call(model: onnx.ModelProto) -> None:
    add_functions(model, function("GraphCall", helper.make_node("Relu", ["X"], ["Y"])))
    algorithm(model).node.append(call("GraphCall", "W", "called"))


RIGHT: tuple[Change, ...] = (
    shuffle_nodes,
    share_node_names,
    read_state_in_initialization,
    name_own_values_like_the_state,
    share_a_variable,
    shadow_in_a_branch,
    differentiate_in_a_branch,
    differentiate_in_a_function,
    define_graph_call,
)


@pytest.mark.spec("T-04", "T-15", "M-02", "M-03", "M-07", "G-08")
@pytest.mark.parametrize("change", RIGHT, ids=lambda change: change.__name__)
def test_what_is_unusual_but_right_is_no_problem(change: Change) -> None:
    assert validate(edited(linear_with_sgd(), change)) == []


@pytest.mark.spec("M-03")
def test_a_branch_that_returns_an_outer_value_directly_is_no_problem() -> None:
    assert validate(edited(linear_with_sgd(), lambda model: add_choice(model, branch(output="error")))) == []


@pytest.mark.spec("T-11")
def test_an_update_may_take_an_output_of_the_inference_graph() -> None:
    def update_from_inference(model: onnx.ModelProto) -> None:
        add_node(model.graph, "Neg", "W", "W_negated")
        model.graph.output.append(floats("W_negated", 3, 2))
        model.training_info[0].update_binding[0].value = "W_negated"

    assert validate(edited(linear_with_sgd(), update_from_inference)) == []


@pytest.mark.spec("M-01")
def test_operators_of_other_domains_are_left_to_whoever_runs_them() -> None:
    def add_foreign(model: onnx.ModelProto) -> None:
        model.opset_import.append(helper.make_opsetid("com.example", 1))
        add_node(model.graph, "Anything", "x x x", "z", domain="com.example")
        add_node(algorithm(model), "Other", "z", "w", domain="com.unlisted")

    assert validate(edited(mlp_with_momentum(), add_foreign)) == []


@pytest.mark.spec("T-13")
def test_an_empty_training_info_is_no_problem() -> None:
    assert validate(edited(two_algorithms(), lambda model: model.training_info.add())) == []


def test_real_inference_models_have_no_problem(models_dir: Path) -> None:
    paths = sorted(models_dir.rglob("*.onnx"))
    assert paths
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        assert {str(path): problems for path in paths if (problems := validate(path))} == {}
