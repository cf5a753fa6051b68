"""From one element type to another: by value (Cast, CastLike) or bit by bit (BitCast)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from onnxtrain import dtypes
from onnxtrain.errors import OperatorError, UnsupportedError
from onnxtrain.lowering import static
from onnxtrain.lowering.registry import Array, DType, op
from onnxtrain.lowering.static import StaticInputError, namespace

_FLOAT8 = frozenset(
    np.dtype(dtype)
    for dtype in (
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
    )
)
_POWERS_OF_TWO = np.dtype(ml_dtypes.float8_e8m0fnu)
_SMALL_INTEGERS = frozenset(
    np.dtype(dtype) for dtype in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2)
)
# numpy's words for the numbers that ONNX has words of its own for.
_SPECIAL_WORDS = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}
_NOT_ON_DEVICES = frozenset(np.dtype(dtype) for dtype in (ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn))


@op("Cast")
def cast_to_named_type(x: Array, *, to: str) -> Array:
    """Until version 6 the type is given by its name."""
    found = {row.name: row.dtype for row in dtypes.ELEMENT_TYPES}
    if to not in found:
        raise OperatorError(f"There is no element type {to!r}.")
    return cast(x, to=found[to])


@op("Cast", since=6, folds=True, carries=True)
def cast(x: Array, *, to: DType, saturate: bool = True, round_mode: str = "up") -> Array:
    """Integers are cut to the bits of the target; floats become infinite or, in the 8-bit kinds, the largest value.

    Undefined in ONNX: a float outside the range of an integer type, a negative number as float8e8m0.
    Unsupported: float6 kinds, and strings, that are only known at run time.
    """
    if dtypes.STRING in (x.dtype, to):
        if not static.is_static(x):
            raise StaticInputError("input", 0)
        return _cast_text(x, to)
    if not static.is_static(x) and not _NOT_ON_DEVICES.isdisjoint((x.dtype, to)):
        raise UnsupportedError(f"Casting {dtypes.name_of(x.dtype)} to {dtypes.name_of(to)} works on known values only.")
    if to == _POWERS_OF_TWO and x.dtype != to:
        return _cast_to_power_of_two(x, saturate, round_mode)
    if to in _FLOAT8 and x.dtype != to:
        x = x if dtypes.is_float(x.dtype) else static.cast(x, np.float32)
        return static.cast(_saturated(x, to) if saturate else x, to)
    if to in _SMALL_INTEGERS and dtypes.is_float(x.dtype):
        x = static.cast(x, np.int32)
    return static.cast(x, to)


@op("CastLike", folds=True)
def cast_like(x: Array, target_type: Array, *, saturate: bool = True, round_mode: str = "up") -> Array:
    return cast(x, to=target_type.dtype, saturate=saturate, round_mode=round_mode)


def _saturated(x: Any, to: np.dtype) -> Any:
    """Values beyond the range of `to` become its largest; NaN stays, and so does what rounds to the largest value."""
    xp = namespace(x)
    largest = np.asarray(float(ml_dtypes.finfo(to).max), np.float32).astype(x.dtype)
    return xp.where(x > largest, largest, xp.where(x < -largest, -largest, x))


def _cast_to_power_of_two(x: Any, saturate: bool, round_mode: str) -> Any:
    """Float8e8m0 is a biased exponent and nothing else; 255 stands for NaN."""
    xp = namespace(x)
    x = x if x.dtype == np.float64 else static.cast(x, np.float32)
    fraction, exponent = xp.frexp(xp.abs(x))  # the fraction is in [0.5, 1), and 0.5 in a power of two
    rises = {"up": fraction > 0.5, "nearest": fraction >= 0.75, "down": fraction >= 1}
    if round_mode not in rises:
        raise OperatorError(f"round_mode is 'up', 'down' or 'nearest', not {round_mode!r}.")
    code = static.cast(exponent, np.int32) + 126 + static.cast(rises[round_mode], np.int32)
    code = xp.where(x == 0, -1, xp.where(xp.isinf(x), 255, code))
    code = xp.clip(code, 0, 254) if saturate else xp.where((code < 0) | (code > 254), 255, code)
    return bit_cast(static.cast(xp.where(xp.isnan(x), 255, code), np.uint8), to=_POWERS_OF_TWO)


def _cast_text(x: np.ndarray, to: np.dtype) -> np.ndarray:
    if x.dtype != dtypes.STRING:
        return _as_text(x)
    if to == dtypes.STRING:
        return x
    parse = _parse_integer if to.kind in "iu" else float
    numbers = [parse(text) for text in x.reshape(-1)]
    return cast(np.asarray(numbers, None if to.kind in "iu" else np.float64).reshape(x.shape), to=to)


def _as_text(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind not in "fiu":
        x = x.astype(np.uint8 if x.dtype == np.bool_ else np.float32)
    words = [_SPECIAL_WORDS.get(word, word) for word in x.astype(np.str_).reshape(-1).tolist()]
    return np.array(words, np.object_).reshape(x.shape)


def _parse_integer(text: str) -> int:
    """Whole numbers keep all their digits; ONNX lets "100.5" become 100."""
    try:
        return int(text)
    except ValueError:
        return int(float(text))


@op("BitCast", folds=True)
def bit_cast(x: Array, *, to: DType) -> Array:
    if dtypes.from_dtype(x.dtype).bits != dtypes.from_dtype(to).bits or dtypes.STRING in (x.dtype, to):
        raise OperatorError(f"{dtypes.name_of(x.dtype)} and {dtypes.name_of(to)} do not take the same number of bits.")
    if static.is_static(x):
        return np.asarray(x).view(to)
    if x.dtype == np.bool_:
        x = static.cast(x, np.uint8)
    if dtypes.is_complex(x.dtype) and x.dtype != to:
        x = jnp.stack([x.real, x.imag], axis=-1)
    if to == np.bool_:
        return lax.bitcast_convert_type(x, np.uint8) != 0
    if dtypes.is_complex(to) and x.dtype != to:
        parts = lax.bitcast_convert_type(x, np.float32)
        return lax.complex(parts[..., 0], parts[..., 1])
    return lax.bitcast_convert_type(x, to)
