from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lowering.elsewhere import Case, assert_equal_to_onnxruntime
from tests.lowering.one_node import run_node

CASES = [
    *(
        Case("MatMul", 13, [a, b])
        for a, b in (((3,), (3,)), ((2, 3), (3,)), ((3,), (2, 3, 4)), ((2, 1, 3, 4), (5, 4, 2)))
    ),
    Case("MatMul", 9, [np.array([[2**40]], np.int64), np.array([[3]], np.int64)]),
    Case("Gemm", 7, [(4, 3), (5, 4), (3, 1)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    Case("Gemm", 13, [(3, 4), (4, 5)], {"beta": 3.0}),
    Case("Einsum", 12, [(2, 3, 4), (2, 4, 5)], {"equation": "...ij, ...jk -> ...ik"}),
    Case("Einsum", 12, [(3, 3), (3,)], {"equation": "ii,i"}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {[np.shape(x) or x for x in case.inputs]}")
def test_products_agree_with_onnxruntime(case: Case, x64: None) -> None:
    assert_equal_to_onnxruntime(case)


def test_a_zero_point_may_belong_to_each_row_and_each_column() -> None:
    a, b = np.array([[5, 6], [7, 8]], np.uint8), np.array([[1, 2], [3, 4]], np.int8)
    (y,) = run_node("MatMulInteger", [a, b, np.array([5, 7], np.uint8), np.array([1, 2], np.int8)], opset=10)
    np.testing.assert_array_equal(y, [[2, 2], [2, 2]])


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_gemm_of_integers_stays_one(dtype: Any, x64: None) -> None:
    ones = np.ones((2, 2), dtype)
    (y,) = run_node("Gemm", [ones, ones, ones], opset=13, alpha=2.0, beta=3.0)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, [[7, 7], [7, 7]])


def test_gradient_of_a_batched_product_with_one_matrix_sums_over_the_batch() -> None:
    x, w = jnp.ones((2, 3, 4)), jnp.ones((4, 5))
    gradient = jax.grad(lambda w: run_node("MatMul", [x, w], opset=13)[0].sum())(w)
    np.testing.assert_array_equal(gradient, np.full((4, 5), 6))


def test_gradient_of_a_singular_determinant_is_its_cofactors() -> None:
    gradient = jax.grad(lambda x: run_node("Det", [x], opset=22)[0])(jnp.array([[1.0, 2.0], [2.0, 4.0]]))
    np.testing.assert_allclose(gradient, [[4, -2], [-2, 1]], atol=1e-5)


def test_gemm_before_version_7_was_told_to_broadcast() -> None:
    (y,) = run_node("Gemm", [jnp.eye(2), jnp.ones((2, 3)), jnp.arange(3.0)], opset=6, broadcast=1)
    np.testing.assert_array_equal(y, [[1, 2, 3], [1, 2, 3]])
