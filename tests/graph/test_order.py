from __future__ import annotations

import random
from typing import Any

import pytest

from onnxtrain.errors import ModelError
from onnxtrain.graph.model import AttributeReference, Function, Graph, Node, ValueInfo
from onnxtrain.graph.order import (
    captured_names,
    find_cycle,
    needed_nodes,
    reads,
    sort_function,
    sort_graph,
    sort_nodes,
)


def node(reads: str, writes: str, op_type: str = "Op", domain: str = "", **attributes: Any) -> Node:
    return Node(op_type, domain, "", tuple(reads.split()), tuple(writes.split()), attributes)


def graph(*nodes: Node, inputs: str = "", outputs: str = "", initializers: str = "") -> Graph:
    return Graph(
        name="inner",
        inputs=tuple(ValueInfo(name, None) for name in inputs.split()),
        outputs=tuple(ValueInfo(name, None) for name in outputs.split()),
        nodes=nodes,
        initializers=dict.fromkeys(initializers.split()),  # type: ignore[arg-type]
    )


def chain(length: int) -> list[Node]:
    return [node(f"v{index}", f"v{index + 1}") for index in range(length)]


def gradient(**attributes: Any) -> Node:
    return node("a b", "g", "Gradient", "ai.onnx.preview.training", **attributes)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Node("Op", "", "", ("x", "", "y", "x"), ("z",)), "x y"),
        (gradient(xs=("p", "q"), zs=("r",), y="s"), "a b p q r s"),
        (gradient(xs=AttributeReference("names"), y="s"), "a b s"),
        (node("a", "g", "Gradient", "my.domain", y="s"), "a"),
        (node("c", "d", "If", then_branch=graph(node("x", "y"), outputs="y"), else_branch=graph(outputs="z")), "c x z"),
        (node("", "d", "Op", bodies=(graph(outputs="p"), graph(outputs="q"))), "p q"),
    ],
    ids=[
        "inputs without absent ones",
        "names in a Gradient",
        "references to function attributes name no value",
        "Gradient of another domain",
        "captures of branches",
        "captures of a list of graphs",
    ],
)
def test_a_node_reads(given: Node, expected: str) -> None:
    assert reads(given) == set(expected.split())


@pytest.mark.spec("M-03")
def test_inputs_initializers_and_outputs_of_a_subgraph_hide_outer_values() -> None:
    body = graph(node("i w n outer", "o"), node("o", "n"), inputs="i", initializers="w", outputs="o elsewhere")
    assert captured_names(body) == {"outer", "elsewhere"}


@pytest.mark.spec("M-03", "G-08")
def test_captures_are_found_at_any_depth() -> None:
    innermost = graph(gradient(xs=("far",), y="loss"), outputs="g")
    middle = graph(node("", "m", "If", then_branch=innermost), node("b", "loss"), outputs="m")
    assert captured_names(graph(node("", "t", "If", then_branch=middle), outputs="t")) == {"a", "b", "far"}


def test_nodes_that_are_in_order_stay_as_they_are() -> None:
    nodes = [node("x", "a"), node("x", "c"), node("a", "b"), node("c b", "d")]
    assert sort_nodes(nodes, {"x"}, "main") == tuple(nodes)


def test_shuffled_nodes_come_out_in_topological_order_however_many_there_are() -> None:
    nodes = chain(5000)
    shuffled = random.Random(0).sample(nodes, len(nodes))
    assert sort_nodes(shuffled, {"v0"}, "main") == tuple(nodes)


def test_a_captured_value_is_computed_before_the_node_whose_subgraph_reads_it() -> None:
    branching = node("c", "d", "If", then_branch=graph(outputs="late"))
    late = node("c", "late")
    assert sort_nodes([branching, late], {"c"}, "main") == (late, branching)


@pytest.mark.spec("G-08")
def test_a_gradient_comes_after_what_it_differentiates() -> None:
    derivative, loss = gradient(xs=("a",), y="loss"), node("a", "loss")
    assert sort_nodes([derivative, loss], {"a", "b"}, "main") == (loss, derivative)


def test_names_are_opaque_and_a_written_name_hides_a_known_one() -> None:
    first, second = node("x:0", "/a.b/ü"), node("/a.b/ü", "y")
    assert sort_nodes([second, first], {"x:0", "/a.b/ü"}, "main") == (first, second)


def test_nodes_of_subgraphs_at_any_depth_are_sorted_too() -> None:
    inner = graph(node("m", "n"), node("outer", "m"), outputs="n")
    middle = graph(node("k", "r", "If", then_branch=inner), node("outer", "k"), outputs="r")
    result = sort_graph(graph(node("", "y", "Many", bodies=(middle,)), node("x", "outer"), inputs="x", outputs="y"))
    sorted_middle = result.nodes[1].subgraphs[0]
    assert [one.outputs for one in sorted_middle.nodes] == [("k",), ("r",)]
    assert [one.outputs for one in sorted_middle.nodes[1].subgraphs[0].nodes] == [("m",), ("n",)]


def test_nodes_of_functions_are_sorted_too() -> None:
    function = Function("F", "my", "", ("x",), ("z",), (), {}, (node("y", "z"), node("x", "y")), {"": 17})
    assert [one.outputs for one in sort_function(function).nodes] == [("y",), ("z",)]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("x", "a"), node("nowhere", "b")], "Op (unnamed, writes 'b') in graph 'main' reads 'nowhere'"),
        (
            [node("", "a", "If", then_branch=graph(outputs="lost"))],
            "If (unnamed, writes 'a') in graph 'main' reads 'lost'",
        ),
        ([node("x b", "a"), node("a", "b")], "'a') needs Op (unnamed, writes 'b') needs Op (unnamed, writes 'a')"),
        ([node("x a", "a")], "(unnamed, writes 'a') needs Op (unnamed, writes 'a')"),
        (
            [node("x", "a"), Node("Relu", "", "again", (), ("a",))],
            "'a' twice: by Op (unnamed, writes 'a') and by Relu 'again'",
        ),
        ([node("x", "a a")], "writes 'a' twice"),
    ],
    ids=["undefined", "undefined in a subgraph", "cycle", "cycle of one", "two producers", "one producer twice"],
)
def test_what_has_no_order_is_named(nodes: list[Node], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        sort_nodes(nodes, {"x"}, "main")
    assert message in str(caught.value)


def test_a_cycle_is_found_behind_a_long_chain() -> None:
    nodes = [*chain(3000), node("v3000 q", "p"), node("p", "q")]
    assert find_cycle(nodes) == (nodes[3000], nodes[3001])
    assert find_cycle(nodes[:3000]) == ()


def test_nodes_that_no_output_needs_are_dropped_and_the_rest_keep_their_order() -> None:
    used, dead, also_used = node("x", "a"), node("a", "dead"), node("x", "b")
    reader = node("a", "y", "If", then_branch=graph(outputs="b"))
    assert needed_nodes([used, dead, also_used, reader], ["y", "x", "unknown"]) == (used, also_used, reader)


def test_a_node_with_several_outputs_is_needed_for_any_of_them() -> None:
    split = node("x", "a b")
    assert needed_nodes([split], ["b"]) == (split,)


def test_all_of_a_long_chain_is_needed_for_its_end() -> None:
    nodes = tuple(chain(5000))
    assert needed_nodes(nodes[::-1], ["v5000"]) == nodes[::-1]
