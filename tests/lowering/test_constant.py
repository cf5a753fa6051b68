from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from onnxtrain.errors import OperatorError
from onnxtrain.graph.model import SparseTensor
from onnxtrain.lowering import static
from tests.lowering.one_node import run_node

SPARSE = SparseTensor(np.array([5, 6], np.float32), np.array([1, 2]), (2, 2))


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"value": np.array([[1, 2]], np.int8)}, np.array([[1, 2]], np.int8)),
        ({"sparse_value": SPARSE}, np.array([[0, 5], [6, 0]], np.float32)),
        ({"value_float": 1.5}, np.array(1.5, np.float32)),
        ({"value_floats": (1.5, 2.5)}, np.array([1.5, 2.5], np.float32)),
        ({"value_int": 2**40}, np.array(2**40, np.int64)),
        ({"value_ints": (1, -1)}, np.array([1, -1], np.int64)),
        ({"value_ints": ()}, np.zeros(0, np.int64)),
        ({"value_string": "a"}, np.array("a", object)),
        ({"value_strings": ("a", "bc")}, np.array(["a", "bc"], object)),
    ],
)
def test_a_constant_in_every_form(attributes: Any, expected: Any) -> None:
    (found,) = run_node("Constant", [], opset=24, **attributes)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tolist() == expected.tolist()


def test_a_constant_with_no_value_is_refused() -> None:
    with pytest.raises(OperatorError, match="Exactly one attribute"):
        run_node("Constant", [], opset=24)


def test_constant_of_shape_is_a_zero_of_float32_unless_told() -> None:
    (found,) = run_node("ConstantOfShape", [np.array([2, 0])], opset=9, static_inputs=(0,))
    assert (found.dtype, found.shape) == (np.float32, (2, 0))
    value = np.array([3], ml_dtypes.int4)
    (found,) = run_node("ConstantOfShape", [np.zeros(0, np.int64)], opset=21, static_inputs=(0,), value=value)
    assert (found.dtype, found.shape, int(found)) == (value.dtype, (), 3)


def test_a_large_constant_is_made_at_run_time() -> None:
    count = static.MAX_STATIC_ELEMENTS + 1
    value = np.array([7], np.int64)
    (large,) = run_node("ConstantOfShape", [np.array([count])], opset=9, static_inputs=(0,), value=value)
    assert isinstance(large, jax.Array)
    assert (large.shape, int(large[-1])) == ((count,), 7)
    (steps,) = run_node("Range", list(np.array([0, count, 1])), opset=11, static_inputs=(0, 1, 2))
    assert isinstance(steps, jax.Array)
    assert (steps.shape, int(steps[-1])) == ((count,), count - 1)


@pytest.mark.parametrize(
    ("numbers", "dtype", "expected"),
    [
        ((3, 9, 3), np.int32, [3, 6]),
        ((10, 4, -2), np.int64, [10, 8, 6]),
        ((0, 5, -1), np.int16, []),
        ((2**53, 2**53 + 3, 1), np.int64, [2**53, 2**53 + 1, 2**53 + 2]),
        ((0.0, 1.0, 0.3), np.float64, [0.0, 0.3, 0.6, 0.3 * 3]),
        ((256.0, 260.0, 1.0), ml_dtypes.bfloat16, [256, 256, 258, 260]),
    ],
)
def test_range_counts_exactly(numbers: Any, dtype: Any, expected: Any) -> None:
    (found,) = run_node("Range", [np.array(number, dtype) for number in numbers], opset=27, static_inputs=(0, 1, 2))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.astype(np.float64), np.array(expected, np.float64))


@pytest.mark.parametrize(("k", "expected"), [(0, np.eye(2, 3)), (1, np.eye(2, 3, 1)), (-1, np.eye(2, 3, -1))])
def test_ones_on_a_diagonal_of_another_type(k: int, expected: Any) -> None:
    (found,) = run_node("EyeLike", [np.zeros((2, 3), np.float32)], opset=22, k=k, dtype=6)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)
