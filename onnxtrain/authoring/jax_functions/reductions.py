"""Reductions over axes, running sums, and sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from onnxtrain.authoring.jax_functions.writer import Equation, Writer, rule

_REDUCTIONS = {
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
    "reduce_sum": "ReduceSum",
}
_RUNNING = {
    "cumlogsumexp": jnp.logaddexp,
    "cummax": jnp.maximum,
    "cummin": jnp.minimum,
    "cumprod": jnp.multiply,
}
_OF_BOOLS = {"reduce_and": "ReduceMin", "reduce_or": "ReduceMax"}


@rule(*_REDUCTIONS)
def reduction(writer: Writer, equation: Equation, value: str) -> str:
    """One operator of ONNX."""
    return _reduce(writer, _REDUCTIONS[equation.primitive], equation.output.dtype, value, equation.params["axes"])


@rule(*_OF_BOOLS)
def reduction_of_bools(writer: Writer, equation: Equation, value: str) -> str:
    """The smallest or largest of 0 and 1."""
    numbers = writer.cast(value, np.int32)
    found = _reduce(writer, _OF_BOOLS[equation.primitive], np.int32, numbers, equation.params["axes"])
    return writer.cast(found, np.bool_)


def _reduce(writer: Writer, op_type: str, dtype: Any, value: str, axes: Sequence[int]) -> str:
    axes = [int(axis) for axis in axes]
    if not axes:
        return value
    # the axes became an input, of ReduceSum first
    if writer.builder.opset < (13 if op_type == "ReduceSum" else 18):
        return writer.typed(op_type, dtype, value, axes=axes, keepdims=0)
    if dtype == np.bool_ or not writer.takes(op_type, dtype):
        wide = writer.op(op_type, writer.cast(value, np.float64), writer.integers(axes), keepdims=0)
        return writer.cast(wide, dtype)
    return writer.op(op_type, value, writer.integers(axes), keepdims=0)


@rule("argmax", "argmin")
def place_of_extreme(writer: Writer, equation: Equation, value: str) -> str:
    """The first place of several."""
    op_type = "ArgMax" if equation.primitive == "argmax" else "ArgMin"
    (axis,) = equation.params["axes"]
    given = equation.inputs[0].dtype
    value = value if writer.takes(op_type, given) else writer.cast(value, np.float64)
    return writer.cast(writer.op(op_type, value, axis=int(axis), keepdims=0), equation.output.dtype)


@rule("cumsum")
def running_sum(writer: Writer, equation: Equation, value: str) -> str:
    """From either end."""
    axis = writer.integers(equation.params["axis"])
    return writer.op("CumSum", value, axis, reverse=int(equation.params["reverse"]))


@rule("cummax", "cummin", "cumprod", "cumlogsumexp")
def running_reduction(writer: Writer, equation: Equation, value: str) -> str:
    """ONNX has no operator of its own for these: a loop along the axis."""
    combine, axis = _RUNNING[equation.primitive], equation.params["axis"]

    def step(total: Any, element: Any) -> tuple[Any, Any]:
        total = combine(total, element)
        return total, total

    def run(values: Any) -> Any:
        rows = jnp.moveaxis(values, axis, 0)
        first = rows[-1] if equation.params["reverse"] else rows[0]
        neutral = jnp.full_like(first, 1) if combine is jnp.multiply else jnp.full_like(first, -jnp.inf)
        start = first if combine in (jnp.maximum, jnp.minimum) else neutral
        return jnp.moveaxis(lax.scan(step, start, rows, reverse=equation.params["reverse"])[1], 0, axis)

    return writer.trace(run, equation.inputs, value)[0]


@rule("top_k")
def largest(writer: Writer, equation: Equation, value: str) -> tuple[str, str]:
    """Values and places of the largest."""
    params = equation.params
    axis = params.get("axis", len(equation.inputs[0].shape) - 1)
    return _sorted(writer, equation, value, int(params["k"]), int(axis), largest=1)


@rule("sort")
def in_order(writer: Writer, equation: Equation, *values: str) -> list[str]:
    """The first operand decides; the others follow it."""
    axis = equation.params["dimension"]
    size = equation.inputs[0].shape[axis]
    first, places = _sorted(writer, equation, values[0], size, axis, largest=0, cast=False)
    return [first, *(writer.op("GatherElements", value, places, axis=axis) for value in values[1:])]


def _sorted(
    writer: Writer, equation: Equation, value: str, count: int, axis: int, *, largest: int, cast: bool = True
) -> tuple[str, str]:
    number = writer.integers([count])
    found, places = writer.ops("TopK", (value, number), 2, axis=axis, largest=largest, sorted=1)
    return found, writer.cast(places, equation.outputs[1].dtype) if cast else places
