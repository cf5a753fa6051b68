"""Gives a classifier another number of classes: a new last layer, and shapes that say so.

The last layer is found from the output backwards, through what only reshapes, pools or takes each value by itself. What
comes after it is followed forwards, so that nothing is left that speaks of the old number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxtrain.authoring.initializers import draw
from onnxtrain.authoring.losses import SOFTMAX
from onnxtrain.authoring.names import Names
from onnxtrain.authoring.operands import Operand, Operands
from onnxtrain.authoring.prediction import choose_output, find_source
from onnxtrain.authoring.protos import (
    Dimensions,
    attribute_value,
    describe,
    input_at,
    is_standard,
    keep_only,
    reads,
)
from onnxtrain.authoring.roles import Role
from onnxtrain.authoring.schemes import Scheme, find_scheme
from onnxtrain.authoring.source import load
from onnxtrain.authoring.surgery import refuse_training_info
from onnxtrain.authoring.survey import Use
from onnxtrain.authoring.value_types import Types, infer_types
from onnxtrain.authoring.weights import Weight
from onnxtrain.errors import ModelError, UnsupportedError

_LINEAR = ("Gemm", "MatMul", "Conv", "ConvTranspose")
_ARITHMETIC = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}  # and the operand that changes nothing
# what may stand between the last layer and the output: the scores stay the scores of these classes
_KEEPS_CLASSES = (
    *("Identity", "Cast", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"),
    *("Softmax", "LogSoftmax", "Sigmoid", "Tanh", "Relu", "LeakyRelu", "Elu", "Clip", "Exp", "Log", "Neg"),
    *("GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool", "ReduceMean", "ReduceMax", "Resize", "Upsample"),
)


def replace_head(
    model: str | os.PathLike[str] | onnx.ModelProto,
    classes: int,
    output: str | None = None,
    *,
    initialize: str | Scheme = "glorot_uniform",
    seed: int = 0,
) -> onnx.ModelProto:
    """Gives a classifier a new last layer, for another number of classes; all else stays as it is.

    The last layer is the Gemm, MatMul or convolution before the Softmax, pooling or reshaping at the end, with its
    bias. Its new tensors have the old names, unless another layer reads the old ones, which then stay.

    Args:
      model: a file or a `ModelProto`, which is not changed.
      classes: the number of classes that the output is to have.
      output: the output of the classifier; needed when there are several float outputs.
      initialize: how the new weights are drawn: a scheme of `onnxtrain.authoring.schemes` or its name. The new bias
        is 0.
      seed: fixes what is drawn.

    Raises:
      ModelError: there is no such layer, what comes after it depends on the old number of classes, or the model has
        training information.
      UnsupportedError: the name of the scheme is not known, or is `keep`.
    """
    if classes < 1:
        raise ModelError(f"classes={classes} must be 1 or more.")
    scheme = find_scheme(initialize)
    if scheme is None:
        raise UnsupportedError("A new head has nothing to keep: `initialize` must draw its weights.")
    proto = load(model)
    refuse_training_info(proto)
    types = infer_types(proto)
    head = _Head(proto, types, choose_output(proto.graph, types, output))
    head.resize(classes, scheme, seed)
    return proto


class _Head:
    """The last layer of a classifier and what follows it."""

    def __init__(self, model: onnx.ModelProto, types: Types, output: str):
        self._model, self._graph, self._types = model, model.graph, types
        self._output = output
        self._names = Names(model)
        self._operands = Operands(model.graph)
        self._path = self._walk_back()
        self._layer = self._path[-1]
        self._kernel, self._axis = self._find_kernel()
        self.classes = self._dims(self._kernel)[self._axis]

    def resize(self, classes: int, scheme: Scheme, seed: int) -> None:
        """Gives the layer new tensors for so many classes."""
        self._replace_kernel(classes, scheme, seed)
        for node, index, value in self._vectors():
            self._replace_vector(node, index, classes, value)
        changed = self._changed_values()
        for node in self._graph.node:
            if not reads(node).isdisjoint(changed):
                self._follow(node, classes)
        self._declare(changed, classes)

    def _walk_back(self) -> list[onnx.NodeProto]:
        """The nodes from the output back to the last layer, in this order."""
        producers = {name: node for node in self._graph.node for name in node.output}
        source = find_source(self._graph, self._output, before=SOFTMAX)
        path, value = list(reversed(source.tail)), source.value
        while True:
            node = producers.get(value)
            if node is None:
                raise self._no_layer(f"the input {value!r} of the model")
            if is_standard(node, *_LINEAR) and self._operands.is_constant(input_at(node, 1)):
                return [*path, node]
            following = [name for name in node.input if not self._operands.is_constant(name)]
            if self._subtracts_maximum(node, producers):
                value = node.input[0]
                continue
            path.append(node)
            if is_standard(node, *_KEEPS_CLASSES):
                value = node.input[0]
            elif is_standard(node, *_ARITHMETIC) and len(following) == 1:
                value = following[0]
            else:
                raise self._no_layer(describe(node))

    def _subtracts_maximum(self, node: onnx.NodeProto, producers: Mapping[str, onnx.NodeProto]) -> bool:
        """Whether a node only keeps a Softmax in parts from overflowing."""
        if not is_standard(node, "Sub"):
            return False
        maximum = producers.get(node.input[1])
        while maximum is not None and is_standard(maximum, "Identity", "Reshape", "Unsqueeze", "Expand", "Max"):
            computed = [name for name in maximum.input if not self._operands.is_constant(name)]
            maximum = producers.get(computed[0]) if computed else None
        return maximum is not None and is_standard(maximum, "ReduceMax") and maximum.input[0] == node.input[0]

    def _no_layer(self, found: str) -> ModelError:
        return ModelError(
            f"Output {self._output!r} must end in a linear layer (Gemm, MatMul or a convolution with stored weights), "
            f"at most pooled, reshaped or activated after it; what stands there is {found}. Name another output, or "
            "cut the model before."
        )

    def _find_kernel(self) -> tuple[Operand, int]:
        """The stored kernel of the layer, and its axis that counts the classes."""
        node, value = self._layer, self._layer.input[1]
        rank = len(self._types.dimensions(value) or ())
        operand = self._operands.find(value) or Operand(value, tuple(range(rank)), (value,))
        if not operand.axes:
            raise ModelError(f"The shape of {value!r}, the weights of {describe(node)}, is not known.")
        if attribute_value(node, "group", 1) != 1:
            raise ModelError(f"{describe(node)} has groups, so no class has the weights of all inputs.")
        if node.op_type == "Conv" or (node.op_type == "Gemm" and attribute_value(node, "transB", 0)):
            place = 0
        else:
            place = 1 if node.op_type == "ConvTranspose" else len(operand.axes) - 1
        return operand, operand.axes[place]

    def _vectors(self) -> Iterator[tuple[onnx.NodeProto, int, float]]:
        """Where numbers of the single classes stand, and the number that does nothing there."""
        if self._layer.op_type != "MatMul" and input_at(self._layer, 2):
            yield self._layer, 2, 0.0
        for node in self._path:
            if is_standard(node, *_ARITHMETIC):
                index = next(index for index, name in enumerate(node.input) if self._operands.find(name))
                yield node, index, _ARITHMETIC[node.op_type]

    def _replace_kernel(self, classes: int, scheme: Scheme, seed: int) -> None:
        old = self._dims(self._kernel)
        dims = tuple(classes if axis == self._axis else size for axis, size in enumerate(old))
        used = tuple(dims[axis] for axis in self._kernel.axes)
        kind = self._types.element_type(self._layer.input[1])
        weight = Weight("kernel", kind, dims, Use(Role.KERNEL, self._layer, 1, used, frozenset()))
        self._store(self._layer, 1, self._kernel, draw([weight], {weight.name: scheme}, seed)[weight.name])

    def _replace_vector(self, node: onnx.NodeProto, index: int, classes: int, value: float) -> None:
        operand = self._operands.find(node.input[index])
        if operand is None:
            raise ModelError(f"Input {node.input[index]!r} of {describe(node)} must be stored in the model.")
        old = numpy_helper.to_array(self._operands.stored[operand.tensor])
        axes = [axis for axis, size in enumerate(old.shape) if size == self.classes]
        if old.size == 1:
            axes = self._place_of_one(node, old.ndim)
            if not axes:
                return  # one number for all classes
        if len(axes) != 1:
            raise ModelError(
                f"{describe(node)} reads {operand.tensor!r} of shape {list(old.shape)}, which must have one axis of "
                f"{self.classes} classes."
            )
        dims = [classes if axis == axes[0] else size for axis, size in enumerate(old.shape)]
        self._store(node, index, operand, np.full(dims, value, old.dtype))

    def _place_of_one(self, node: onnx.NodeProto, rank: int) -> list[int]:
        """The axis of the only class in a tensor of one number: in a bias of the layer, or one added right after it."""
        is_bias = node is self._layer or (is_standard(node, "Add") and self._layer.output[0] in node.input)
        if self.classes > 1 or not is_bias:
            return []
        behind = len(self._kernel.axes) - 2 if "Conv" in self._layer.op_type and node is not self._layer else 0
        return [rank - 1 - behind] if rank > behind else []

    def _store(self, node: onnx.NodeProto, index: int, operand: Operand, value: np.ndarray) -> None:
        """Writes a tensor in the place of another; as a tensor of its own where someone else reads the other."""
        if operand.tensor in self._operands.stored and not self._operands.has_other_readers(operand):
            self._overwrite(operand.tensor, numpy_helper.from_array(value))
            return
        node.input[index] = self._names.fresh(f"{operand.tensor}/head")
        turned = np.ascontiguousarray(value.transpose(operand.axes))
        tensor = numpy_helper.from_array(turned, node.input[index])
        self._graph.initializer.append(tensor)
        if self._model.ir_version < 4:  # which wants every initializer among the inputs
            self._graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
        self._drop_unread(operand.names[-1])

    def _drop_unread(self, name: str) -> None:
        """Drops what led to a value that nothing reads any more."""
        if any(name in reads(node) for node in self._graph.node) or name in {one.name for one in self._graph.output}:
            return
        keep_only(self._graph.initializer, lambda tensor: tensor.name != name)
        keep_only(self._graph.input, lambda value: value.name != name)
        for node in [node for node in self._graph.node if list(node.output) == [name]]:
            self._graph.node.remove(node)
            for read in node.input:
                self._drop_unread(read)

    def _dims(self, operand: Operand) -> tuple[int, ...]:
        if operand.tensor in self._operands.stored:
            return tuple(self._operands.stored[operand.tensor].dims)
        return tuple(size for size in self._types.dimensions(operand.tensor) or () if isinstance(size, int))

    def _overwrite(self, name: str, tensor: TensorProto) -> None:
        old = self._operands.stored[name]
        for field in ("name", "doc_string"):  # the tensor of a Constant node may have no name, or another
            if old.HasField(field):
                setattr(tensor, field, getattr(old, field))
        old.CopyFrom(tensor)
        for value in (*self._graph.input, *self._graph.value_info):
            if value.name == name:
                value.type.CopyFrom(helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims)))

    def _changed_values(self) -> set[str]:
        changed = set(self._layer.output)
        for node in self._graph.node:
            if not reads(node).isdisjoint(changed):
                changed.update(node.output)
        return changed - {""}

    def _follow(self, node: onnx.NodeProto, classes: int) -> None:
        """Looks for the old number of classes in a node after the layer."""
        if is_standard(node, "Reshape", "Expand"):
            self._rewrite_shape(node, classes)
            return
        if any(node is other for other in self._path):
            return
        for name in node.input:
            operand = self._operands.find(name)
            if self.classes > 1 and operand is not None and self.classes in self._operands.stored[operand.tensor].dims:
                raise ModelError(
                    f"{describe(node)} comes after the last layer and reads {name!r}, which has an entry for each of "
                    f"the {self.classes} classes. Cut the model before it."
                )

    def _rewrite_shape(self, node: onnx.NodeProto, classes: int) -> None:
        operand = self._operands.find(input_at(node, 1))
        if operand is None:
            return  # it is computed, from the shape of the data
        target = numpy_helper.to_array(self._operands.stored[operand.tensor]).tolist()
        if target.count(self.classes) == 1:
            new = [classes if size == self.classes else size for size in target]
            self._store(node, 1, operand, np.asarray(new, np.int64))

    def _declare(self, changed: set[str], classes: int) -> None:
        """Brings the declared shapes up to date: those of outputs; what was inferred inside goes."""
        graph = self._graph
        kept = [value for value in graph.value_info if value.name not in changed]
        del graph.value_info[:]
        graph.value_info.extend(kept)
        bare = onnx.ModelProto()
        bare.CopyFrom(self._model)
        for value in bare.graph.output:
            if value.name in changed and value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")
        types = infer_types(bare)
        self._check(types.dimensions(self._output), classes)
        for value in graph.output:
            if value.name in changed and value.type.tensor_type.HasField("shape"):
                self._declare_output(value, types.dimensions(value.name), classes)

    def _check(self, dims: Dimensions | None, classes: int) -> None:
        """Makes sure that the classes are still an axis of the output, and were not joined with another one."""
        is_known = dims is not None and all(isinstance(size, int) for size in dims)
        if classes in (dims or ()) or (self.classes > 1 and not is_known):
            return
        shape = "is not known" if dims is None else f"is {list(dims)}"
        raise ModelError(
            f"What comes after {describe(self._layer)}, the last layer, takes its {self.classes} outputs for something "
            f"else than an axis of classes: with {classes} of them, the shape of output {self._output!r} {shape}. Cut "
            "the model after that layer."
        )

    def _declare_output(self, value: onnx.ValueInfoProto, inferred: Dimensions | None, classes: int) -> None:
        declared = value.type.tensor_type.shape.dim
        known = inferred if inferred is not None and len(inferred) == len(declared) else [None] * len(declared)
        for dim, size in zip(declared, known, strict=True):
            if dim.HasField("dim_value"):
                if isinstance(size, int):
                    dim.dim_value = size
                elif dim.dim_value == self.classes:
                    dim.dim_value = classes
