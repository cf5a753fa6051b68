"""Arithmetic, comparisons, selections and conversions, element by element."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from onnxtrain.authoring.jax_functions.writer import Equation, TensorType, Writer, has_operator, rule
from onnxtrain.errors import UnsupportedError

_UNARY = {
    "abs": "Abs",
    "acos": "Acos",
    "acosh": "Acosh",
    "asin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "atanh": "Atanh",
    "ceil": "Ceil",
    "cos": "Cos",
    "cosh": "Cosh",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "log": "Log",
    "logistic": "Sigmoid",
    "neg": "Neg",
    "sign": "Sign",
    "sin": "Sin",
    "sinh": "Sinh",
    "sqrt": "Sqrt",
    "tan": "Tan",
    "tanh": "Tanh",
}
_BINARY = {"add": "Add", "add_any": "Add", "div": "Div", "max": "Max", "min": "Min", "mul": "Mul", "sub": "Sub"}
_COMPARISONS = {"eq": "Equal", "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "lt": "Less"}
_LOGICAL = {"and": ("And", "BitwiseAnd"), "or": ("Or", "BitwiseOr"), "xor": ("Xor", "BitwiseXor")}
_STRICT = {"GreaterOrEqual": "Greater", "LessOrEqual": "Less"}


@rule(*_UNARY)
def unary(writer: Writer, equation: Equation, value: str) -> str:
    """One operator of ONNX."""
    return writer.typed(_UNARY[equation.primitive], equation.output.dtype, value)


@rule(*_BINARY)
def binary(writer: Writer, equation: Equation, left: str, right: str) -> str:
    """One operator of ONNX; of two bools, `max` and `min` are `or` and `and`."""
    return writer.typed(_BINARY[equation.primitive], equation.output.dtype, left, right)


@rule(*_COMPARISONS)
def comparison(writer: Writer, equation: Equation, left: str, right: str) -> str:
    """One operator of ONNX, or two where the opset is too old."""
    return compare(writer, _COMPARISONS[equation.primitive], equation.inputs[0].dtype, left, right)


def compare(writer: Writer, op_type: str, dtype: Any, left: str, right: str) -> str:
    """Adds a comparison of values of this dtype."""
    if op_type in _STRICT and writer.builder.opset < 12:
        strict = compare(writer, _STRICT[op_type], dtype, left, right)
        return writer.op("Or", strict, compare(writer, "Equal", dtype, left, right))
    return writer.typed(op_type, dtype, left, right, result=np.bool_)


@rule("ne")
def not_equal(writer: Writer, equation: Equation, left: str, right: str) -> str:
    """ONNX has no operator of its own for this."""
    return writer.op("Not", compare(writer, "Equal", equation.inputs[0].dtype, left, right))


@rule(*_LOGICAL)
def logical(writer: Writer, equation: Equation, left: str, right: str) -> str:
    """One operator for bools, another one for the bits of integers."""
    of_bools, of_bits = _LOGICAL[equation.primitive]
    return writer.op(of_bools if equation.output.dtype == np.bool_ else of_bits, left, right)


@rule("not")
def negation(writer: Writer, equation: Equation, value: str) -> str:
    """One operator for bools, another one for the bits of integers."""
    return writer.op("Not" if equation.output.dtype == np.bool_ else "BitwiseNot", value)


@rule("rem")
def remainder(writer: Writer, equation: Equation, left: str, right: str) -> str:
    """The sign is that of the dividend, as in C."""
    return writer.typed("Mod", equation.output.dtype, left, right, fmod=1)


@rule("pow")
def power(writer: Writer, equation: Equation, base: str, exponent: str) -> str:
    """Both of one type: opsets before 12 have no other Pow."""
    if equation.inputs[1].dtype != equation.output.dtype:
        exponent = writer.cast(exponent, equation.output.dtype)
    return writer.typed("Pow", equation.output.dtype, base, exponent)


@rule("integer_pow")
def integer_power(writer: Writer, equation: Equation, base: str) -> str:
    """Small powers are products, which are exact where Pow is not."""
    power = equation.params["y"]
    if power == 1:
        return base
    if power in (2, 3):
        squared = writer.op("Mul", base, base)
        return squared if power == 2 else writer.op("Mul", squared, base)
    dtype = equation.output.dtype
    return writer.typed("Pow", dtype, base, writer.constant(power, dtype))


@rule("square")
def square(writer: Writer, equation: Equation, value: str) -> str:
    """A product."""
    return writer.op("Mul", value, value)


@rule("rsqrt")
def reciprocal_root(writer: Writer, equation: Equation, value: str) -> str:
    """In two operators."""
    return writer.op("Reciprocal", writer.op("Sqrt", value))


@rule("cbrt")
def cube_root(writer: Writer, equation: Equation, value: str) -> str:
    """With the sign of the value."""
    third = writer.constant(1 / 3, equation.output.dtype)
    return writer.op("Mul", writer.op("Sign", value), writer.op("Pow", writer.op("Abs", value), third))


@rule("exp2")
def power_of_two(writer: Writer, equation: Equation, value: str) -> str:
    """By Pow."""
    return writer.op("Pow", writer.constant(2, equation.output.dtype), value)


@rule("expm1")
def exponential_minus_one(writer: Writer, equation: Equation, value: str) -> str:
    """Another form of it is exact near 0; each is kept finite where the other one is taken."""
    return writer.trace(_expm1, equation.inputs, value)[0]


def _expm1(x: Any) -> Any:
    half = jnp.tanh(jnp.clip(x, -0.5, 0.5) / 2)
    return jnp.where(jnp.abs(x) < 0.5, 2 * half / (1 - half), jnp.exp(x) - 1)


@rule("log1p")
def logarithm_of_one_plus(writer: Writer, equation: Equation, value: str) -> str:
    """Another form of it is exact near 0."""
    return writer.trace(_log1p, equation.inputs, value)[0]


def _log1p(x: Any) -> Any:
    small = jnp.minimum(x, 1)
    rounded_sum = 1 + small
    distance = rounded_sum - 1  # what is left of x; the quotient makes up for the rest
    is_left = jnp.abs(distance) > 0
    quotient = jnp.where(is_left, jnp.log(rounded_sum) * small / jnp.where(is_left, distance, 1), small)
    return jnp.where(x < 1, quotient, jnp.log(1 + x))


@rule("erf_inv")
def inverse_error_function(writer: Writer, equation: Equation, value: str) -> str:
    """Two polynomials (Giles, Approximating the erfinv function, 2010), and Newton's method for float64."""
    return writer.trace(_erf_inv, equation.inputs, value)[0]


_MIDDLE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503)
_MIDDLE += (-0.00417768164, 0.246640727, 1.50140941)
_TAILS = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613)
_TAILS += (0.00943887047, 1.00167406, 2.83297682)


def _erf_inv(x: Any) -> Any:
    distance = -jnp.log1p(-x * x)
    middle = jnp.polyval(jnp.asarray(_MIDDLE, x.dtype), distance - 2.5)
    tails = jnp.polyval(jnp.asarray(_TAILS, x.dtype), jnp.sqrt(jnp.maximum(distance, 5)) - 3)
    root = jnp.where(distance < 5, middle, tails) * x
    if x.dtype == jnp.float64:
        for _ in range(2):
            root = root - (lax.erf(root) - x) * (math.sqrt(math.pi) / 2) * jnp.exp(root * root)
    return root


@rule("atan2")
def angle(writer: Writer, equation: Equation, y: str, x: str) -> str:
    """The arc tangent with its quadrant."""
    return writer.trace(_atan2, equation.inputs, y, x)[0]


def _atan2(y: Any, x: Any) -> Any:
    inside = jnp.arctan(y / jnp.where(x == 0, 1, x)) + jnp.where(x < 0, jnp.where(y < 0, -math.pi, math.pi), 0)
    return jnp.where(x == 0, jnp.sign(y) * (math.pi / 2), inside)


@rule("is_finite")
def is_finite(writer: Writer, equation: Equation, value: str) -> str:
    """The value minus itself is 0 then, and no number otherwise."""
    return writer.op("Not", writer.op("IsNaN", writer.op("Sub", value, value)))


@rule("round")
def rounded(writer: Writer, equation: Equation, value: str) -> str:
    """To even, or away from zero."""
    if equation.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN:
        return writer.op("Round", value)
    half = writer.constant(0.5, equation.output.dtype)
    size = writer.op("Floor", writer.op("Add", writer.op("Abs", value), half))
    return writer.op("Mul", writer.op("Sign", value), size)


@rule("clamp")
def clamped(writer: Writer, equation: Equation, low: str, value: str, high: str) -> str:
    """The larger of two, then the smaller."""
    dtype = equation.output.dtype
    return writer.typed("Min", dtype, writer.typed("Max", dtype, value, low), high)


@rule("select_n")
def selection(writer: Writer, equation: Equation, which: str, *cases: str) -> str:
    """Where; with more than two cases, one after the other."""
    dtype = equation.inputs[0].dtype
    if dtype == np.bool_:
        return writer.op("Where", which, cases[1], cases[0])
    chosen = cases[0]
    for number, case in enumerate(cases[1:], start=1):
        is_this = compare(writer, "Equal", dtype, which, writer.constant(number, dtype))
        chosen = writer.op("Where", is_this, case, chosen)
    return chosen


@rule("convert_element_type")
def conversion(writer: Writer, equation: Equation, value: str) -> str:
    """A Cast, where the type changes."""
    dtype = equation.output.dtype
    return value if equation.inputs[0].dtype == dtype else writer.cast(value, dtype)


@rule("reduce_precision")
def reduced_precision(writer: Writer, equation: Equation, value: str) -> str:
    """To a smaller type and back."""
    params, dtype = equation.params, equation.output.dtype
    bits = (params["exponent_bits"], params["mantissa_bits"])
    for small in (np.dtype(jnp.float64), np.dtype(jnp.float32), np.dtype(jnp.bfloat16), np.dtype(jnp.float16)):
        known = jnp.finfo(small)
        if bits == (known.nexp, known.nmant):
            return value if small.itemsize >= dtype.itemsize else writer.cast(writer.cast(value, small), dtype)
    raise UnsupportedError(f"lax.reduce_precision to {bits[0]} and {bits[1]} bits is the type of no ONNX value.")


@rule("copy", "device_put", "name", "optimization_barrier", "sharding_constraint")
def same(writer: Writer, equation: Equation, *values: str) -> tuple[str, ...]:
    """The values themselves."""
    return values


@rule("stop_gradient")
def constant_for_gradients(writer: Writer, equation: Equation, value: str) -> str:
    """ONNX has no such operator: a cast to bits and back has no gradient.

    Without BitCast, only a maximum passes: what is subtracted before exponentials and added after, as in log_softmax,
    has no gradient in any case.
    """
    dtype = equation.output.dtype
    if not writer.differentiated or dtype.kind in "iub":
        return value
    if not has_operator("BitCast", writer.builder.opset):
        if value in writer.maxima:
            return value
        raise UnsupportedError(
            f"jax.lax.stop_gradient is written with the operator BitCast, which opset {writer.builder.opset} does not "
            "have. Convert the model to opset 26 (onnx.version_converter), or do without it."
        )
    bits = np.dtype(f"uint{8 * dtype.itemsize}")
    cast = writer.op("BitCast", value, to=TensorType(bits, ()).element_type)
    return writer.op("BitCast", cast, to=equation.output.element_type)


@rule("shift_left", "shift_right_logical")
def shifted(writer: Writer, equation: Equation, value: str, by: str) -> str:
    """Signed integers are shifted as the unsigned ones of their bits."""
    dtype = equation.output.dtype
    direction = "LEFT" if equation.primitive == "shift_left" else "RIGHT"
    unsigned = np.dtype(f"uint{8 * dtype.itemsize}")
    if dtype == unsigned:
        return writer.op("BitShift", value, by, direction=direction)
    parts = (writer.cast(value, unsigned), writer.cast(by, unsigned))
    return writer.cast(writer.op("BitShift", *parts, direction=direction), dtype)
