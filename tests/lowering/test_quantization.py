from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.lowering.elsewhere import Case, assert_equal_to_onnxruntime
from tests.lowering.one_node import run_node

RANDOM = np.random.default_rng(0)
SCALES = np.array([0.02, 0.1, 0.5], np.float32)


def bytes_of(dtype: Any, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max, shape, dtype, endpoint=True)


CASES = [
    Case("QuantizeLinear", 10, [(2, 3, 4), np.float32(0.01), np.uint8(128)]),
    Case("QuantizeLinear", 13, [(2, 3, 4), SCALES, bytes_of(np.int8, 3)], {"axis": -2}),
    Case("DequantizeLinear", 10, [bytes_of(np.int8, 2, 3), np.float32(0.5), np.int8(-7)]),
    Case("DequantizeLinear", 13, [bytes_of(np.uint8, 2, 3, 4), SCALES, bytes_of(np.uint8, 3)]),
    Case("DequantizeLinear", 13, [np.array([2**31 - 1, -7], np.int32), np.float32(0.5)]),
    Case("DynamicQuantizeLinear", 11, [(4, 5)], {}, 3),
    Case(
        "MatMulInteger",
        10,
        [bytes_of(np.uint8, 3, 4), bytes_of(np.int8, 4, 5), np.uint8(9), bytes_of(np.int8, 5)],
    ),
    Case(
        "QLinearMatMul",
        10,
        [
            *(bytes_of(np.uint8, 3, 4), np.float32(0.02), np.uint8(3)),
            *(bytes_of(np.uint8, 4, 5), np.float32(0.02), np.uint8(200)),
            *(np.float32(0.01), np.uint8(7)),
        ],
    ),
    Case(
        "QLinearConv",
        10,
        [
            *(bytes_of(np.uint8, 1, 2, 5, 5), np.float32(0.02), np.uint8(120)),
            *(bytes_of(np.int8, 3, 2, 3, 3), SCALES, np.zeros(3, np.int8)),
            *(np.float32(0.9), np.uint8(100)),
            np.array([-500, 0, 500], np.int32),
        ],
        {"pads": [1, 1, 1, 1]},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_quantization_agrees_with_onnxruntime(case: Case) -> None:
    assert_equal_to_onnxruntime(case)


@pytest.mark.parametrize("static_inputs", [(), (0, 1, 2)], ids=["traced", "static"])
@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.int8, [-128, -3, 0, 2, 2, 4, 127]),
        (np.uint8, [0, 0, 0, 2, 2, 4, 255]),
        (ml_dtypes.int4, [-8, -3, 0, 2, 2, 4, 7]),
        (ml_dtypes.uint2, [0, 0, 0, 2, 2, 3, 3]),
        (ml_dtypes.float8_e4m3fn, [-448, -3, 0, 1.5, 2.5, 3.5, 448]),
        (ml_dtypes.float4_e2m1fn, [-6, -3, 0, 1.5, 2, 4, 6]),
    ],
)
def test_quantizing_rounds_to_even_and_saturates(dtype: Any, expected: Any, static_inputs: tuple[int, ...]) -> None:
    x = np.array([-9e9, -3, 0, 1.5, 2.5, 3.5, 9e9], np.float32)
    (y,) = run_node("QuantizeLinear", [x, np.float32(1), np.zeros((), dtype)], opset=25, static_inputs=static_inputs)
    assert y.dtype == dtype
    np.testing.assert_array_equal(np.asarray(y).astype(np.float32), expected)


def test_without_saturation_a_float_that_is_too_large_is_none() -> None:
    x, zero = np.array([1, 500], np.float32), np.zeros((), ml_dtypes.float8_e4m3fn)
    (y,) = run_node("QuantizeLinear", [x, np.float32(1), zero], opset=19, saturate=0)
    np.testing.assert_array_equal(np.asarray(y).astype(np.float32), [1, np.nan])


def test_a_type_without_negative_zero_quantizes_it_to_zero() -> None:
    x, zero = np.array([-0.0], np.float32), np.zeros((), ml_dtypes.float8_e4m3fnuz)
    (y,) = run_node("QuantizeLinear", [x, np.float32(1), zero], opset=19)
    assert np.asarray(y).view(np.uint8) == 0


def test_a_last_block_may_be_short() -> None:
    x, scale = np.array([[2, 4, 6, 8, 10]], np.float32), np.array([[1, 2]], np.float32)
    (y,) = run_node("QuantizeLinear", [x, scale], opset=21, axis=1, block_size=3)
    np.testing.assert_array_equal(y, [[2, 4, 6, 4, 5]])
    (back,) = run_node("DequantizeLinear", [np.asarray(y), scale], opset=21, axis=1, block_size=3)
    np.testing.assert_array_equal(back, x)


def test_a_quantized_product_saturates() -> None:
    full, one, zero = np.full((1, 4), 255, np.uint8), np.float32(1), np.uint8(0)
    (y,) = run_node("QLinearMatMul", [full, one, zero, full.T, one, zero, one, zero], opset=21)
    np.testing.assert_array_equal(y, [[255]])


def test_quantizing_zeros_dynamically_gives_zeros_and_no_nan() -> None:
    y, scale, zero_point = run_node("DynamicQuantizeLinear", [np.zeros(3, np.float32)], opset=11, outputs=3)
    np.testing.assert_array_equal(y, [0, 0, 0])
    assert (scale, zero_point) == (0, 0)
