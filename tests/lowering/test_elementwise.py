from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onnxtrain.errors import OperatorError, StaticValueError
from tests.lowering.one_node import run_node


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Pow"])
@pytest.mark.parametrize(
    ("shape", "axis", "aligned"),
    [((), None, ()), ((5,), None, (5,)), ((4, 5), None, (4, 5)), ((3, 4), 1, (3, 4, 1)), ((2,), 0, (2, 1, 1, 1))],
)
def test_broadcast_of_old_versions_aligns_the_second_input_at_an_axis(
    op_type: str, shape: tuple[int, ...], axis: int | None, aligned: tuple[int, ...]
) -> None:
    random = np.random.default_rng(0)
    a = random.uniform(1, 2, (2, 3, 4, 5)).astype(np.float32)
    b = random.uniform(1, 2, shape).astype(np.float32)
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    (found,) = run_node(op_type, [a, b], opset=6 if op_type != "Pow" else 1, broadcast=1, **attributes)
    (expected,) = run_node(op_type, [a, b.reshape(aligned)], opset=13)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("op_type", ["And", "Or", "Xor", "Equal", "Less", "Greater"])
def test_old_comparisons_and_logic_broadcast_at_an_axis(op_type: str) -> None:
    logical = op_type in ("And", "Or", "Xor")
    a = np.arange(6).reshape(2, 3).astype(bool if logical else np.float32)
    b = np.array([0, 1]).astype(a.dtype)
    if op_type == "Equal":
        a, b = a.astype(np.int32), b.astype(np.int32)
    (found,) = run_node(op_type, [a, b], opset=1, broadcast=1, axis=0)
    (expected,) = run_node(op_type, [a, b.reshape(2, 1)], opset=7)
    np.testing.assert_array_equal(found, expected)


def test_old_broadcast_beyond_the_first_input_is_refused() -> None:
    with pytest.raises(OperatorError, match="reaches beyond"):
        run_node("Add", [np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)], opset=6, broadcast=1, axis=1)


@pytest.mark.parametrize("static_inputs", [(), (0, 1)], ids=["traced", "static"])
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_integer_division_truncates(dtype: Any, static_inputs: tuple[int, ...], x64: None) -> None:
    a, b = np.array([-7, 7, -7, 7, -6, 0], dtype), np.array([2, -2, -2, 2, 3, 5], dtype)
    (found,) = run_node("Div", [a, b], opset=14, static_inputs=static_inputs)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, [-3, -3, 3, 3, -2, 0])


@pytest.mark.parametrize("static_inputs", [(), (0, 1)], ids=["traced", "static"])
def test_mod_takes_the_sign_of_the_divisor_and_fmod_that_of_the_dividend(static_inputs: tuple[int, ...]) -> None:
    a, b = np.array([-7, 7, -7, 7], np.int32), np.array([2, -2, -2, 2], np.int32)
    (floored,) = run_node("Mod", [a, b], opset=13, static_inputs=static_inputs)
    (truncated,) = run_node("Mod", [a, b], opset=13, static_inputs=static_inputs, fmod=1)
    np.testing.assert_array_equal(floored, [1, -1, -1, 1])
    np.testing.assert_array_equal(truncated, [-1, 1, -1, 1])


@pytest.mark.parametrize("static_inputs", [(), (0, 1)], ids=["traced", "static"])
def test_shifts_by_impossible_amounts_leave_the_sign(static_inputs: tuple[int, ...]) -> None:
    x, y = np.array([-8, 8, -8, 8], np.int8), np.array([8, 8, -1, -1], np.int8)
    (right,) = run_node("BitShift", [x, y], opset=28, static_inputs=static_inputs, direction="RIGHT")
    (left,) = run_node("BitShift", [x, y], opset=28, static_inputs=static_inputs, direction="LEFT")
    np.testing.assert_array_equal(right, [-1, 0, -1, 0])
    np.testing.assert_array_equal(left, [0, 0, 0, 0])


@pytest.mark.parametrize(
    ("base", "exponent", "expected"),
    [
        (np.array([2, 9], np.int32), np.array(0.5, np.float32), np.array([1, 3], np.int32)),
        (np.array([-2.0, 3.0], np.float32), np.array([3, 2], np.int64), np.array([-8, 9], np.float32)),
        (np.array([-2.0, 0.0], np.float32), np.array(0, np.int32), np.array([1, 1], np.float32)),
        (np.array([2, 3], np.int64), np.array([40, 2], np.int64), np.array([2**40, 9], np.int64)),
        (np.array(2.0, np.float32), np.array([[2.0]], np.float32), np.array([[4.0]], np.float32)),
    ],
)
@pytest.mark.parametrize("static_inputs", [(), (1,), (0, 1)], ids=["traced", "known exponent", "static"])
def test_power_has_the_type_of_its_base(
    base: Any, exponent: Any, expected: Any, static_inputs: tuple[int, ...], x64: None
) -> None:
    (found,) = run_node("Pow", [base, exponent], opset=15, static_inputs=static_inputs)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("static_inputs", [(), (1,)], ids=["traced exponent", "known exponent"])
def test_gradient_of_a_power_of_a_negative_base_is_finite(static_inputs: tuple[int, ...]) -> None:
    def power(x: Any) -> Any:
        return run_node("Pow", [x, np.array(2.0, np.float32)], opset=15, static_inputs=static_inputs)[0]

    assert jax.grad(power)(jnp.float32(-2.0)) == -4.0
    assert jax.grad(power)(jnp.float32(0.0)) == 0.0


def test_masking_with_minus_infinity_keeps_gradients_finite() -> None:
    condition = np.array([[True, False, True], [False, True, True]])

    def masked(scores: Any) -> Any:
        (kept,) = run_node("Where", [condition, scores, np.array(-np.inf, np.float32)], opset=16)
        return jnp.sum(jnp.square(jax.nn.softmax(kept)))

    gradient = jax.grad(masked)(jnp.ones((2, 3), np.float32))
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[~condition], 0)


def test_where_broadcasts_two_scalars_to_its_condition() -> None:
    condition = np.array([[True, False], [False, True]])
    (found,) = run_node("Where", [condition, np.float32(0), np.float32(-np.inf)], opset=16)
    np.testing.assert_array_equal(found, [[0, -np.inf], [-np.inf, 0]])


def test_text_beside_a_traced_value_is_refused_with_the_way_to_it() -> None:
    words = np.array(["a", "b"], object)
    with pytest.raises(StaticValueError, match="'condition' must be known while tracing") as caught:
        run_node("Where", [np.array([True, False]), words, words], opset=16)
    assert caught.value.source == "input0"


def test_two_that_tie_share_the_gradient_of_max() -> None:
    gradients = jax.grad(lambda a, b: run_node("Max", [a, b], opset=13)[0].sum(), (0, 1))
    first, second = gradients(jnp.array([1.0, 3.0]), jnp.array([1.0, 2.0]))
    np.testing.assert_array_equal(first, [0.5, 1.0])
    np.testing.assert_array_equal(second, [0.5, 0.0])


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint16])
def test_error_function_of_integers_is_cut_to_integers(dtype: Any) -> None:
    (found,) = run_node("Erf", [np.array([0, 1, 9], dtype)], opset=13)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, [0, 0, 1])


@pytest.mark.parametrize(
    ("op_type", "exclusive", "reverse", "expected"),
    [
        ("CumSum", 1, 0, [0, 1, 3, 6]),
        ("CumSum", 0, 1, [10, 9, 7, 4]),
        ("CumSum", 1, 1, [9, 7, 4, 0]),
        ("CumProd", 1, 0, [1, 1, 2, 6]),
        ("CumProd", 1, 1, [24, 12, 4, 1]),
    ],
)
def test_exclusive_sums_and_products_shift_by_one(
    op_type: str, exclusive: int, reverse: int, expected: list[int]
) -> None:
    x = np.array([1, 2, 3, 4], np.int32)
    opset = 14 if op_type == "CumSum" else 26
    (found,) = run_node(
        op_type, [x, np.array(-1)], opset=opset, static_inputs=(1,), exclusive=exclusive, reverse=reverse
    )
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.int32


def test_gradient_of_a_cumulative_product_with_a_zero_is_finite() -> None:
    def last(x: Any) -> Any:
        return run_node("CumProd", [x, np.array(0)], opset=26, static_inputs=(1,))[0][-1]

    np.testing.assert_allclose(jax.grad(last)(jnp.array([2.0, 0.0, 3.0])), [0.0, 6.0, 0.0])


def test_arithmetic_on_known_64_bit_integers_stays_exact_without_64_bit_types() -> None:
    a = np.array([2**40, -(2**62)], np.int64)
    (found,) = run_node("Add", [a, np.array(1, np.int64)], opset=14, static_inputs=(0, 1))
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, [2**40 + 1, 1 - 2**62])
