from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxtrain.errors import ModelError, ValidationError
from onnxtrain.graph.combine import (
    DataInput,
    algorithm_graph,
    data_inputs,
    inference_graph,
    initialization_graph,
    types_agree,
)
from onnxtrain.graph.model import Graph, Model, SequenceType, TensorType, TrainingInfo, ValueInfo
from onnxtrain.graph.order import captured_names, needed_nodes
from onnxtrain.graph.read import read_model
from tests.graph.training_models import edited, floats, linear_with_sgd, mlp_with_momentum, tensor, two_algorithms

FLOAT = np.dtype(np.float32)


def model_of(*changes: Callable[[onnx.ModelProto], object]) -> Model:
    return read_model(edited(linear_with_sgd(), *changes))


def write_first(graph: onnx.GraphProto, name: str) -> None:
    graph.node[0].output[0] = name


def written(graph: Graph) -> list[str]:
    return [name for node in graph.nodes for name in node.outputs]


@pytest.mark.spec("T-08")
def test_an_algorithm_runs_behind_the_inference_graph_field_by_field() -> None:
    def add_details(model: onnx.ModelProto) -> None:
        algorithm = model.training_info[0].algorithm
        model.graph.value_info.append(floats("y", "N", 2))
        algorithm.value_info.append(floats("error", "N", 2))
        for graph, name in ((model.graph, "sparse_main"), (algorithm, "sparse_own")):
            graph.sparse_initializer.append(
                helper.make_sparse_tensor(tensor(name, [1.0]), tensor("", [1], np.int64), [3])
            )

    combined = algorithm_graph(model_of(add_details), 0)
    assert combined.name == "training_info[0].algorithm"
    assert combined.input_names == ("x", "target")
    assert list(combined.initializers) == ["W", "sparse_main", "learning_rate", "sparse_own"]
    assert combined.sparse == {"sparse_main", "sparse_own"}
    assert combined.output_names == ("y", "loss", "W_new")
    assert written(combined) == ["y", "error", "squared", "loss", "W_gradient", "W_step", "W_new"]
    assert [value.name for value in combined.value_info] == ["y", "error"]


@pytest.mark.spec("T-08")
def test_nodes_of_the_combined_graph_are_sorted_whatever_their_order_in_the_file() -> None:
    def reverse(model: onnx.ModelProto) -> None:
        nodes = list(model.training_info[0].algorithm.node)[::-1]
        del model.training_info[0].algorithm.node[:]
        model.training_info[0].algorithm.node.extend(nodes)

    assert written(algorithm_graph(model_of(reverse), 0)) == written(algorithm_graph(model_of(), 0))


@pytest.mark.spec("T-09")
def test_an_algorithm_reads_intermediate_values_of_the_inference_graph() -> None:
    def read_hidden(model: onnx.ModelProto) -> None:
        algorithm = model.training_info[0].algorithm
        algorithm.node.append(helper.make_node("ReduceMax", ["active"], ["largest"]))
        algorithm.output.append(floats("largest"))

    combined = algorithm_graph(read_model(edited(mlp_with_momentum(), read_hidden)), 0)
    assert [node.op_type for node in needed_nodes(combined.nodes, ["largest"])] == ["Gemm", "Relu", "ReduceMax"]


@pytest.mark.spec("T-10")
def test_the_inference_graph_knows_nothing_of_the_algorithms() -> None:
    graph = inference_graph(read_model(mlp_with_momentum()))
    assert graph.input_names == ("x",)
    assert graph.output_names == ("logits",)
    assert list(graph.initializers) == ["W1", "b1", "W2", "b2"]


@pytest.mark.spec("T-13")
def test_an_empty_algorithm_combines_to_the_inference_graph() -> None:
    empty = Graph("", (), (), ())
    model = replace(model_of(), training_info=(TrainingInfo(empty, empty, (), ()),))
    assert replace(algorithm_graph(model, 0), name="linear") == inference_graph(model)


@pytest.mark.spec("T-08")
@pytest.mark.parametrize(
    ("change", "producers"),
    [
        (lambda one: write_first(one, "y"), ["node[0] Sub", "graph.node[0] MatMul 'predict'"]),
        (lambda one: write_first(one, "x"), ["node[0] Sub", "graph.input['x']"]),
        (lambda one: one.initializer.append(tensor("y", 0.0)), ["initializer['y']", "graph.node[0] MatMul 'predict'"]),
        (lambda one: one.initializer.append(tensor("W", 0.0)), ["initializer['W']", "graph.initializer['W']"]),
    ],
    ids=["node and node", "node and input", "initializer and node", "initializer and initializer"],
)
def test_a_clash_between_the_graphs_names_both_producers(
    change: Callable[[onnx.GraphProto], object], producers: list[str]
) -> None:
    with pytest.raises(ValidationError) as caught:
        algorithm_graph(model_of(lambda model: change(model.training_info[0].algorithm)), 0)
    assert all(producer in str(caught.value) for producer in producers)


@pytest.mark.spec("T-09")
def test_an_inference_node_that_reads_a_value_of_an_algorithm_is_refused() -> None:
    model = model_of(lambda m: m.graph.node[0].input.__setitem__(1, "W_new"))
    for build in (lambda: inference_graph(model), lambda: algorithm_graph(model, 0)):
        with pytest.raises(ValidationError, match=r"'W_new', which only training_info\[0\]\.algorithm defines"):
            build()


@pytest.mark.spec("T-08")
def test_a_name_that_nothing_defines_is_refused_in_each_kind_of_graph() -> None:
    in_inference = model_of(lambda m: m.graph.node[0].input.__setitem__(0, "z"))
    in_algorithm = model_of(lambda m: m.training_info[0].algorithm.node[0].input.__setitem__(0, "z"))
    in_initialization = model_of(lambda m: m.training_info[0].initialization.node[0].input.append("z"))
    for build in (
        lambda: inference_graph(in_inference),
        lambda: algorithm_graph(in_algorithm, 0),
        lambda: initialization_graph(in_initialization, 0),
    ):
        with pytest.raises(ModelError, match="reads 'z', but no input"):
            build()


@pytest.mark.spec("T-16")
@pytest.mark.parametrize("shape", [("N", 3), ("batch", 3), (7, 3), (None, None)])
def test_the_same_input_in_both_graphs_is_one_input_when_the_types_agree(shape: tuple[int | str | None, ...]) -> None:
    combined = algorithm_graph(model_of(lambda m: m.training_info[0].algorithm.input.append(floats("x", *shape))), 0)
    assert combined.inputs[0] == ValueInfo("x", TensorType(FLOAT, ("N", 3)))
    assert combined.input_names == ("x", "target")


@pytest.mark.spec("T-16")
@pytest.mark.parametrize("shape", [("N", 4), ("N",), ()])
def test_the_same_input_with_another_type_is_refused(shape: tuple[int | str, ...]) -> None:
    model = model_of(lambda m: m.training_info[0].algorithm.input.append(floats("x", *shape)))
    with pytest.raises(ValidationError, match=r"T-16.*float32\[N, 3\]"):
        algorithm_graph(model, 0)


@pytest.mark.parametrize(
    ("first", "second", "agree"),
    [
        (None, TensorType(FLOAT, ()), True),
        (TensorType(FLOAT, None), TensorType(FLOAT, (1, 2)), True),
        (TensorType(FLOAT, ()), TensorType(FLOAT, (1,)), False),
        (TensorType(FLOAT, (2,)), TensorType(np.dtype(np.float64), (2,)), False),
        (SequenceType(TensorType(FLOAT, ())), SequenceType(TensorType(FLOAT, ())), True),
        (SequenceType(TensorType(FLOAT, ())), TensorType(FLOAT, ()), False),
    ],
)
def test_types_agree_where_one_value_can_have_both(
    first: TensorType | None, second: TensorType | SequenceType, agree: bool
) -> None:
    assert types_agree(first, second) is agree
    assert types_agree(second, first) is agree


@pytest.mark.spec("T-15")
@pytest.mark.parametrize(
    ("values", "accepted"),
    [
        (([1.0, np.nan], [1.0, np.nan]), True),
        (([1.0, 2.0], [1.0, 3.0]), False),
        (([1.0, 2.0], [[1.0, 2.0]]), False),
        ((np.array([1], np.int64), np.array([1], np.int32)), False),
        ((np.array(["a"], object), np.array(["a"], object)), True),
        ((np.array(["a"], object), np.array(["b"], object)), False),
    ],
    ids=["equal", "other value", "other shape", "other type", "equal strings", "other strings"],
)
def test_two_algorithms_share_an_initializer_only_if_they_store_the_same(
    values: tuple[np.ndarray, np.ndarray], accepted: bool
) -> None:
    model = read_model(two_algorithms())
    infos = tuple(
        replace(info, algorithm=replace(info.algorithm, initializers={"shared": np.asarray(value)}))
        for info, value in zip(model.training_info, values, strict=True)
    )
    model = replace(model, training_info=(replace(infos[0], algorithm=replace(infos[0].algorithm, nodes=())), infos[1]))
    if accepted:
        assert "shared" in algorithm_graph(model, 1).initializers
    else:
        with pytest.raises(ValidationError, match=r"T-15.*training_info\[1\]\.algorithm\.initializer\['shared'\]"):
            algorithm_graph(model, 1)


@pytest.mark.spec("T-15")
def test_initializers_of_one_algorithm_are_invisible_to_another() -> None:
    def read_the_other(model: onnx.ModelProto) -> None:
        model.training_info[1].algorithm.node[0].input[0] = "one"

    with pytest.raises(ModelError, match="reads 'one', but no input"):
        algorithm_graph(read_model(edited(two_algorithms(), read_the_other)), 1)


@pytest.mark.spec("T-17")
@pytest.mark.parametrize(
    ("ir_version", "expected"),
    [(3, [("x", True)]), (9, [("x", True), ("scale", False)])],
    ids=["constant before IR 4", "default since IR 4"],
)
def test_an_initializer_that_is_also_an_input(ir_version: int, expected: list[tuple[str, bool]]) -> None:
    def list_initializers(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(tensor("scale", 1.0))
        model.graph.input.extend([floats("scale"), floats("W", 3, 2)])

    model = replace(model_of(list_initializers), ir_version=ir_version)
    inputs = data_inputs(model, inference_graph(model))
    assert [(value.name, value.required) for value in inputs] == expected


@pytest.mark.spec("T-17")
def test_a_state_variable_of_the_inference_graph_is_no_data_input_of_an_algorithm_that_lists_it() -> None:
    model = model_of(lambda m: m.training_info[0].algorithm.input.append(floats("W", 3, 2)))
    types = [TensorType(FLOAT, ("N", 3)), TensorType(FLOAT, ("N", 2))]
    expected = (DataInput("x", types[0], required=True), DataInput("target", types[1], required=True))
    assert data_inputs(model, algorithm_graph(model, 0)) == expected


@pytest.mark.spec("T-04", "T-05")
def test_an_initialization_graph_sees_initializers_but_no_other_value() -> None:
    def read_state(model: onnx.ModelProto) -> None:
        initialization = model.training_info[0].initialization
        initialization.node.append(helper.make_node("Mul", ["W", "learning_rate"], ["scaled"]))
        initialization.output.append(floats("scaled", 3, 2))

    graph = initialization_graph(model_of(read_state), 0)
    assert graph.name == "training_info[0].initialization"
    assert captured_names(graph) == {"W", "learning_rate"}
    read_node_output = model_of(lambda m: m.training_info[0].initialization.node[0].input.append("y"))
    with pytest.raises(ModelError, match="reads 'y', but no input"):
        initialization_graph(read_node_output, 0)
