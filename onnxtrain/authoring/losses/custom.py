"""Losses of one's own: an ONNX model, a local function of the model, or a JAX function."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, version_converter

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.losses.rule import Fed, Prediction
from onnxtrain.authoring.protos import Dimension, Dimensions, default_opset, dimensions
from onnxtrain.authoring.source import load
from onnxtrain.authoring.value_types import Value
from onnxtrain.errors import ModelError, UnsupportedError

_DOMAIN = "onnxtrain.losses"


@dataclass(frozen=True)
class OnnxLoss:
    """A model with one scalar output. It becomes a local function, in the opset of the model that is trained.

    Its first inputs take the predictions, in the order of `outputs`; those after them are fed, under their names.

    Attributes:
      model: a file or a `ModelProto`.
      replaces: the operators that it has in itself: where the trained model ends in one, it starts from before it.
    """

    model: str | os.PathLike[str] | onnx.ModelProto
    replaces: Sequence[str] = ()

    def write(self, builder: GraphBuilder, predictions: Sequence[Prediction], fed: Fed, labels: str) -> str:
        """Adds the function and its call."""
        del labels  # the model has names for its inputs
        loss = _in_opset(load(self.model), builder.opset)
        graph = loss.graph
        stored = {tensor.name: tensor for tensor in graph.initializer}
        free = [value for value in graph.input if value.name not in stored]
        if len(graph.output) != 1 or len(free) < len(predictions):
            raise ModelError(
                f"A loss model has one output and at least one input for each prediction ({len(predictions)}), but "
                f"{graph.name!r} has {len(graph.output)} outputs and {len(free)} inputs."
            )
        extra = free[len(predictions) :]
        body = onnx.FunctionProto(
            domain=_DOMAIN,
            name=_fresh_name(builder, graph.name or "loss"),
            input=[*(value.name for value in free), *stored],
            output=[graph.output[0].name],
            node=graph.node,
            opset_import=loss.opset_import,
            doc_string=graph.doc_string or "A loss that was given as a model.",
        )
        builder.functions.extend([*_new_functions(builder, loss), body])
        inputs = [prediction.working_value(builder) for prediction in predictions]
        inputs += [fed.input(value.name, value.type.tensor_type.elem_type, dimensions(value.type)) for value in extra]
        for tensor in stored.values():
            inputs.append(_copied(builder, tensor))
        return builder.add_node(body.name, inputs, ("loss",), name="loss", domain=_DOMAIN)[0]


@dataclass(frozen=True)
class FunctionLoss:
    """A local function of the model, with one output, a scalar.

    Its first inputs take the predictions; those after them are fed, with the type and shape of the first prediction.

    Attributes:
      domain: that of the function.
      name: its name.
      replaces: as in `OnnxLoss`.
    """

    domain: str
    name: str
    replaces: Sequence[str] = ()

    def write(self, builder: GraphBuilder, predictions: Sequence[Prediction], fed: Fed, labels: str) -> str:
        """Adds the call."""
        body = next((one for one in builder.functions if (one.domain, one.name) == (self.domain, self.name)), None)
        if body is None:
            known = [f"{one.domain}:{one.name}" for one in builder.functions]
            raise ModelError(f"The model has no function {self.domain}:{self.name}. Its functions are {known}.")
        if len(body.output) != 1 or len(body.input) < len(predictions):
            raise ModelError(
                f"A loss has one output and at least {len(predictions)} inputs, but {self.domain}:{self.name} has "
                f"{len(body.output)} and {len(body.input)}."
            )
        first = predictions[0]
        extra = len(body.input) - len(predictions)
        names = [labels] if extra == 1 else list(body.input[len(predictions) :])
        inputs = [prediction.working_value(builder) for prediction in predictions]
        inputs += [fed.input(name, first.working_type, first.dims) for name in names[:extra]]
        return builder.add_node(self.name, inputs, ("loss",), name="loss", domain=self.domain)[0]


@dataclass(frozen=True)
class JaxLoss:
    """A JAX function of the predictions and the labels that returns a scalar; it is written as ONNX.

    Attributes:
      function: takes the predictions, in the order of `outputs`, then the labels.
      labels_type: the element type of the labels as numpy names it, such as `"int64"`; by default the prediction's.
      labels_dims: their shape, with the prediction's names for sizes that are not fixed; by default the prediction's.
      replaces: as in `OnnxLoss`.
    """

    function: Callable[..., Any]
    labels_type: str | None = None
    labels_dims: Sequence[int | str] | None = None
    replaces: Sequence[str] = ()

    def write(self, builder: GraphBuilder, predictions: Sequence[Prediction], fed: Fed, labels: str) -> str:
        """Traces the function and adds what it does."""
        from onnxtrain.authoring.jax_functions import write_function  # imports JAX

        first = predictions[0]
        element_type = first.working_type
        if self.labels_type is not None:
            element_type = helper.np_dtype_to_tensor_dtype(np.dtype(self.labels_type))
        dims = _named(first.known_dims()) if self.labels_dims is None else tuple(self.labels_dims)
        values = [
            Value(prediction.working_value(builder), prediction.working_type, _named(prediction.known_dims()))
            for prediction in predictions
        ]
        target = Value(fed.input(labels, element_type, dims), element_type, dims)
        found = write_function(builder, self.function, *values, target, label="loss", differentiated=True)
        if not isinstance(found, Value) or found.dims != () or found.element_type != first.working_type:
            raise ModelError(
                f"The JAX function {getattr(self.function, '__name__', self.function)!r} must return a scalar of the "
                f"type of {first.output!r}; it returned {found}."
            )
        return builder.add("Identity", (found.name,), "loss")


def _in_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The loss model in the opset of the model that is trained; one file has one."""
    if default_opset(model) in (0, opset):
        return model
    try:
        return version_converter.convert_version(model, opset)
    except (RuntimeError, version_converter.ConvertError) as error:
        raise UnsupportedError(
            f"The loss {model.graph.name!r} imports opset {default_opset(model)}, the model opset {opset}, and "
            f"onnx.version_converter cannot convert the loss: {error}. Write it in opset {opset}."
        ) from error


def _named(dims: Dimensions) -> tuple[Dimension, ...]:
    """The shape with a name for every size that is not fixed: the same axis is the same size everywhere."""
    return tuple(f"size_{axis}" if size is None else size for axis, size in enumerate(dims))


def _fresh_name(builder: GraphBuilder, wanted: str) -> str:
    """A name for a function: exporters call every graph the same."""
    taken = {body.name for body in builder.functions if body.domain == _DOMAIN}
    name, count = wanted, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name


def _new_functions(builder: GraphBuilder, loss: onnx.ModelProto) -> list[onnx.FunctionProto]:
    """The functions that a loss brings along, without those that the model has already.

    Raises:
      ModelError: the model has another function of that name.
    """
    known = {(body.domain, body.name, body.overload): body for body in builder.functions}
    new = []
    for body in loss.functions:
        same = known.get((body.domain, body.name, body.overload))
        if same is None:
            new.append(body)
        elif same != body:
            raise ModelError(
                f"The loss {loss.graph.name!r} has a function {body.domain}:{body.name}, and the model another one of "
                "that name. Rename one of them."
            )
    return new


def _copied(builder: GraphBuilder, tensor: onnx.TensorProto) -> str:
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    copy.name = builder.names.fresh(f"loss/{tensor.name}")
    builder.initializers.append(copy)
    return copy.name
