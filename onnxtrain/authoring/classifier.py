"""Puts a classifier on features that a model computes: a linear layer that gives a score for each class."""

from __future__ import annotations

import os

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.initializers import draw
from onnxtrain.authoring.names import Names
from onnxtrain.authoring.protos import FLOAT_TYPES, Dimensions, default_opset
from onnxtrain.authoring.roles import Role
from onnxtrain.authoring.schemes import Scheme, find_scheme
from onnxtrain.authoring.surgery import cut
from onnxtrain.authoring.survey import Use
from onnxtrain.authoring.value_types import Types, infer_types
from onnxtrain.authoring.weights import Weight
from onnxtrain.errors import ModelError, UnsupportedError

_BROADCASTING = 7  # the opset in which Add began to broadcast by itself
_INITIALIZERS_ALONE = 4  # the IR version since which an initializer need not be an input too


def add_classifier(
    model: str | os.PathLike[str] | onnx.ModelProto,
    features: str,
    classes: int,
    *,
    initialize: str | Scheme = "glorot_uniform",
    seed: int = 0,
) -> onnx.ModelProto:
    """Ends a model at features that it computes, and adds a linear layer behind them; all else stays as it is.

    The one output of the result is `logits`, a score for each class along the last axis in place of the features. The
    new tensors are `classifier.weight` and `classifier.bias`. Names that the model has already get a number.

    Args:
      model: a file or a `ModelProto`, which is not changed.
      features: the name of a float value [..., size] of the main graph, such as the embedding of an encoder.
      classes: the number of classes.
      initialize: how the weights are drawn: a scheme of `onnxtrain.authoring.schemes` or its name. The bias is 0.
      seed: fixes what is drawn.

    Raises:
      ModelError: the model computes no such value, it has no known size along its last axis, or the model has training
        information.
      UnsupportedError: the name of the scheme is not known, or is `keep`; or the opset is older than 7.
    """
    if classes < 1:
        raise ModelError(f"classes={classes} must be 1 or more.")
    scheme = find_scheme(initialize)
    if scheme is None:
        raise UnsupportedError("A new layer has nothing to keep: `initialize` must draw its weights.")
    proto = cut(model, features)
    opset = default_opset(proto)
    if opset < _BROADCASTING:
        raise UnsupportedError(
            f"A classifier needs operators of opset {_BROADCASTING}, and the model imports {opset}. "
            "Convert it first (onnx.version_converter)."
        )
    _append(proto, features, classes, scheme, seed)
    return proto


def _append(proto: onnx.ModelProto, features: str, classes: int, scheme: Scheme, seed: int) -> None:
    kind, outer, size = _float_type(infer_types(proto), features)
    builder = GraphBuilder(Names(proto), default_opset(proto))
    kernel = builder.initializer("classifier.weight", _draw_kernel(kind, (size, classes), scheme, seed), kind)
    bias = builder.initializer("classifier.bias", np.zeros(classes), kind)
    scores = builder.add("MatMul", (features, kernel), "classifier.scores", name="classifier")
    logits = builder.add("Add", (scores, bias), "logits", name="classifier.add_bias")
    proto.graph.node.extend(builder.nodes)
    proto.graph.initializer.extend(builder.initializers)
    if proto.ir_version < _INITIALIZERS_ALONE:
        for tensor in builder.initializers:
            proto.graph.input.append(helper.make_tensor_value_info(tensor.name, kind, list(tensor.dims)))
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info(logits, kind, [*outer, classes]))


def _float_type(types: Types, features: str) -> tuple[int, Dimensions, int]:
    """The element type of the features, and their shape: all axes but the last, and the size of that."""
    kind, dims = types.element_type(features), types.dimensions(features)
    if kind not in FLOAT_TYPES or not dims or not isinstance(dims[-1], int):
        shape = "an unknown shape" if dims is None else f"the shape {list(dims)}"
        raise ModelError(
            f"A classifier reads floats with a known size along the last axis, but {features!r} is "
            f"{TensorProto.DataType.Name(kind)} and has {shape}. Name another value, or declare its shape in the "
            "value_info of the graph."
        )
    return kind, dims[:-1], dims[-1]


def _draw_kernel(kind: int, dims: tuple[int, int], scheme: Scheme, seed: int) -> np.ndarray:
    node = helper.make_node("MatMul", ["features", "kernel"], ["scores"])
    kernel = Weight("kernel", kind, dims, Use(Role.KERNEL, node, 1, dims, frozenset()))
    return draw([kernel], {kernel.name: scheme}, seed)[kernel.name]
