"""Products of matrices and what reduces to them."""

from __future__ import annotations

from collections.abc import Sequence

from onnxtrain.authoring.jax_functions.writer import Equation, TensorType, Writer, count_of, rule


@rule("dot_general")
def product(writer: Writer, equation: Equation, left: str, right: str) -> str:
    """MatMul of [batch.., free, contracted] and [batch.., contracted, free]."""
    (contracted, shared) = equation.params["dimension_numbers"]
    dtype = equation.output.dtype
    sides = []
    for side, (name, kind) in enumerate(zip((left, right), equation.inputs, strict=True)):
        name = name if kind.dtype == dtype else writer.cast(name, dtype)
        sides.append(_matrices(writer, name, kind, shared[side], contracted[side], contracted_last=side == 0))
    found = writer.typed("MatMul", dtype, *sides)
    free = [len(kind.shape) - len(shared[0]) - len(contracted[0]) for kind in equation.inputs]
    return found if free == [1, 1] else writer.reshape(found, equation.output.shape)


def _matrices(
    writer: Writer,
    value: str,
    kind: TensorType,
    shared: Sequence[int],
    contracted: Sequence[int],
    *,
    contracted_last: bool,
) -> str:
    free = [axis for axis in range(len(kind.shape)) if axis not in (*shared, *contracted)]
    groups = (free, contracted) if contracted_last else (contracted, free)
    value = writer.transpose(value, [*shared, *groups[0], *groups[1]])
    if len(free) == len(contracted) == 1:
        return value
    sizes = [count_of([kind.shape[axis] for axis in group]) for group in groups]
    return writer.reshape(value, [*(kind.shape[axis] for axis in shared), *sizes])
