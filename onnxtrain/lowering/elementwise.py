"""Arithmetic, comparison, logic and rounding, element by element with numpy's broadcasting."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onnxtrain import dtypes
from onnxtrain.errors import OperatorError
from onnxtrain.lowering import static
from onnxtrain.lowering.registry import Array, Int, op, table
from onnxtrain.lowering.static import namespace

# Integers up to this power are repeated products, whose gradient needs no logarithm and no division.
_LARGEST_UNROLLED_POWER = 8


def _ufunc(name: str) -> Callable[..., Any]:
    """The function of this name of numpy or of jax.numpy, whichever the values are."""

    def apply(*values: Any) -> Any:
        return getattr(namespace(*values), name)(*values)

    return apply


def _divide(a: Any, b: Any) -> Any:
    """Integer division truncates, as in C; Python's and numpy's would floor."""
    xp = namespace(a, b)
    if a.dtype.kind not in "iu":
        return xp.divide(a, b)
    if xp is jnp:
        return lax.div(*jnp.broadcast_arrays(a, b))
    quotient = np.floor_divide(a, b)
    return quotient + (((a < 0) != (b < 0)) & (quotient * b != a))


def _power(x: Any, y: Any) -> Any:
    """The result has the type of the base, whatever the type of the exponent."""
    exponent = _small_integer(y)
    if exponent is not None and not static.is_static(x) and dtypes.is_float(x.dtype) and np.ndim(y) <= np.ndim(x):
        return lax.integer_pow(x, exponent)
    xp = namespace(x, y)
    if x.dtype.kind in "iu" and dtypes.is_float(y.dtype):
        wide = static.device_dtype(np.float64)
        return static.cast(xp.power(static.cast(x, wide), static.cast(y, wide)), x.dtype)
    if xp is jnp and dtypes.is_float(x.dtype):
        # The derivative of 0**0 by its base is 0, where JAX multiplies 0 by infinity.
        x = jnp.where((x == 0) & (y == 0), 1, x)
    return xp.power(x, static.cast(y, x.dtype))


def _small_integer(y: Any) -> int | None:
    if not static.is_static(y) or np.size(y) != 1:
        return None
    number = float(np.reshape(y, ()))
    return int(number) if number.is_integer() and abs(number) <= _LARGEST_UNROLLED_POWER else None


# Operators that gained numpy's broadcasting in version 7; until then `broadcast` aligned the second input at `axis`.
_BROADCAST_SINCE_7: dict[str, Callable[[Any, Any], Any]] = {
    "Add": _ufunc("add"),
    "Sub": _ufunc("subtract"),
    "Mul": _ufunc("multiply"),
    "Div": _divide,
    "Pow": _power,
    "And": _ufunc("logical_and"),
    "Or": _ufunc("logical_or"),
    "Xor": _ufunc("logical_xor"),
    "Equal": _ufunc("equal"),
    "Less": _ufunc("less"),
    "Greater": _ufunc("greater"),
}


def _with_explicit_broadcast(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def rule(a: Array, b: Array, *, axis: int | None = None, broadcast: bool) -> Array:
        return function(a, _aligned(b, a, axis) if broadcast else b)

    return rule


def _aligned(b: Any, a: Any, axis: int | None) -> Any:
    """`b` with ones appended to its shape, so that its first dimension meets dimension `axis` of `a`."""
    if axis is None or b.ndim == 0:
        return b
    trailing = a.ndim - b.ndim - axis % a.ndim
    if trailing < 0:
        raise OperatorError(f"At axis {axis}, shape {list(b.shape)} reaches beyond shape {list(a.shape)}.")
    return b.reshape((*b.shape, *[1] * trailing))


for _op_type, _function in _BROADCAST_SINCE_7.items():
    op(_op_type, folds=True)(_with_explicit_broadcast(_function))
table(_BROADCAST_SINCE_7, inputs=2, since=7, folds=True)

table(
    {
        "LessOrEqual": _ufunc("less_equal"),
        "GreaterOrEqual": _ufunc("greater_equal"),
        "BitwiseAnd": _ufunc("bitwise_and"),
        "BitwiseOr": _ufunc("bitwise_or"),
        "BitwiseXor": _ufunc("bitwise_xor"),
    },
    inputs=2,
    folds=True,
)

table(
    {
        "Abs": static.magnitude,
        "Neg": _ufunc("negative"),
        "Sign": _ufunc("sign"),
        "Floor": _ufunc("floor"),
        "Ceil": _ufunc("ceil"),
        "Round": _ufunc("rint"),
        "Sqrt": _ufunc("sqrt"),
        "Reciprocal": _ufunc("reciprocal"),
        "Not": _ufunc("logical_not"),
        "BitwiseNot": _ufunc("bitwise_not"),
    },
    inputs=1,
    folds=True,
)

table(
    {
        "Exp": jnp.exp,
        "Log": jnp.log,
        "Sin": jnp.sin,
        "Cos": jnp.cos,
        "Tan": jnp.tan,
        "Asin": jnp.arcsin,
        "Acos": jnp.arccos,
        "Atan": jnp.arctan,
        "Sinh": jnp.sinh,
        "Cosh": jnp.cosh,
        "Tanh": jnp.tanh,
        "Asinh": jnp.arcsinh,
        "Acosh": jnp.arccosh,
        "Atanh": jnp.arctanh,
        "IsNaN": jnp.isnan,
    },
    inputs=1,
)


@op("Erf")
def erf(x: Array) -> Array:
    if dtypes.is_float(x.dtype):
        return lax.erf(static.traced(x))
    return static.cast(lax.erf(static.cast(static.traced(x), np.float32)), x.dtype)


@op("IsInf")
def is_inf(x: Array, *, detect_negative: bool, detect_positive: bool) -> Array:
    negative, positive = jnp.isneginf(x), jnp.isposinf(x)
    return (negative & detect_negative) | (positive & detect_positive)


@op("Mod", folds=True)
def mod(a: Array, b: Array, *, fmod: bool) -> Array:
    """The result has the sign of the divisor, or with `fmod` that of the dividend.

    Undefined in ONNX: integer division by zero.
    """
    xp = namespace(a, b)
    return xp.fmod(a, b) if fmod else xp.remainder(a, b)


@op("BitShift", folds=True)
def bit_shift(x: Array, y: Array, *, direction: str) -> Array:
    """A shift by a negative amount, or by the width of the type or more, leaves only copies of the sign bit."""
    xp = namespace(x, y)
    within = (y >= 0) & (y < 8 * x.dtype.itemsize)
    amount = xp.where(within, y, 0)
    if direction == "LEFT":
        return xp.where(within, xp.left_shift(x, amount), 0)
    if direction != "RIGHT":
        raise OperatorError(f"The direction is LEFT or RIGHT, not {direction!r}.")
    sign = xp.where(x < 0, xp.bitwise_not(xp.zeros_like(x)), 0)
    return xp.where(within, xp.right_shift(x, amount), sign)


@op("Max", folds=True, carries=True)
def maximum(*inputs: Array) -> Array:
    """Where inputs tie, each of two gets half of the gradient."""
    return functools.reduce(namespace(*inputs).maximum, inputs)


@op("Min", folds=True, carries=True)
def minimum(*inputs: Array) -> Array:
    """Where inputs tie, each of two gets half of the gradient."""
    return functools.reduce(namespace(*inputs).minimum, inputs)


@op("Sum", folds=True)
def total(*inputs: Array) -> Array:
    return functools.reduce(namespace(*inputs).add, inputs)


@op("Mean")
def mean(*inputs: Array) -> Array:
    return functools.reduce(jnp.add, inputs) / len(inputs)


@op("Where", folds=True, carries=True)
def where(condition: Array, x: Array, y: Array) -> Array:
    return namespace(condition, x, y).where(condition, x, y)


@op("CumSum")
def cumulative_sum(x: Array, axis: Int, *, exclusive: bool, reverse: bool) -> Array:
    return _cumulative(lax.cumsum, 0, x, axis, exclusive, reverse)


@op("CumProd")
def cumulative_product(x: Array, axis: Int, *, exclusive: bool, reverse: bool) -> Array:
    return _cumulative(lax.cumprod, 1, x, axis, exclusive, reverse)


def _cumulative(
    accumulate: Callable[..., jax.Array], neutral: int, x: Any, axis: int, exclusive: bool, reverse: bool
) -> jax.Array:
    axis = axis % x.ndim
    if exclusive:
        # The element itself does not count: everything moves one place on, and the neutral one comes first.
        padding = [(0, 0, 0)] * x.ndim
        padding[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
        x = lax.pad(x, np.asarray(neutral, x.dtype), padding)
    return accumulate(static.traced(x), axis=axis, reverse=reverse)
