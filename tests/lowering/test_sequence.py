from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onnxtrain.errors import OperatorError, StaticValueError
from onnxtrain.graph.model import Graph, Node
from onnxtrain.lowering.interpreter import Context, run_graph
from tests.lowering.one_node import run_node

ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


def at(sequence: list[Any], position: int) -> Any:
    return run_node("SequenceAt", [sequence, np.int64(position)], opset=11, static_inputs=(1,))[0]


def test_positions_count_from_either_end() -> None:
    sequence = [np.float32(i) for i in range(3)]
    assert [float(at(sequence, position)) for position in (0, 2, -1, -3)] == [0, 2, 2, 0]
    (longer,) = run_node("SequenceInsert", [sequence, np.float32(9), np.int64(-1)], opset=11, static_inputs=(1, 2))
    (appended,) = run_node("SequenceInsert", [sequence, np.float32(9), np.int64(3)], opset=11, static_inputs=(1, 2))
    (shorter,) = run_node("SequenceErase", [sequence, np.int64(-3)], opset=11, static_inputs=(1,))
    (without_last,) = run_node("SequenceErase", [sequence], opset=11)
    assert [list(map(float, found)) for found in (longer, appended, shorter, without_last)] == [
        [0, 1, 9, 2],
        [0, 1, 2, 9],
        [1, 2],
        [0, 1],
    ]


@pytest.mark.parametrize("position", [3, -4])
def test_a_position_outside_a_sequence_is_refused(position: int) -> None:
    with pytest.raises(OperatorError, match=f"Position {position} is out of range for a sequence of 3"):
        at([np.float32(0)] * 3, position)


def test_a_position_must_be_known_while_tracing() -> None:
    with pytest.raises(StaticValueError, match="'position' must be known while tracing"):
        run_node("SequenceAt", [[ROWS], np.int64(0)], opset=11)


@pytest.mark.parametrize(
    ("split", "attributes", "shapes"),
    [
        (None, {"axis": 0}, [(1, 2)] * 6),
        (None, {"axis": 1, "keepdims": 0}, [(6,), (6,)]),
        (np.int64(4), {"axis": 0}, [(4, 2), (2, 2)]),
        (np.array([1, 5]), {"axis": -2, "keepdims": 0}, [(1, 2), (5, 2)]),
    ],
)
def test_split_to_sequence_takes_a_size_or_a_list_of_them(
    split: Any, attributes: dict[str, Any], shapes: list[tuple[int, ...]]
) -> None:
    (parts,) = run_node("SplitToSequence", [ROWS, split], opset=11, static_inputs=(1,), attributes=attributes)
    assert [part.shape for part in parts] == shapes


def test_sizes_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(OperatorError, match=r"\[1, 2\] do not add up to 6"):
        run_node("SplitToSequence", [ROWS, np.array([1, 2])], opset=11, static_inputs=(1,))


def test_an_absent_optional_has_no_element_to_get() -> None:
    (found,) = run_node("OptionalHasElement", [None], opset=18)
    assert found.dtype == np.bool_
    assert not found
    with pytest.raises(OperatorError, match="no element to get"):
        run_node("OptionalGetElement", [None], opset=18)


def test_gradients_flow_through_sequences_and_optionals() -> None:
    nodes = (
        Node("SplitToSequence", "", "", ("x", "three"), ("parts",), {}),
        Node("SequenceConstruct", "", "", ("x", "x"), ("pair",)),
        Node("SequenceAt", "", "", ("parts", "last"), ("part",)),
        Node("SequenceInsert", "", "", ("pair", "part"), ("three parts",)),
        Node("SequenceErase", "", "", ("three parts", "first"), ("two parts",)),
        Node("Optional", "", "", ("two parts",), ("maybe",)),
        Node("OptionalGetElement", "", "", ("maybe",), ("surely",)),
        Node("ConcatFromSequence", "", "", ("surely",), ("y",), {"axis": 0}),
    )
    fixed = {"three": np.int64(3), "last": np.int64(-1), "first": np.int64(0)}
    weights = np.arange(9, dtype=np.float32)[:, None]

    def total(x: jax.Array) -> jax.Array:
        found = run_graph(Graph("test", (), (), nodes), {"x": x, **fixed}, ("y",), Context({}, {"": 18}))
        return jnp.sum(found["y"] * weights)

    gradient = jax.jit(jax.grad(total))(ROWS)
    np.testing.assert_array_equal(gradient[:, 0], [0, 1, 2, 3 + 6, 4 + 7, 5 + 8])
