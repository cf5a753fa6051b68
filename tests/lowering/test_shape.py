from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx.parser
import pytest

from onnxtrain.errors import OperatorError, StaticValueError
from onnxtrain.graph.read import read_model
from onnxtrain.lowering import static
from onnxtrain.lowering.context import Context
from onnxtrain.lowering.interpreter import run_graph
from tests.lowering.one_node import run_node

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
INT64 = np.iinfo(np.int64)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def run_text(text: str, fed: dict[str, Any], known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Runs a model given as text under jit, with some inputs known while tracing."""
    model = read_model(onnx.parser.parse_model(text))

    def run(fed: dict[str, Any]) -> dict[str, Any]:
        values = {**model.graph.initializers, **(known or {}), **fed}
        return run_graph(model.graph, values, model.graph.output_names, Context({}, model.opset_imports))

    return jax.jit(run)(fed)


FLATTEN_BY_SHAPE = """
    <ir_version: 8, opset_import: ["" : 17]>
    flatten (float[N, 3, 4] x) => (float[N, M] y)
        <int64[1] minus_one = {-1}, int64 zero = {0}, int64[1] axes = {0}>
    {
        shape = Shape (x)
        batch = Gather (shape, zero)
        batch_vector = Unsqueeze (batch, axes)
        target = Concat <axis = 0> (batch_vector, minus_one)
        y = Reshape (x, target)
    }
"""


@pytest.mark.parametrize("batch", [1, 5, 0])
def test_a_shape_computed_from_the_batch_works_for_every_batch(batch: int) -> None:
    found = run_text(FLATTEN_BY_SHAPE, {"x": np.zeros((batch, 3, 4), np.float32)})
    assert found["y"].shape == (batch, 12)


def test_a_shape_that_depends_on_values_is_refused_with_the_way_to_them() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        reshape (float[N] x, float[2] lengths) => (float[A, B] y)
        {
            whole = Cast <to = 7> (lengths)
            y = Reshape (x, whole)
        }
    """
    x, lengths = np.ones(6, np.float32), np.array([2, 3], np.float32)
    with pytest.raises(StaticValueError, match=r"lengths -> Cast 'whole' -> shape") as caught:
        run_text(text, {"x": x, "lengths": lengths})
    assert caught.value.source == "lengths"
    assert run_text(text, {"x": x}, known={"lengths": lengths})["y"].shape == (2, 3)


@pytest.mark.parametrize(
    ("shape", "target", "allowzero", "expected"),
    [
        ((2, 3, 4), (0, -1), 0, (2, 12)),
        ((2, 3, 4), (1, 2, 0, 4), 0, None),
        ((2, 3, 4), (0, 0, 0, 1), 0, (2, 3, 4, 1)),
        ((0, 3, 4), (0, -1), 0, (0, 12)),
        ((0, 3, 4), (-1, 12), 0, (0, 12)),
        ((0, 3), (3, 0), 1, (3, 0)),
        ((1,), (), 0, ()),
    ],
)
@pytest.mark.parametrize("static_inputs", [(1,), (0, 1)], ids=["traced", "static"])
def test_reshape_copies_and_infers_dimensions(
    shape: Any, target: Any, allowzero: int, expected: Any, static_inputs: tuple[int, ...]
) -> None:
    inputs = [np.zeros(shape, np.float32), ints(*target)]
    if expected is None:
        with pytest.raises(OperatorError):
            run_node("Reshape", inputs, opset=14, static_inputs=static_inputs, allowzero=allowzero)
        return
    (found,) = run_node("Reshape", inputs, opset=14, static_inputs=static_inputs, allowzero=allowzero)
    assert found.shape == expected


def test_reshape_of_version_1_takes_its_shape_from_an_attribute() -> None:
    (found,) = run_node("Reshape", [X], opset=1, shape=(0, -1))
    np.testing.assert_array_equal(found, X.reshape(2, 12))


def test_reshape_refuses_to_copy_a_dimension_that_is_not_there() -> None:
    with pytest.raises(OperatorError, match="copies a dimension"):
        run_node("Reshape", [X, ints(1, 1, 1, 0)], opset=14, static_inputs=(1,))


@pytest.mark.parametrize(
    ("start", "end", "step", "expected"),
    [
        (-1, INT64.min, -1, [3, 2, 1, 0]),
        (-100, 100, 2, [0, 2]),
        (-100, -200, -1, [0]),
        (INT64.max, INT64.min, -3, [3, 0]),
        (2, 1, 1, []),
        (1, INT64.max, 1, [1, 2, 3]),
    ],
)
@pytest.mark.parametrize("static_inputs", [(1, 2, 3, 4), (0, 1, 2, 3, 4)], ids=["traced", "static"])
def test_slice_leaves_out_what_is_outside(
    start: int, end: int, step: int, expected: list[int], static_inputs: tuple[int, ...]
) -> None:
    inputs = [np.arange(4, dtype=np.float32), ints(start), ints(end), ints(0), ints(step)]
    (found,) = run_node("Slice", inputs, opset=13, static_inputs=static_inputs)
    np.testing.assert_array_equal(found, expected)


def test_slice_of_version_1_takes_its_bounds_from_attributes() -> None:
    (found,) = run_node("Slice", [X], opset=1, starts=(1, -2), ends=(2, 100), axes=(1, 2))
    np.testing.assert_array_equal(found, X[:, 1:2, 2:])


@pytest.mark.parametrize(
    ("opset", "inputs", "attributes", "outputs", "expected"),
    [
        (18, [], {"num_outputs": 3}, 3, [4, 4, 2]),
        (18, [], {"num_outputs": 6}, 6, [2, 2, 2, 2, 2, 0]),
        (18, [ints(1, 0, 9)], {}, 3, [1, 0, 9]),
        (13, [], {}, 5, [2, 2, 2, 2, 2]),
        (11, [], {"split": (3, 7)}, 2, [3, 7]),
        (2, [], {}, 2, [5, 5]),
        (1, [], {"split": (3, 7)}, 2, [3, 7]),
        (1, [np.array([3, 7], np.float32)], {}, 2, [3, 7]),
    ],
)
def test_split_takes_its_lengths_in_every_form(
    opset: int, inputs: list[Any], attributes: Any, outputs: int, expected: list[int]
) -> None:
    x = np.arange(20, dtype=np.float32).reshape(2, 10)
    found = run_node("Split", [x, *inputs], opset=opset, outputs=outputs, static_inputs=(1,), axis=1, **attributes)
    assert [part.shape[1] for part in found] == expected
    np.testing.assert_array_equal(np.concatenate(found, 1), x)


def test_split_refuses_lengths_that_do_not_add_up() -> None:
    with pytest.raises(OperatorError, match="do not add up to the 10 elements"):
        run_node("Split", [np.ones(10, np.float32), ints(2, 3)], opset=13, outputs=2, static_inputs=(1,))


@pytest.mark.parametrize(
    ("opset", "inputs", "attributes", "expected"),
    [
        (1, [], {"paddings": (0, 1, 0, 2), "value": 5.0}, [[5, 0, 1, 5, 5]]),
        (2, [], {"pads": (0, 1, 0, 2), "value": 5.0}, [[5, 0, 1, 5, 5]]),
        (11, [ints(0, 1, 0, 2), np.float32(5)], {}, [[5, 0, 1, 5, 5]]),
        (13, [ints(0, 1, 0, 2)], {}, [[0, 0, 1, 0, 0]]),
        (18, [ints(1, 2), None, ints(-1)], {}, [[0, 0, 1, 0, 0]]),
        (18, [ints(1, 2), np.array([5], np.float32), ints(1)], {}, [[5, 0, 1, 5, 5]]),
        (18, [ints(0, -1, 0, 2)], {"mode": "edge"}, [[1, 1, 1]]),
        (19, [ints(0, 3, 0, 1)], {"mode": "wrap"}, [[1, 0, 1, 0, 1, 0]]),
    ],
)
@pytest.mark.parametrize("traced", [True, False], ids=["traced", "static"])
def test_pad_takes_its_pads_in_every_form(
    opset: int, inputs: list[Any], attributes: Any, expected: list[list[float]], traced: bool
) -> None:
    static_inputs = (1, 3) if traced else (0, 1, 2, 3)
    x = np.array([[0, 1]], np.float32)
    (found,) = run_node("Pad", [x, *inputs], opset=opset, static_inputs=static_inputs, **attributes)
    np.testing.assert_array_equal(found, expected)


def test_gradient_reaches_the_constant_that_pads() -> None:
    def padded(value: Any) -> Any:
        return run_node("Pad", [X, ints(1, 0, 0, 0, 0, 1), value], opset=13, static_inputs=(1,))[0].sum()

    assert jax.grad(padded)(jnp.float32(0)) == 3 * 3 * 5 - 24


def test_tile_of_version_1_repeats_along_one_axis() -> None:
    x = np.array([[1, 2]], np.float32)
    (found,) = run_node(
        "Tile", [x, np.array([2], np.float32), np.array([1], np.float32)], opset=1, static_inputs=(1, 2)
    )
    np.testing.assert_array_equal(found, [[1, 2, 1, 2]])


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "shape"),
    [
        ("Expand", [np.float32(1), ints(2, 2)], {}, (2, 2)),
        ("Expand", [np.float32(1), ints()], {}, ()),
        ("Unsqueeze", [np.float32(1), ints(0, 1)], {}, (1, 1)),
        ("Squeeze", [np.ones((1, 1), np.float32)], {}, ()),
        ("Flatten", [np.float32(1)], {"axis": 0}, (1, 1)),
        ("Transpose", [np.float32(1)], {}, ()),
        ("Expand", [np.ones((1, 3), np.float32), ints(0, 1)], {}, (0, 3)),
        ("Flatten", [np.ones((0, 3), np.float32)], {"axis": 1}, (0, 3)),
    ],
)
def test_scalars_and_empty_arrays_have_shapes_too(op_type: str, inputs: Any, attributes: Any, shape: Any) -> None:
    (found,) = run_node(op_type, inputs, opset=13, static_inputs=(1,), **attributes)
    assert found.shape == shape


def test_concat_of_old_versions_joins_the_second_axis() -> None:
    (found,) = run_node("Concat", [X, X], opset=3)
    np.testing.assert_array_equal(found, np.concatenate([X, X], 1))


@pytest.mark.parametrize(
    ("shape", "target", "axes", "expected"),
    [
        ((5, 5, 1), (1, 1, 1), None, np.s_[2:3, 2:3, :]),
        ((5, 4), (2,), (-1,), np.s_[:, 1:3]),
        ((6, 4), (3,), (0,), np.s_[1:4, :]),
    ],
)
def test_center_crop_is_centered(shape: Any, target: Any, axes: Any, expected: Any) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    attributes = {} if axes is None else {"axes": axes}
    (found,) = run_node("CenterCropPad", [x, ints(*target)], opset=18, static_inputs=(1,), **attributes)
    np.testing.assert_array_equal(found, x[expected])


def test_reversing_no_steps_changes_nothing() -> None:
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    (found,) = run_node("ReverseSequence", [x, ints(0, 3)], opset=10)
    np.testing.assert_array_equal(found, [[0, 5], [2, 3], [4, 1], [6, 7]])


def test_gradient_of_a_triangle_is_a_triangle() -> None:
    gradient = jax.grad(lambda x: run_node("Trilu", [x], opset=14)[0].sum())(jnp.ones((3, 3)))
    np.testing.assert_array_equal(gradient, np.triu(np.ones((3, 3))))


@pytest.mark.parametrize("op_type", ["Expand", "Tile"])
def test_a_large_array_made_from_a_small_one_is_made_at_run_time(op_type: str) -> None:
    count = static.MAX_STATIC_ELEMENTS + 1
    (large,) = run_node(op_type, [np.ones(1, np.float32), ints(count)], opset=13, static_inputs=(0, 1))
    (small,) = run_node(op_type, [np.ones(1, np.float32), ints(4)], opset=13, static_inputs=(0, 1))
    assert isinstance(large, jax.Array)
    assert isinstance(small, np.ndarray)
    assert large.shape == (count,)
