"""Shapes and places: reshaping, broadcasting, slicing with fixed bounds, joining."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxtrain.authoring.jax_functions.writer import Equation, Writer, rule
from onnxtrain.errors import UnsupportedError

_ALL = 2**31 - 1  # an end that means the end of the axis


@rule("reshape", "squeeze", "expand_dims")
def reshaped(writer: Writer, equation: Equation, value: str) -> str:
    """To the shape of the output."""
    return writer.reshape(value, equation.output.shape)


@rule("broadcast_in_dim")
def broadcast(writer: Writer, equation: Equation, value: str, *sizes: str) -> str:
    """The axes of the input get places among those of the output, then they are repeated."""
    given, wanted = equation.inputs[0].shape, equation.output.shape
    aligned = [1] * len(wanted)
    for size, place in zip(given, equation.params["broadcast_dimensions"], strict=False):
        aligned[place] = size
    if tuple(aligned) != given:
        value = writer.reshape(value, aligned)
    return value if tuple(aligned) == wanted else writer.expand(value, wanted)


@rule("transpose")
def transposed(writer: Writer, equation: Equation, value: str) -> str:
    """One operator of ONNX."""
    return writer.transpose(value, equation.params["permutation"])


@rule("rev")
def reversed_axes(writer: Writer, equation: Equation, value: str) -> str:
    """A slice with steps of -1."""
    axes = list(equation.params["dimensions"])
    return sliced(writer, value, [-1] * len(axes), [-_ALL] * len(axes), axes, [-1] * len(axes))


@rule("concatenate")
def joined(writer: Writer, equation: Equation, *values: str) -> str:
    """One operator of ONNX."""
    return writer.op("Concat", *values, axis=equation.params["dimension"])


@rule("stack")
def stacked(writer: Writer, equation: Equation, *values: str) -> str:
    """Joined along a new axis."""
    axis = equation.params["axis"]
    shape = list(equation.output.shape)
    shape[axis] = 1
    return writer.op("Concat", *(writer.reshape(value, shape) for value in values), axis=axis)


@rule("tile")
def tiled(writer: Writer, equation: Equation, value: str) -> str:
    """One operator of ONNX."""
    return writer.op("Tile", value, writer.shape(equation.params["reps"]))


@rule("split")
def parts(writer: Writer, equation: Equation, value: str) -> tuple[str, ...]:
    """Parts of given sizes, which were an attribute before opset 13."""
    sizes, axis = [int(size) for size in equation.params["sizes"]], equation.params["axis"]
    if writer.builder.opset < 13:
        return writer.ops("Split", (value,), len(sizes), axis=axis, split=sizes)
    return writer.ops("Split", (value, writer.integers(sizes)), len(sizes), axis=axis)


@rule("slice")
def fixed_slice(writer: Writer, equation: Equation, value: str) -> str:
    """A slice along the axes of which it takes a part."""
    params, shape = equation.params, equation.inputs[0].shape
    starts, ends = params["start_indices"], params["limit_indices"]
    steps = params["strides"] or (1,) * len(starts)
    cut = [axis for axis in range(len(starts)) if (starts[axis], ends[axis], steps[axis]) != (0, shape[axis], 1)]
    if not cut:
        return value
    firsts, lasts, strides = ([sizes[axis] for axis in cut] for sizes in (starts, ends, steps))
    if all(isinstance(size, int | np.integer) for size in (*firsts, *lasts)):
        return sliced(writer, value, firsts, lasts, cut, strides)
    return writer.op(
        "Slice", value, writer.shape(firsts), writer.shape(lasts), writer.integers(cut), writer.shape(strides)
    )


def sliced(
    writer: Writer, value: str, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int]
) -> str:
    """Adds a Slice, whose bounds were attributes before opset 10."""
    if writer.builder.opset >= 10:
        bounds = [writer.integers(list(numbers)) for numbers in (starts, ends, axes, steps)]
        return writer.op("Slice", value, *bounds)
    if any(step != 1 for step in steps):
        raise UnsupportedError(
            f"A JAX function takes a slice with steps, which opset {writer.builder.opset} does not have. "
            "Convert the model to opset 10 or newer (onnx.version_converter)."
        )
    return writer.op("Slice", value, starts=list(starts), ends=list(ends), axes=list(axes))


@rule("pad")
def padded(writer: Writer, equation: Equation, value: str, filling: str) -> str:
    """Negative amounts cut something off; there is nothing between elements."""
    config = equation.params["padding_config"]
    if any(interior for _, _, interior in config):
        raise UnsupportedError("lax.pad with padding between the elements is not written in ONNX. Use a scatter.")
    amounts = [max(low, 0) for low, _, _ in config] + [max(high, 0) for _, high, _ in config]
    if any(amounts):
        value = writer.op("Pad", value, writer.integers(amounts), filling)
    cut = [axis for axis, (low, high, _) in enumerate(config) if min(low, high) < 0]
    if not cut:
        return value
    starts = [max(-config[axis][0], 0) for axis in cut]
    ends = [min(config[axis][1], 0) or _ALL for axis in cut]
    return sliced(writer, value, starts, ends, cut, [1] * len(cut))


@rule("iota")
def counted(writer: Writer, equation: Equation) -> str:
    """The numbers along one axis, repeated along the others."""
    dtype, shape, axis = equation.output.dtype, equation.output.shape, equation.params["dimension"]
    numbers = writer.iota(shape[axis])
    numbers = numbers if dtype == np.int64 else writer.cast(numbers, dtype)
    if len(shape) == 1:
        return numbers
    column = writer.reshape(numbers, [size if place == axis else 1 for place, size in enumerate(shape)])
    return writer.expand(column, shape)


@rule("dim_as_value")
def size_as_value(writer: Writer, equation: Equation) -> str:
    """A symbolic size that the function computes with."""
    return writer.cast(writer.size(equation.params["dim"]), equation.output.dtype)
