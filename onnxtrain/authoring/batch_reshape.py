"""How the batch goes through Reshape, and the shape that Reshape needs once the batch is free."""

from __future__ import annotations

import math

from onnxtrain.authoring.batch_operation import Axis, Operation


def follow_reshape(operation: Operation) -> Axis:
    """The batch lies on the output axis with as many elements before it as before."""
    operation.others_are_constant()
    old, new = _fixed_sizes(operation), _reshaped(operation)
    if old is None or new is None:
        if operation.axis == Axis(0) and _target(operation)[:1] in ([operation.batch], [0]):
            return Axis(0)
        raise ValueError("its sizes are not all known")
    before = math.prod(old[: operation.axis.index])
    candidates = [
        Axis(index, size // operation.batch)
        for index, size in enumerate(new)
        if math.prod(new[:index]) == before and size % operation.batch == 0
    ]
    if not candidates:
        raise ValueError(f"the reshape from {old} to {new} mixes the examples of a batch")
    # an axis of size 1 beside the batch leaves a choice: the batch alone, and where it was before
    return min(candidates, key=lambda place: (place.inner, place.index != operation.axis.index, place.index))


def free_target(operation: Operation, axis: Axis) -> list[int] | None:
    """The constant shape for any batch size, which then lies on `axis`; None when the present one will do."""
    target, new = _target(operation), _reshaped(operation)
    copies = [index for index, size in enumerate(target) if size == 0]
    keeps_batch = target[axis.index] == 0 and axis == operation.axis
    infers_batch = target[axis.index] == -1 and operation.axis.index not in copies
    if keeps_batch or infers_batch:
        return None
    if new is None:  # from axis 0 to axis 0, where 0 copies the size
        return [0, *target[1:]]
    return [-1 if index == axis.index else size for index, size in enumerate(new)]


def _target(operation: Operation) -> list[int]:
    target = operation.integers("shape", 1)
    if target is None:
        raise ValueError("its shape is computed while the model runs")
    return target


def _fixed_sizes(operation: Operation) -> list[int] | None:
    dims = operation.data.dims or ()
    sizes = [size for size in dims if isinstance(size, int)]
    return sizes if dims and len(sizes) == len(dims) else None


def _reshaped(operation: Operation) -> list[int] | None:
    """The sizes after the Reshape with the batch as fixed; None when they are not all known."""
    old, target = _fixed_sizes(operation), _target(operation)
    if old is None or (0 in target and operation.attribute("allowzero", 0)):
        return None
    new = [old[index] if size == 0 else size for index, size in enumerate(target)]
    known = math.prod(size for size in new if size != -1)
    return [math.prod(old) // max(known, 1) if size == -1 else size for size in new]
