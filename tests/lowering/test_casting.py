from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from onnxtrain import dtypes
from onnxtrain.errors import OperatorError, StaticValueError, UnsupportedError
from tests.lowering.one_node import run_node

CODES = {row.name: row.code for row in dtypes.ELEMENT_TYPES}
TRACED_AND_STATIC = pytest.mark.parametrize("static_inputs", [(), (0,)], ids=["traced", "static"])


def cast(x: Any, to: str, opset: int = 28, static_inputs: tuple[int, ...] = (), **attributes: Any) -> Any:
    return run_node("Cast", [x], opset=opset, static_inputs=static_inputs, to=CODES[to], **attributes)[0]


@TRACED_AND_STATIC
@pytest.mark.parametrize(
    ("to", "saturated", "unsaturated"),
    [
        ("FLOAT8E4M3FN", [448, -448, 448], [np.nan, np.nan, np.nan]),
        ("FLOAT8E4M3FNUZ", [240, -240, 240], [np.nan, np.nan, np.nan]),
        ("FLOAT8E5M2", [57344, -57344, 57344], [np.inf, -np.inf, np.inf]),
        ("FLOAT8E5M2FNUZ", [57344, -57344, 57344], [np.nan, np.nan, np.nan]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_float8_saturates_unless_told(
    to: str, saturated: Any, unsaturated: Any, dtype: Any, static_inputs: tuple[int, ...], x64: None
) -> None:
    with np.errstate(over="ignore"):
        x = np.array([1e9, -np.inf, np.inf, np.nan, 1.0], dtype)
    kept = cast(x, to, static_inputs=static_inputs).astype(np.float32)
    np.testing.assert_array_equal(kept, [*saturated, np.nan, 1])
    lost = cast(x, to, static_inputs=static_inputs, saturate=0).astype(np.float32)
    np.testing.assert_array_equal(lost, [*unsaturated, np.nan, 1])


@TRACED_AND_STATIC
@pytest.mark.parametrize(
    ("round_mode", "expected"), [("up", [1, 2, 2, 2, 4]), ("down", [1, 1, 1, 1, 2]), ("nearest", [1, 1, 1, 2, 4])]
)
def test_powers_of_two_round_as_told(round_mode: str, expected: Any, static_inputs: tuple[int, ...]) -> None:
    x = np.array([1.0, 1.0000001, 1.4999999, 1.5, 3.0], np.float32)
    found = cast(x, "FLOAT8E8M0", static_inputs=static_inputs, round_mode=round_mode)
    np.testing.assert_array_equal(found.astype(np.float32), expected)


@TRACED_AND_STATIC
def test_powers_of_two_saturate_unless_told(static_inputs: tuple[int, ...]) -> None:
    x = np.array([0.0, np.inf, 3e38, np.nan, 2.0**127], np.float32)
    kept = np.asarray(cast(x, "FLOAT8E8M0", static_inputs=static_inputs)).astype(np.float64)
    np.testing.assert_array_equal(kept, [2.0**-127, 2.0**127, 2.0**127, np.nan, 2.0**127])
    lost = np.asarray(cast(x, "FLOAT8E8M0", static_inputs=static_inputs, saturate=0)).astype(np.float64)
    np.testing.assert_array_equal(lost, [np.nan, np.nan, np.nan, np.nan, 2.0**127])


@TRACED_AND_STATIC
@pytest.mark.parametrize(
    ("x", "to", "expected"),
    [
        (np.array([200, -200], np.int16), "INT8", [-56, 56]),
        (np.array([-1, 2**40 + 3], np.int64), "UINT32", [2**32 - 1, 3]),
        (np.array([9.0, -9.0, 2.9, -2.9], np.float32), "INT4", [-7, 7, 2, -2]),
        (np.array([5, -1], np.int32), "UINT2", [1, 3]),
        (np.array([0.0, -0.0, 0.5, np.nan], np.float32), "BOOL", [False, False, True, True]),
        (np.array([True, False]), "FLOAT16", [1, 0]),
        (np.array([1e30], np.float32), "FLOAT16", [np.inf]),
        (np.array([300, -7], np.int64), "FLOAT8E4M3FN", [288, -7]),
    ],
)
def test_numbers_out_of_range_are_cut_or_infinite(
    x: Any, to: str, expected: Any, static_inputs: tuple[int, ...], x64: None
) -> None:
    found = cast(x, to, static_inputs=static_inputs)
    assert dtypes.from_dtype(found.dtype).name == to
    np.testing.assert_array_equal(found.astype(np.float64), np.array(expected, np.float64))


def test_text_becomes_numbers_and_numbers_text() -> None:
    words = np.array(["1.5", "-INF", "NaN", "1e3"], object)
    np.testing.assert_array_equal(cast(words, "FLOAT"), np.array([1.5, -np.inf, np.nan, 1000], np.float32))
    whole = np.array(["9223372036854775807", "100.5"], object)
    np.testing.assert_array_equal(cast(whole, "INT64"), [2**63 - 1, 100])
    numbers = np.array([0.1, np.inf, np.nan], np.float32)
    assert cast(numbers, "STRING", static_inputs=(0,)).tolist() == ["0.1", "INF", "NaN"]
    assert cast(np.array([True, False]), "STRING", static_inputs=(0,)).tolist() == ["1", "0"]


def test_a_traced_number_cannot_become_text() -> None:
    with pytest.raises(StaticValueError, match="must be known while tracing") as caught:
        cast(np.ones(2, np.float32), "STRING")
    assert caught.value.source == "input0"


def test_float6_is_for_known_values_only() -> None:
    x = np.array([1.0, 99.0], np.float32)
    np.testing.assert_array_equal(cast(x, "FLOAT6E2M3", static_inputs=(0,)).astype(np.float32), [1, 7.5])
    with pytest.raises(UnsupportedError, match="known values only"):
        cast(x, "FLOAT6E2M3")


def test_until_version_6_the_type_is_a_name() -> None:
    (found,) = run_node("Cast", [np.array([1.5], np.float32)], opset=1, to="INT32")
    assert (found.dtype, found.tolist()) == (np.int32, [1])
    with pytest.raises(OperatorError, match="no element type 'int'"):
        run_node("Cast", [np.array([1.5], np.float32)], opset=1, to="int")


@pytest.mark.parametrize("to", ["FLOAT16", "BFLOAT16", "DOUBLE"])
def test_gradient_passes_through_a_cast_between_floats(to: str, x64: None) -> None:
    gradient = jax.grad(lambda x: cast(x, to).astype(jnp.float32).sum())(jnp.array([1.0, 2.0], jnp.float32))
    assert gradient.dtype == jnp.float32
    np.testing.assert_array_equal(gradient, [1, 1])


@TRACED_AND_STATIC
@pytest.mark.parametrize(
    ("x", "to"),
    [
        (np.array([1, 0, 1], np.uint8), "BOOL"),
        (np.array([True, False]), "INT8"),
        (np.array([1 + 2j, 3 - 1j], np.complex64), "DOUBLE"),
        (np.array([1.5, -2.0], np.float64), "COMPLEX64"),
        (np.array([-1, 7], ml_dtypes.int4), "UINT4"),
        (np.array([1.5, -2.0], ml_dtypes.bfloat16), "INT16"),
    ],
)
def test_bits_stay_as_they_are(x: Any, to: str, static_inputs: tuple[int, ...], x64: None) -> None:
    (there,) = run_node("BitCast", [x], opset=26, static_inputs=static_inputs, to=CODES[to])
    assert np.asarray(there).tobytes() == x.view(there.dtype).tobytes()
    (back,) = run_node("BitCast", [there], opset=26, to=dtypes.from_dtype(x.dtype).code)
    np.testing.assert_array_equal(back, x)


def test_bits_of_another_width_are_refused() -> None:
    with pytest.raises(OperatorError, match="same number of bits"):
        run_node("BitCast", [np.ones(1, np.float32)], opset=26, to=CODES["INT64"])
