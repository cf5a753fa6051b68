from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lowering.one_node import run_node

X = np.random.default_rng(0).uniform(1, 2, (2, 3, 4)).astype(np.float32)
REDUCTIONS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
)


def axes_as_input(op_type: str) -> int:
    return 13 if op_type == "ReduceSum" else 18


@pytest.mark.parametrize("op_type", REDUCTIONS)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes_mean_the_same_as_attribute_and_as_input(op_type: str, keepdims: int) -> None:
    (old,) = run_node(op_type, [X], opset=11, axes=(0, -1), keepdims=keepdims)
    axes = np.array([0, -1])
    (new,) = run_node(op_type, [X, axes], opset=axes_as_input(op_type), static_inputs=(1,), keepdims=keepdims)
    assert old.shape == ((1, 3, 1) if keepdims else (3,))
    np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("opset", [11, 13])
def test_gradient_of_a_bias_is_the_same_with_axes_as_attribute_and_as_input(opset: int) -> None:
    def loss(x: Any) -> Any:
        if opset < 13:
            (sums,) = run_node("ReduceSum", [x], opset=opset, axes=(0,), keepdims=0)
        else:
            (sums,) = run_node("ReduceSum", [x, np.array([0])], opset=opset, static_inputs=(1,), keepdims=0)
        return jnp.sum(sums * sums)

    np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(X)), 2 * np.broadcast_to(X.sum(0), X.shape), rtol=1e-6)


@pytest.mark.parametrize("op_type", REDUCTIONS)
@pytest.mark.parametrize("axes", [None, np.zeros(0, np.int64)], ids=["absent", "empty"])
def test_no_axes_mean_all_axes(op_type: str, axes: Any) -> None:
    inputs = [X] if axes is None else [X, axes]
    (found,) = run_node(op_type, inputs, opset=axes_as_input(op_type), static_inputs=(1,))
    (expected,) = run_node(op_type, [X], opset=11, axes=(0, 1, 2))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("op_type", "unreduced"),
    [
        ("ReduceSum", X),
        ("ReduceMax", X),
        ("ReduceMean", X),
        ("ReduceSumSquare", X * X),
        ("ReduceL2", X),
        ("ReduceLogSum", np.log(X)),
        ("ReduceLogSumExp", X),
    ],
)
def test_reducing_over_no_axes_still_does_the_rest(op_type: str, unreduced: Any) -> None:
    (found,) = run_node(op_type, [X], opset=axes_as_input(op_type), noop_with_empty_axes=1)
    np.testing.assert_allclose(found, unreduced, rtol=1e-6)


@pytest.mark.parametrize(
    ("op_type", "dtype", "expected"),
    [
        ("ReduceMax", np.float32, -np.inf),
        ("ReduceMin", np.float32, np.inf),
        ("ReduceMax", np.int32, np.iinfo(np.int32).min),
        ("ReduceMin", np.uint8, 255),
        ("ReduceMax", np.bool_, False),
        ("ReduceMin", np.bool_, True),
        ("ReduceSum", np.float32, 0),
        ("ReduceProd", np.float32, 1),
        ("ReduceL2", np.float32, 0),
        ("ReduceLogSum", np.float32, -np.inf),
        ("ReduceLogSumExp", np.float32, -np.inf),
    ],
)
@pytest.mark.parametrize("static_inputs", [(1,), (0, 1)], ids=["traced", "static"])
def test_reduction_of_nothing(op_type: str, dtype: Any, expected: Any, static_inputs: tuple[int, ...]) -> None:
    x = np.zeros((2, 0, 3), dtype)
    (found,) = run_node(op_type, [x, np.array([1])], opset=20, static_inputs=static_inputs, keepdims=0)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.full((2, 3), expected, dtype))


def test_gradient_of_the_norm_of_a_zero_vector_is_zero() -> None:
    def norms(x: Any) -> Any:
        return run_node("ReduceL2", [x], opset=11, axes=(1,))[0].sum()

    gradient = jax.grad(norms)(jnp.array([[0.0, 0.0], [3.0, 4.0]]))
    np.testing.assert_allclose(gradient, [[0, 0], [0.6, 0.8]], rtol=1e-6)


def test_norm_of_nan_is_nan() -> None:
    (found,) = run_node("ReduceL2", [np.array([np.nan, 1], np.float32)], opset=18, keepdims=0)
    assert np.isnan(found)


def test_norm_of_half_floats_does_not_overflow_on_the_way() -> None:
    (found,) = run_node("ReduceL2", [np.array([300, 400], np.float16)], opset=18, keepdims=0)
    assert (found.dtype, float(found)) == (np.float16, 500.0)


def test_all_that_tie_share_the_gradient_of_the_maximum() -> None:
    gradient = jax.grad(lambda x: run_node("ReduceMax", [x], opset=20, keepdims=0)[0])(jnp.array([1.0, 3.0, 3.0]))
    np.testing.assert_array_equal(gradient, [0, 0.5, 0.5])


def test_gradient_of_a_product_with_a_zero_is_finite() -> None:
    gradient = jax.grad(lambda x: run_node("ReduceProd", [x], opset=18, keepdims=0)[0])(jnp.array([2.0, 0.0, 3.0]))
    np.testing.assert_array_equal(gradient, [0, 6, 0])


def test_gradient_of_the_logarithm_of_a_sum_of_large_exponentials_is_finite() -> None:
    x = jnp.array([1000.0, 1000.0, -1000.0])
    gradient = jax.grad(lambda x: run_node("ReduceLogSumExp", [x], opset=18, keepdims=0)[0])(x)
    np.testing.assert_allclose(gradient, [0.5, 0.5, 0])


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceLogSumExp"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_reductions_of_integers_give_integers(op_type: str, dtype: Any, x64: None) -> None:
    (found,) = run_node(op_type, [np.array([3, 4], dtype)], opset=axes_as_input(op_type), keepdims=0)
    assert found.dtype == dtype
    assert int(found) == {"ReduceSum": 7, "ReduceMean": 3, "ReduceL1": 7, "ReduceL2": 5, "ReduceLogSumExp": 4}[op_type]


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize(("last", "expected"), [(0, [1, 0]), (1, [2, 2])])
def test_position_of_the_first_or_last_of_equal_extremes(op_type: str, last: int, expected: list[int]) -> None:
    x = np.array([[1, 3, 3], [2, 2, 2]], np.float32)
    x = x if op_type == "ArgMax" else -x
    (found,) = run_node(op_type, [x], opset=13, axis=-1, keepdims=0, select_last_index=last)
    np.testing.assert_array_equal(found, expected)
