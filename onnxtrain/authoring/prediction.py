"""The value that the loss looks at: an output of the model, or the logits before its last Softmax or Sigmoid."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx
from onnx import numpy_helper

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.protos import FLOAT_TYPES, attribute_value, input_at, is_standard, stored_tensors
from onnxtrain.authoring.value_types import Types
from onnxtrain.errors import ModelError

# what may stand between the last Softmax and the output without touching any value
_RESHAPES = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose")
# what may bring a sum along an axis back to the shape of what was summed
_SPREADS = ("Identity", "Reshape", "Unsqueeze", "Expand")


@dataclass(frozen=True)
class Source:
    """Where the prediction comes from.

    Attributes:
      output: the output of the model that is trained.
      value: the value of the inference graph that the loss starts from.
      tail: the nodes from there to the output that only reshape, in order.
      class_axis: the axis of the class scores; None where nothing says it.
    """

    output: str
    value: str
    tail: tuple[onnx.NodeProto, ...] = ()
    class_axis: int | None = None

    def write_tail(self, builder: GraphBuilder, value: str, renamed: Mapping[str, str]) -> str:
        """Reshapes `value` as the model reshapes its last Softmax."""
        for node in self.tail:
            inputs = (value, *(renamed.get(name, name) for name in node.input[1:]))
            attributes = {attribute.name: attribute_value(node, attribute.name) for attribute in node.attribute}
            value = builder.add(node.op_type, inputs, f"{node.output[0]}/logits", **attributes)
        return value


def choose_output(graph: onnx.GraphProto, types: Types, output: str | None) -> str:
    """The output of the model that the loss looks at.

    Raises:
      ModelError: it does not exist, it is no float tensor, or there are several and none was named.
    """
    names = [value.name for value in graph.output]
    if output is None:
        candidates = [name for name in names if types.element_type(name) in FLOAT_TYPES]
        if len(candidates) != 1:
            found = f"has {len(candidates)}: {candidates}" if candidates else f"has none among its outputs {names}"
            remedy = "Name one with `output`." if candidates else "Show a value inside it as one with `add_outputs`."
            raise ModelError(f"A loss needs one float output, but the model {found}. {remedy}")
        return candidates[0]
    if output not in names:
        raise ModelError(f"The model has no output {output!r}. Its outputs are {names}.")
    if types.element_type(output) not in FLOAT_TYPES:
        raise ModelError(f"Output {output!r} is no float tensor, so no gradient reaches it. Choose one of {names}.")
    return output


def find_source(graph: onnx.GraphProto, output: str, *, before: Collection[str]) -> Source:
    """Where the loss starts: at the output, or before the last operator of the model where it is one of `before`.

    Cross entropy takes the logarithm of a softmax by itself, stably; doing it twice would train another function. Some
    exporters write Softmax in parts, as a quotient of exponentials.
    """
    producers = {name: node for node in graph.node for name in node.output}
    tail: list[onnx.NodeProto] = []
    node = producers.get(output)
    while node is not None and is_standard(node, *_RESHAPES):
        tail.append(node)
        node = producers.get(node.input[0])
    if node is not None and "Sigmoid" in before and is_standard(node, "Sigmoid"):
        return Source(output, node.input[0], tuple(reversed(tail)))
    logits = None
    if node is not None and "Softmax" in before:
        logits = _logits_of(node, producers, stored_tensors(graph))
    if logits is None:
        return Source(output, output)
    value, axis = logits
    return Source(output, value, tuple(reversed(tail)), None if tail else axis)


def _logits_of(
    node: onnx.NodeProto, producers: Mapping[str, onnx.NodeProto], stored: Mapping[str, onnx.TensorProto]
) -> tuple[str, int | None] | None:
    """What a node takes the Softmax or LogSoftmax of, and along which axis; None where it does nothing like that."""
    if is_standard(node, "Softmax", "LogSoftmax"):
        return node.input[0], attribute_value(node, "axis")
    exponential = producers.get(node.input[0]) if is_standard(node, "Div") else None
    if exponential is None or not is_standard(exponential, "Exp"):
        return None
    total = producers.get(node.input[1])
    while total is not None and is_standard(total, *_SPREADS):
        total = producers.get(total.input[0])
    if total is None or not is_standard(total, "ReduceSum") or total.input[0] != exponential.output[0]:
        return None
    axes = attribute_value(total, "axes")
    if axes is None and input_at(total, 1) in stored:
        axes = numpy_helper.to_array(stored[total.input[1]]).tolist()
    return (exponential.input[0], axes[0]) if axes is not None and len(axes) == 1 else None
