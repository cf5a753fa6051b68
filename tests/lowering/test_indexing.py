from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onnxtrain.errors import OperatorError, StaticValueError
from tests.lowering.one_node import run_node

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("static_inputs", [(), (1,), (0, 1)], ids=["traced", "known indices", "static"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_negative_indices_count_from_the_end(dtype: Any, static_inputs: tuple[int, ...], x64: None) -> None:
    (scalar,) = run_node("Gather", [X, np.array(-1, dtype)], opset=13, static_inputs=static_inputs, axis=1)
    np.testing.assert_array_equal(scalar, X[:, -1])
    (several,) = run_node("Gather", [X, np.array([[-3, 2]], dtype)], opset=13, static_inputs=static_inputs)
    np.testing.assert_array_equal(several, X[[[0, 2]]])
    pairs = np.array([[-1, -1], [0, 1]], dtype).astype(np.int64)
    (points,) = run_node("GatherND", [X, pairs], opset=13, static_inputs=static_inputs)
    np.testing.assert_array_equal(points, [11, 1])
    rows = np.array([[-1, 0, -2, 1]], dtype)
    (elements,) = run_node("GatherElements", [X, rows], opset=13, static_inputs=static_inputs)
    np.testing.assert_array_equal(elements, [[8, 1, 6, 7]])


@pytest.mark.parametrize(
    ("op_type", "indices"),
    [("Gather", [7, -9]), ("GatherElements", [[7, -9, 0, 0]]), ("GatherND", [[7, 0], [-9, 0]])],
)
def test_known_indices_out_of_range_are_refused_and_traced_ones_read_the_nearest(op_type: str, indices: Any) -> None:
    inputs = [X, np.array(indices, np.int64)]
    with pytest.raises(OperatorError, match="do not fit a dimension of 3"):
        run_node(op_type, inputs, opset=13, static_inputs=(1,))
    (found,) = run_node(op_type, inputs, opset=13)
    nearest = {"Gather": X[[2, 0]], "GatherElements": [[8, 1, 2, 3]], "GatherND": [8, 0]}
    np.testing.assert_array_equal(found, nearest[op_type])


def test_no_indices_gather_nothing() -> None:
    (gathered,) = run_node("Gather", [X, np.zeros((0, 2), np.int64)], opset=13, axis=1)
    assert gathered.shape == (3, 0, 2)
    (elements,) = run_node("GatherElements", [X, np.zeros((0, 4), np.int64)], opset=13)
    assert elements.shape == (0, 4)
    (nothing,) = run_node("Gather", [np.zeros((0, 3), np.float32), np.zeros(0, np.int64)], opset=13)
    assert nothing.shape == (0, 3)


def test_gradient_of_an_embedding_adds_up_what_is_read_twice() -> None:
    gradient = jax.grad(lambda table: run_node("Gather", [table, np.array([1, 1, -1])], opset=13)[0].sum())(
        jnp.ones((3, 2))
    )
    np.testing.assert_array_equal(gradient, [[0, 0], [2, 2], [1, 1]])


@pytest.mark.parametrize("static_inputs", [(), (1,), (0, 1, 2)], ids=["traced", "known indices", "static"])
@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("add", [6, 1, 2]), ("mul", [0, 1, 2]), ("max", [4, 1, 2]), ("min", [0, 1, 2])],
)
def test_repeated_indices_accumulate(reduction: str, expected: list[float], static_inputs: tuple[int, ...]) -> None:
    data, updates = np.array([0, 1, 2], np.float32), np.array([2, 4], np.float32)
    for op_type, indices in (("ScatterElements", [0, -3]), ("ScatterND", [[0], [-3]])):
        inputs = [data, np.array(indices, np.int64), updates]
        (found,) = run_node(op_type, inputs, opset=18, static_inputs=static_inputs, reduction=reduction)
        np.testing.assert_array_equal(found, expected)


def test_gradient_of_products_at_repeated_indices_is_right_even_for_zeros() -> None:
    def scattered(data: Any, updates: Any) -> Any:
        indices = np.array([[0], [0], [2], [-3]], np.int64)
        (found,) = run_node("ScatterND", [data, indices, updates], opset=18, reduction="mul")
        return jnp.sum(found * jnp.array([1.0, 10.0, 100.0]))

    data, updates = jnp.array([2.0, 3.0, 5.0]), jnp.array([7.0, 0.0, 4.0, 3.0])
    of_data, of_updates = jax.grad(scattered, (0, 1))(data, updates)
    np.testing.assert_allclose(of_data, [0, 10, 400])
    np.testing.assert_allclose(of_updates, [0, 2 * 7 * 3, 500, 0])


def test_traced_indices_out_of_range_write_nothing() -> None:
    data, updates = np.array([1, 2, 3], np.float32), np.array([5, 7], np.float32)
    for reduction in ("none", "add", "mul", "max", "min"):
        (found,) = run_node("ScatterND", [data, np.array([[9], [-9]]), updates], opset=18, reduction=reduction)
        np.testing.assert_array_equal(found, data)


def test_scatter_of_version_9_is_scatter_elements() -> None:
    inputs = [X, np.array([[0, 2], [1, 0]]), np.array([[-1, -2], [-3, -4]], np.float32)]
    (old,) = run_node("Scatter", inputs, opset=9, axis=1)
    (new,) = run_node("ScatterElements", inputs, opset=18, axis=1)
    np.testing.assert_array_equal(old, new)
    np.testing.assert_array_equal(old[:2], [[-1, 1, -2, 3], [-4, -3, 6, 7]])


@pytest.mark.parametrize("axis", [-1, 0, 1, -2])
def test_one_hot_counts_from_the_end_and_ignores_what_is_outside(axis: int) -> None:
    indices = np.array([0, -1, 3, -4], np.int32)
    inputs = [indices, np.array([3]), np.array([2, 5], np.float32)]
    (found,) = run_node("OneHot", inputs, opset=11, static_inputs=(1,), axis=axis)
    expected = np.array([[5, 2, 2], [2, 2, 5], [2, 2, 2], [2, 2, 2]])
    np.testing.assert_array_equal(found, expected if axis in (-1, 1) else expected.T)


@pytest.mark.parametrize("indices", [np.array([0.0, 2.0], np.float32), np.array([0, 2], np.uint8)])
def test_one_hot_takes_indices_of_any_number_type(indices: Any) -> None:
    (found,) = run_node("OneHot", [indices, np.float32(3), np.array([0, 1])], opset=11, static_inputs=(1,))
    np.testing.assert_array_equal(found, [[1, 0, 0], [0, 0, 1]])


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (np.array(0), np.zeros((0, 0))),
        (np.array(7), np.zeros((0, 1))),
        (np.zeros((0, 3)), np.zeros((2, 0))),
        (np.array([[0, 1], [2, 0]]), [[0, 1], [1, 0]]),
    ],
)
def test_positions_of_what_is_not_zero(x: Any, expected: Any) -> None:
    (found,) = run_node("NonZero", [x], opset=13, static_inputs=(0,))
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("op_type", ["NonZero", "Unique"])
def test_a_size_that_depends_on_values_is_refused_while_tracing(op_type: str) -> None:
    with pytest.raises(StaticValueError, match="must be known while tracing"):
        run_node(op_type, [X], opset=13)


def test_compress_needs_only_its_condition() -> None:
    condition = np.array([True, False, True])
    (rows,) = run_node("Compress", [X, condition], opset=11, static_inputs=(1,), axis=0)
    np.testing.assert_array_equal(rows, X[[0, 2]])
    (elements,) = run_node("Compress", [X, condition], opset=11, static_inputs=(1,))
    np.testing.assert_array_equal(elements, [0, 2])


@pytest.mark.parametrize("ordered", [0, 1])
def test_unique_in_order_of_value_or_of_appearance(ordered: int) -> None:
    x = np.array([3, 1, 1, 2, 3])
    values, first, inverse, counts = run_node("Unique", [x], opset=11, outputs=4, static_inputs=(0,), sorted=ordered)
    np.testing.assert_array_equal(values, [1, 2, 3] if ordered else [3, 1, 2])
    np.testing.assert_array_equal(first, [1, 3, 0] if ordered else [0, 1, 3])
    np.testing.assert_array_equal(values[inverse], x)
    np.testing.assert_array_equal(counts, [2, 1, 2] if ordered else [2, 2, 1])


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    "x",
    [
        np.array([0.0, -0.0, 0.0, -0.0], np.float32),
        np.array([5, 5, 5, 5], np.int8),
        np.array([5, 5, 5, 5], np.float16),
    ],
)
def test_of_equal_elements_the_first_come_first(x: Any, largest: int) -> None:
    _, indices = run_node("TopK", [x, np.array([3])], opset=24, outputs=2, static_inputs=(1,), largest=largest)
    np.testing.assert_array_equal(indices, [0, 1, 2])


@pytest.mark.parametrize(
    ("x", "largest", "expected"),
    [
        (np.array([3, -128, 127], np.int8), 0, [-128, 3]),
        (np.array([3, 250, 0], np.uint8), 0, [0, 3]),
        (np.array([3, 250, 0], np.uint8), 1, [250, 3]),
        (np.array([1, -np.inf, np.inf], np.float32), 0, [-np.inf, 1]),
    ],
)
def test_the_smallest_of_every_number_type(x: Any, largest: int, expected: Any) -> None:
    values, _ = run_node("TopK", [x, np.array([2])], opset=11, outputs=2, static_inputs=(1,), largest=largest)
    assert values.dtype == x.dtype
    np.testing.assert_array_equal(values, expected)


def test_top_k_of_version_1_takes_k_from_an_attribute() -> None:
    values, indices = run_node("TopK", [X], opset=1, outputs=2, k=2, axis=0)
    np.testing.assert_array_equal(values, X[[2, 1]])
    np.testing.assert_array_equal(indices, [[2] * 4, [1] * 4])


def test_gradient_of_the_largest_elements_goes_where_they_stand() -> None:
    def weighted(x: Any) -> Any:
        values, _ = run_node("TopK", [x, np.array([2])], opset=11, outputs=2, static_inputs=(1,))
        return values @ jnp.array([1.0, 10.0])

    np.testing.assert_array_equal(jax.grad(weighted)(jnp.array([0.0, 3.0, 2.0])), [0, 1, 10])


def test_the_cache_is_written_in_a_circle_for_each_sample() -> None:
    cache, update = np.zeros((2, 4, 1), np.float32), np.array([[[1], [2]], [[3], [4]]], np.float32)
    (found,) = run_node("TensorScatter", [cache, update, np.array([3, 1])], opset=24, mode="circular")
    np.testing.assert_array_equal(found[..., 0], [[2, 0, 0, 1], [0, 3, 4, 0]])
    (first,) = run_node("TensorScatter", [cache, update], opset=24)
    np.testing.assert_array_equal(first[..., 0], [[1, 2, 0, 0], [3, 4, 0, 0]])
