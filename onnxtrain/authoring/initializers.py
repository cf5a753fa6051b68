"""The initialization graph: optimizer state back to zero and, where asked for, new values for the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.protos import attribute_value, is_standard
from onnxtrain.authoring.roles import Role
from onnxtrain.authoring.state import Update
from onnxtrain.authoring.survey import Use
from onnxtrain.authoring.weights import Weight
from onnxtrain.errors import UnsupportedError

KEEP = "keep"
_CONSTANTS = {Role.BIAS: 0.0, Role.SCALE: 1.0, Role.SLOPE: 0.25}


@dataclass(frozen=True)
class Scheme:
    """How kernels and embeddings are drawn: the variance is `gain` / fan, where fan counts inputs or both sides."""

    gain: float
    fan: str  # "in", or "average" of in and out
    distribution: str  # "uniform" or "normal"

    def variance(self, fan_in: int, fan_out: int) -> float:
        """The variance for a kernel with these numbers of inputs and outputs of one unit."""
        fan = fan_in if self.fan == "in" else (fan_in + fan_out) / 2
        return self.gain / max(fan, 1)


SCHEMES: Mapping[str, Scheme] = {
    "glorot_uniform": Scheme(1.0, "average", "uniform"),
    "glorot_normal": Scheme(1.0, "average", "normal"),
    "he_uniform": Scheme(2.0, "in", "uniform"),
    "he_normal": Scheme(2.0, "in", "normal"),
}


def find_scheme(initialize: str) -> Scheme | None:
    """The scheme of this name; None for "keep", which leaves the weights at their stored values.

    Raises:
      UnsupportedError: there is none; the message lists those that there are.
    """
    if initialize == KEEP:
        return None
    if initialize not in SCHEMES:
        known = ", ".join(map(repr, (KEEP, *SCHEMES)))
        raise UnsupportedError(f"The initialization {initialize!r} is unknown. Known are {known}.")
    return SCHEMES[initialize]


def write_constants(builder: GraphBuilder, updates: Iterable[Update]) -> dict[str, str]:
    """Writes the initial value of optimizer state and running statistics: which output each state variable takes."""
    return {
        update.variable: builder.filled(f"{update.variable}/initial", update.dims, update.initial, update.element_type)
        for update in updates
        if update.initial is not None
    }


def write_weights(builder: GraphBuilder, weights: Sequence[Weight], scheme: Scheme, seed: int | None) -> dict[str, str]:
    """Writes new values for the weights; with a seed every tensor gets a `seed` of its own, made from it (R-02)."""
    # the attribute is a float32, which holds integers up to 2**24 exactly
    seeds = np.random.SeedSequence(seed or 0).generate_state(len(weights)) >> 8
    written = {}
    for weight, own_seed in zip(weights, seeds, strict=True):
        fixed: dict[str, Any] = {} if seed is None else {"seed": float(own_seed)}
        if weight.role in _CONSTANTS:
            value = builder.filled(f"{weight.name}/initial", weight.dims, _CONSTANTS[weight.role], weight.element_type)
        elif weight.use is not None:
            value = _write_random(builder, weight, scheme.variance(*fans(weight.use)), scheme.distribution, fixed)
        else:
            continue  # nothing is known of what such a tensor should be
        written[weight.name] = value
    return written


def _write_random(
    builder: GraphBuilder, weight: Weight, variance: float, distribution: str, fixed: Mapping[str, Any]
) -> str:
    name, shape = f"{weight.name}/initial", list(weight.dims)
    # RandomNormal knows no bfloat16 before opset 22
    drawn_type = TensorProto.FLOAT if weight.element_type == TensorProto.BFLOAT16 else weight.element_type
    drawn_name = name if drawn_type == weight.element_type else f"{name}/drawn"
    if distribution == "uniform":
        bound = math.sqrt(3.0 * variance)
        drawn = builder.add(
            "RandomUniform", (), drawn_name, shape=shape, dtype=drawn_type, low=-bound, high=bound, **fixed
        )
    else:
        scale = math.sqrt(variance)
        drawn = builder.add("RandomNormal", (), drawn_name, shape=shape, dtype=drawn_type, scale=scale, **fixed)
    return drawn if drawn_type == weight.element_type else builder.cast(drawn, weight.element_type, name)


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
