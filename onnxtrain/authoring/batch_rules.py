"""How the batch goes through each operator.

A rule says on which axis of the outputs the batch lies, given where it lies in the inputs. It raises `ValueError` with
a reason where the operator would mix the examples of a batch, or could not run with another number of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from onnxtrain.authoring.batch_operation import Axis, Operand, Operation
from onnxtrain.authoring.batch_reshape import follow_reshape

_NO_END = 2**31 - 1  # what exporters write for "to the end"


Result = Axis | Sequence[Axis] | None
Rule = Callable[[Operation], Result]


def elementwise(operation: Operation) -> Result:
    """Every axis stays where it is, counted from the last one."""
    operands = [operand for name, operand in zip(operation.node.input, operation.inputs, strict=True) if name]
    rank = max(operand.rank for operand in operands)
    return _aligned(operands, rank)


def _aligned(operands: Sequence[Operand], rank: int) -> Axis:
    places = {
        Axis(operand.axis.index + rank - operand.rank, operand.axis.inner) for operand in operands if operand.axis
    }
    if len(places) != 1:
        raise ValueError("its inputs have the batch on different axes")
    (place,) = places
    for operand in operands:
        own = place.index - (rank - operand.rank)
        if operand.axis is None and own >= 0 and operand.dims is not None and operand.dims[own] != 1:
            raise ValueError("a constant has one row for each example of the batch")
    return place


def first_input(operation: Operation) -> Result:
    """The output has the axes of the first input, and no other input has the batch."""
    operation.others_are_constant()
    return operation.axis


def images(operation: Operation) -> Result:
    """An operator over [batch, channels, ...]."""
    operation.others_are_constant()
    if operation.axis.index != 0:
        raise ValueError(f"the batch lies on axis {operation.axis.index}, where the operator has no batch")
    return operation.axis


def resize(operation: Operation) -> Result:
    """Resize and Upsample: the scale of the batch must be 1."""
    if len(operation.inputs) > 3 and operation.node.input[3]:
        raise ValueError("the size of its output is written out, the batch included")
    index = 1 if len(operation.inputs) == 2 else 2
    scales = operation.attribute("scales")
    if scales is None and index < len(operation.inputs) and operation.inputs[index].value is not None:
        scales = operation.inputs[index].value
    if scales is None or scales[0] != 1:
        raise ValueError("its scales are not known, or scale the batch")
    return images(operation)


def transpose(operation: Operation) -> Result:
    """The batch goes where the permutation puts its axis."""
    rank = operation.data.rank
    order = list(operation.attribute("perm", range(rank - 1, -1, -1)))
    return Axis(order.index(operation.axis.index), operation.axis.inner)


def flatten(operation: Operation) -> Result:
    """The batch stays on the first axis, alone or joined with those that are flattened into it."""
    operation.others_are_constant()
    dims, axis = operation.data.dims or (), operation.axis
    split = operation.attribute("axis", 1) % max(len(dims), 1)
    merged = [size for size in dims[1:split] if isinstance(size, int)]
    if axis.index != 0 or split == 0 or len(merged) < split - 1:
        raise ValueError("it joins the batch with other axes")
    return Axis(0, axis.inner * math.prod(merged))


def squeeze(operation: Operation) -> Result:
    """The batch axis moves down by the axes removed before it."""
    axes = operation.integers("axes", 1)
    rank, place = operation.data.rank, operation.axis
    if axes is None:
        axes = [index for index, size in enumerate(operation.data.dims or ()) if size == 1]
    removed = {axis % rank for axis in axes}
    if place.index in removed:
        raise ValueError(f"it removes the batch axis {place.index}")
    return Axis(place.index - sum(axis < place.index for axis in removed), place.inner)


def unsqueeze(operation: Operation) -> Result:
    """The batch axis moves up by the axes added before it."""
    axes = operation.integers("axes", 1) or []
    rank = operation.data.rank + len(axes)
    added = {axis % rank for axis in axes}
    kept = [axis for axis in range(rank) if axis not in added]
    return Axis(kept[operation.axis.index], operation.axis.inner)


def concat(operation: Operation) -> Result:
    """Values are joined along another axis than that of the batch."""
    places = {operand.axis for operand in operation.inputs}
    if len(places) != 1:
        raise ValueError("it joins values with and without a batch")
    operation.not_along_batch([operation.attribute("axis", 1)])
    return operation.axis


def split(operation: Operation) -> Result:
    """Values are split along another axis than that of the batch."""
    operation.not_along_batch([operation.attribute("axis", 0)])
    return operation.axis


def cut(operation: Operation) -> Result:
    """Other axes than that of the batch are cut."""
    starts, ends = operation.integers("starts", 1) or [], operation.integers("ends", 2) or []
    axes = operation.integers("axes", 3) or list(range(len(starts)))
    steps = operation.integers("steps", 4) or [1] * len(starts)
    shortened = [
        axis
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=False)
        if not (start == 0 and end >= _NO_END and step == 1)
    ]
    operation.not_along_batch(shortened)
    return operation.axis


def gather(operation: Operation) -> Result:
    """Data or indices have the batch; where the indices do, their axes take the place of the axis looked up."""
    data, indices = operation.inputs[:2]
    axis = operation.attribute("axis", 0) % data.rank
    if data.axis is None and indices.axis is not None:
        return Axis(axis + indices.axis.index, indices.axis.inner)
    if indices.axis is not None:
        raise ValueError("both its data and its indices have a batch")
    operation.not_along_batch([axis])
    place = operation.axis
    return place if place.index < axis else Axis(place.index + indices.rank - 1, place.inner)


def reduce(operation: Operation) -> Result:
    """Other axes than that of the batch are reduced."""
    axes = operation.integers("axes", 1)
    rank, place = operation.data.rank, operation.axis
    if axes is None:
        if operation.attribute("noop_with_empty_axes", 0):
            return place
        axes = list(range(rank))
    return _without(operation, {axis % rank for axis in axes})


def arg_reduce(operation: Operation) -> Result:
    """The place of the largest or smallest value along another axis than that of the batch."""
    return _without(operation, {operation.attribute("axis", 0) % operation.data.rank})


def _without(operation: Operation, removed: set[int]) -> Axis:
    place = operation.axis
    operation.not_along_batch(sorted(removed))
    if operation.attribute("keepdims", 1):
        return place
    return Axis(place.index - sum(axis < place.index for axis in removed), place.inner)


def softmax(operation: Operation) -> Result:
    """The axes that are normalized do not hold the batch."""
    place, rank = operation.axis, operation.data.rank
    if operation.opset >= 13:
        operation.not_along_batch([operation.attribute("axis", -1)])
    elif operation.attribute("axis", 1) % rank <= place.index:
        raise ValueError("it normalizes over the batch")
    return place


def layer_normalization(operation: Operation) -> Result:
    """The axes that are normalized stand after that of the batch."""
    if operation.attribute("axis", -1) % operation.data.rank <= operation.axis.index:
        raise ValueError("it normalizes over the batch")
    return first_input(operation)


def matmul(operation: Operation) -> Result:
    """The batch lies on an axis of either operand that is not summed over."""
    left, right = operation.inputs[:2]
    if min(left.rank, right.rank) < 2:
        raise ValueError("one of its operands is a vector")
    contracted = (left.axis and left.axis.index == left.rank - 1) or (right.axis and right.axis.index == right.rank - 2)
    if contracted:
        raise ValueError("it sums over the batch")
    rank = max(left.rank, right.rank)
    if left.axis and left.axis.index == left.rank - 2:
        if right.axis is not None:
            raise ValueError("its inputs have the batch on different axes")
        return Axis(rank - 2, left.axis.inner)
    if right.axis and right.axis.index == right.rank - 1:
        if left.axis is not None:
            raise ValueError("its inputs have the batch on different axes")
        return Axis(rank - 1, right.axis.inner)
    return _aligned([left, right], rank)


def gemm(operation: Operation) -> Result:
    """The rows of the first operand are examples."""
    if operation.attribute("transA", 0):
        raise ValueError("it sums over the batch")
    result = images(operation)
    if len(operation.inputs) > 2 and operation.inputs[2].dims is not None:
        dims = operation.inputs[2].dims
        if len(dims) == 2 and dims[0] != 1:
            raise ValueError("its bias has one row for each example of the batch")
    return result


def pad(operation: Operation) -> Result:
    """Other axes than that of the batch are padded."""
    pads = operation.integers("pads", 1) or []
    if len(pads) != 2 * operation.data.rank:
        raise ValueError("it pads axes that are not known")
    padded = [axis for axis in range(operation.data.rank) if pads[axis] or pads[axis + operation.data.rank]]
    operation.not_along_batch(padded)
    return operation.axis


def recurrent(operation: Operation) -> Result:
    """RNN, GRU and LSTM over [sequence, batch, features]."""
    if operation.attribute("layout", 0) or operation.axis != Axis(1):
        raise ValueError("the batch is not on axis 1 of [sequence, batch, features]")
    if any(name for name in operation.node.input[4:7]):
        raise ValueError("its lengths and initial states have one row for each example of the batch")
    return [Axis(2), Axis(1), Axis(1)]


def shape_only(operation: Operation) -> Result:
    """Reads the shape, in which the batch is one number."""
    return None


def _table(rules: Mapping[Rule, str]) -> dict[str, Rule]:
    return {op_type: rule for rule, op_types in rules.items() for op_type in op_types.split()}


RULES: Mapping[str, Rule] = _table(
    {
        elementwise: "Identity Cast Add Sub Mul Div Pow Max Min Sum Mean Where Equal Greater GreaterOrEqual Less "
        "LessOrEqual And Or Xor Not Neg Abs Exp Log Sqrt Reciprocal Floor Ceil Round Sign Erf Sin Cos Tanh Sigmoid "
        "Relu LeakyRelu PRelu Elu Selu Celu Gelu Softplus Softsign HardSigmoid HardSwish Swish Mish ThresholdedRelu "
        "Mod IsNaN IsInf",
        first_input: "Clip Dropout QuantizeLinear DequantizeLinear",
        images: "Conv ConvTranspose MaxPool AveragePool LpPool GlobalMaxPool GlobalAveragePool GlobalLpPool "
        "BatchNormalization InstanceNormalization GroupNormalization LRN DepthToSpace SpaceToDepth",
        resize: "Resize Upsample",
        transpose: "Transpose",
        flatten: "Flatten",
        follow_reshape: "Reshape",
        squeeze: "Squeeze",
        unsqueeze: "Unsqueeze",
        concat: "Concat",
        split: "Split",
        cut: "Slice",
        gather: "Gather",
        reduce: "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
        "ReduceLogSumExp ReduceSumSquare",
        arg_reduce: "ArgMax ArgMin",
        softmax: "Softmax LogSoftmax Hardmax",
        layer_normalization: "LayerNormalization RMSNormalization",
        matmul: "MatMul",
        gemm: "Gemm",
        pad: "Pad",
        recurrent: "RNN GRU LSTM",
        shape_only: "Shape Size",
    }
)
