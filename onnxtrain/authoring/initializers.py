"""The initialization graph: optimizer state back to zero and, where asked for, new values for the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.names import Names
from onnxtrain.authoring.protos import attribute_value, is_standard
from onnxtrain.authoring.roles import Role
from onnxtrain.authoring.schemes import Blank, Constant, Scheme, find_scheme
from onnxtrain.authoring.selection import select
from onnxtrain.authoring.state import Update
from onnxtrain.authoring.survey import Use
from onnxtrain.authoring.weights import Weight, uses_of

Initialization = str | Scheme | Mapping[str, str | Scheme]

_CONSTANTS = {Role.BIAS: 0.0, Role.SCALE: 1.0, Role.SLOPE: 0.25}
_DRAWN_WITH = 17  # any opset that the reference implementation runs


def find_schemes(initialize: Initialization, weights: Sequence[Weight]) -> dict[str, Scheme]:
    """The scheme of every weight that is to get new values, by its name.

    Args:
      initialize: a scheme or its name for all weights, or one for each pattern (`selection.py`); a weight takes that of
        the first pattern that matches it, and keeps its value where none does.
      weights: the weights that are trained.

    Raises:
      UnsupportedError: a name is not known.
      ModelError: a pattern matches nothing that is trained.
    """
    if not isinstance(initialize, Mapping):
        scheme = find_scheme(initialize)
        return {} if scheme is None else {weight.name: scheme for weight in weights}
    trained = {weight.name: weight for weight in weights}
    found: dict[str, Scheme | None] = {}
    for pattern, wanted in initialize.items():
        scheme = find_scheme(wanted)
        # a tensor that only its name makes a weight has no use
        names = {pattern} if pattern in trained else select([pattern], uses_of(trained), "initialize")
        found = dict.fromkeys(names, scheme) | found
    return {name: scheme for name, scheme in found.items() if scheme is not None}


def write_constants(builder: GraphBuilder, updates: Iterable[Update]) -> dict[str, str]:
    """Writes the initial value of optimizer state and running statistics: which output each state variable takes."""
    return {
        update.variable: builder.filled(f"{update.variable}/initial", update.dims, update.initial, update.element_type)
        for update in updates
        if update.initial is not None
    }


def write_copies(builder: GraphBuilder, updates: Iterable[Update], weights: Mapping[str, str]) -> dict[str, str]:
    """Writes the initial value of what starts as the copy of a weight, where that weight is given a new value."""
    return {
        update.variable: builder.cast(weights[update.follows], update.element_type, f"{update.variable}/initial")
        for update in updates
        if update.follows is not None and update.follows in weights
    }


def write_derived(builder: GraphBuilder, updates: Iterable[Update], weights: Mapping[str, str]) -> dict[str, str]:
    """Writes the initial values that state variables derive for themselves, from the new values of these weights."""
    derived = {update.variable: update.derive(builder, weights) for update in updates if update.derive is not None}
    return {variable: value for variable, value in derived.items() if value is not None}


def write_weights(
    builder: GraphBuilder, weights: Sequence[Weight], schemes: Mapping[str, Scheme], seed: int | None
) -> dict[str, str]:
    """Writes new values for the weights that have a scheme: which output each of them takes.

    Kernels and embeddings are drawn. What else there is takes the value with which it does nothing, unless its scheme
    is a constant. With a seed every tensor gets a `seed` of its own, made from it (R-02).
    """
    # the attribute is a float32, which holds integers up to 2**24 exactly
    seeds = np.random.SeedSequence(seed or 0).generate_state(len(weights)) >> 8
    written = {}
    for weight, own_seed in zip(weights, seeds, strict=True):
        scheme = schemes.get(weight.name)
        if scheme is not None and weight.role in _CONSTANTS and not isinstance(scheme, Constant):
            scheme = Constant(_CONSTANTS[weight.role])
        if scheme is None or (weight.use is None and not isinstance(scheme, Constant)):
            continue  # nothing is known of what such a tensor should be
        fixed = {} if seed is None else {"seed": float(own_seed)}
        written[weight.name] = scheme.write(builder, _blank(weight, fixed))
    return written


def draw(weights: Sequence[Weight], schemes: Mapping[str, Scheme], seed: int) -> dict[str, np.ndarray]:
    """New values for the weights at once: what an initialization graph would assign."""
    from onnx.reference import ReferenceEvaluator  # which takes a while to import

    builder = GraphBuilder(Names(onnx.ModelProto()), _DRAWN_WITH)
    written = write_weights(builder, weights, schemes, seed)
    outputs = [
        helper.make_tensor_value_info(written[weight.name], weight.element_type, weight.dims)
        for weight in weights
        if weight.name in written
    ]
    graph = helper.make_graph(builder.nodes, "drawing", [], outputs, builder.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _DRAWN_WITH)], ir_version=8)
    values = ReferenceEvaluator(model).run(None, {})
    return dict(zip(written, map(np.asarray, values), strict=True))


def _blank(weight: Weight, seed: Mapping[str, float]) -> Blank:
    name = f"{weight.name}/initial"
    if weight.use is None:
        return Blank(name, weight.dims, weight.element_type, seed=seed)
    fan_in, fan_out = fans(weight.use)
    return Blank(name, weight.dims, weight.element_type, fan_in, fan_out, _matrix(weight), seed)


def _matrix(weight: Weight) -> tuple[int, ...]:
    """The shape of a weight as linear maps, each of which is two axes."""
    dims = weight.dims
    if len(dims) < 2:
        return (1, *dims)
    is_convolution = weight.use is not None and "Conv" in weight.use.node.op_type
    return (dims[0], math.prod(dims[1:])) if is_convolution else dims


def fans(use: Use) -> tuple[int, int]:
    """How many inputs and outputs one unit of a kernel has, from its shape where it is used."""
    dims, node = use.dims, use.node
    if use.role is Role.EMBEDDING or len(dims) < 2:
        return dims[-1] if dims else 1, dims[-1] if dims else 1
    if is_standard(node, "Conv", "DeformConv", "CausalConvWithState") or node.op_type == "FusedConv":
        window = math.prod(dims[2:])
        return dims[1] * window, dims[0] * window
    if is_standard(node, "ConvTranspose"):
        window = math.prod(dims[2:])
        return dims[0] * window, dims[1] * window
    if is_standard(node, "RNN", "GRU", "LSTM"):
        return dims[-1], attribute_value(node, "hidden_size", dims[-1])
    rows, columns = dims[-2], dims[-1]
    is_transposed = bool(attribute_value(node, ("transA", "transB")[min(use.index, 1)], 0))
    # a stored left operand maps columns to rows
    return (columns, rows) if is_transposed != (use.index == 0) else (rows, columns)
