"""How new values of a weight are made, as ONNX operators: constants, distributions, orthogonal matrices.

By name, as `initialize` takes them, numbers after a colon:

| name | values |
|---|---|
| `glorot_uniform`, `glorot_normal` | variance 1 / average of inputs and outputs |
| `he_uniform`, `he_normal` | variance 2 / inputs |
| `lecun_uniform`, `lecun_normal` | variance 1 / inputs |
| `orthogonal`, `orthogonal:GAIN` | orthonormal rows or columns, whichever are fewer, times the gain |
| `normal:STD` | normal, by default with a standard deviation of 0.02 |
| `truncated_normal:STD` | the same, with nothing beyond two standard deviations |
| `uniform:BOUND` | uniform between -BOUND and BOUND, by default 0.05 |
| `zeros`, `ones`, `constant:VALUE` | one value |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.polynomial import Polynomial
from onnx import TensorProto, helper

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.protos import HALF_TYPES
from onnxtrain.errors import UnsupportedError

KEEP = "keep"
_ITERATIONS = 50  # enough for singular values that differ by 1e7
_TRUNCATED_AT = 2.0  # standard deviations


@dataclass(frozen=True)
class Blank:
    """A tensor that is to get new values.

    Attributes:
      name: what the value is called.
      dims: its shape.
      element_type: one of the float types.
      fan_in: how many inputs one unit of the layer has.
      fan_out: how many outputs.
      matrix: the linear map in it: its shape with the last two axes as rows and columns.
      seed: the attribute `seed` of random nodes, if there is to be one.
    """

    name: str
    dims: tuple[int, ...]
    element_type: int
    fan_in: int = 1
    fan_out: int = 1
    matrix: tuple[int, ...] = (1, 1)
    seed: Mapping[str, Any] = field(default_factory=dict)

    def draw(self, builder: GraphBuilder, name: str, distribution: str, element_type: int, **attributes: Any) -> str:
        """Adds a RandomNormal or RandomUniform of this shape."""
        attributes = {"shape": list(self.dims), "dtype": element_type, **attributes, **self.seed}
        return builder.add(distribution, (), name, **attributes)


class Scheme(Protocol):
    """Writes nodes that give a tensor new values, and returns the name of the result."""

    def write(self, builder: GraphBuilder, blank: Blank) -> str:
        """Adds the nodes."""
        ...


@dataclass(frozen=True)
class Constant:
    """One value everywhere; the one scheme that is also for biases and scales."""

    value: float

    def write(self, builder: GraphBuilder, blank: Blank) -> str:
        return builder.filled(blank.name, blank.dims, self.value, blank.element_type)


@dataclass(frozen=True)
class Normal:
    """A normal distribution around 0."""

    deviation: float = 0.02

    def write(self, builder: GraphBuilder, blank: Blank) -> str:
        return _drawn_in_its_own_type(builder, blank, "RandomNormal", scale=self.deviation)


@dataclass(frozen=True)
class Uniform:
    """A uniform distribution between -bound and bound."""

    bound: float = 0.05

    def write(self, builder: GraphBuilder, blank: Blank) -> str:
        return _drawn_in_its_own_type(builder, blank, "RandomUniform", low=-self.bound, high=self.bound)


@dataclass(frozen=True)
class VarianceScaling:
    """Zero mean and the variance `gain` / fan, where fan counts the inputs of a unit, or averages both sides."""

    gain: float
    fan: str  # "in", or "average" of in and out
    distribution: str  # "uniform" or "normal"

    def write(self, builder: GraphBuilder, blank: Blank) -> str:
        variance = self.variance(blank.fan_in, blank.fan_out)
        if self.distribution == "normal":
            return Normal(math.sqrt(variance)).write(builder, blank)
        return Uniform(math.sqrt(3.0 * variance)).write(builder, blank)

    def variance(self, fan_in: int, fan_out: int) -> float:
        """The variance for a kernel with these numbers of inputs and outputs of one unit."""
        fan = fan_in if self.fan == "in" else (fan_in + fan_out) / 2
        return self.gain / max(fan, 1)


@dataclass(frozen=True)
class TruncatedNormal:
    """A normal distribution without its tails, beyond two of its standard deviations."""

    deviation: float = 0.02

    def write(self, builder: GraphBuilder, blank: Blank) -> str:
        """Takes uniform numbers to the quantiles of the distribution: x = u * P(-log(1 - u²)), with a polynomial P."""
        kind, name = _computed_type(blank), blank.name
        bound = math.erf(_TRUNCATED_AT / math.sqrt(2.0))
        uniform = blank.draw(builder, f"{name}/uniform", "RandomUniform", kind, low=-bound, high=bound)
        square = builder.add("Mul", (uniform, uniform), f"{name}/square")
        rest = builder.add("Sub", (builder.initializer(f"{name}/one", 1.0, kind), square), f"{name}/rest")
        tail = builder.add("Neg", (builder.add("Log", (rest,), f"{name}/log"),), f"{name}/tail")
        coefficients = np.multiply(quantile_polynomial().coef[::-1], self.deviation)
        factor = _write_polynomial(builder, blank, tail, coefficients, kind)
        return _rounded(builder, blank, builder.add("Mul", (uniform, factor), f"{name}/value"), kind)


@dataclass(frozen=True)
class Orthogonal:
    """Orthonormal rows or columns, whichever are fewer, times a gain; every such matrix is as likely as any other."""

    gain: float = 1.0

    def write(self, builder: GraphBuilder, blank: Blank) -> str:
        """Takes a matrix of normal numbers to the orthogonal one nearest to it, by Newton's iteration."""
        kind, name = _computed_type(blank), blank.name
        *batch, rows, columns = blank.matrix
        tall = Blank(name, (*batch, max(rows, columns), min(rows, columns)), kind, seed=blank.seed)
        value = _write_newton(builder, tall, tall.draw(builder, f"{name}/normal", "RandomNormal", kind))
        if rows < columns:
            swapped = [*range(len(batch)), len(batch) + 1, len(batch)]
            value = builder.add("Transpose", (value,), f"{name}/wide", perm=swapped)
        gain = builder.initializer(f"{name}/gain", self.gain, kind)
        value = builder.add("Mul", (value, gain), f"{name}/scaled")
        value = builder.add("Reshape", (value, builder.integers(f"{name}/shape", blank.dims)), f"{name}/value")
        return _rounded(builder, blank, value, kind)


SCHEMES: Mapping[str, Scheme] = {
    "glorot_uniform": VarianceScaling(1.0, "average", "uniform"),
    "glorot_normal": VarianceScaling(1.0, "average", "normal"),
    "he_uniform": VarianceScaling(2.0, "in", "uniform"),
    "he_normal": VarianceScaling(2.0, "in", "normal"),
    "lecun_uniform": VarianceScaling(1.0, "in", "uniform"),
    "lecun_normal": VarianceScaling(1.0, "in", "normal"),
    "orthogonal": Orthogonal(),
    "normal": Normal(),
    "truncated_normal": TruncatedNormal(),
    "uniform": Uniform(),
    "zeros": Constant(0.0),
    "ones": Constant(1.0),
}
_WITH_NUMBER: Mapping[str, Callable[[float], Scheme]] = {
    "orthogonal": Orthogonal,
    "normal": Normal,
    "truncated_normal": TruncatedNormal,
    "uniform": Uniform,
    "constant": Constant,
}


def find_scheme(initialize: str | Scheme) -> Scheme | None:
    """The scheme of this name; None for "keep", which leaves the weights at their stored values.

    Raises:
      UnsupportedError: there is none; the message lists those that there are.
    """
    if not isinstance(initialize, str):
        return initialize
    if initialize == KEEP:
        return None
    if initialize in SCHEMES:
        return SCHEMES[initialize]
    name, _, number = initialize.partition(":")
    try:
        return _WITH_NUMBER[name](float(number))
    except (KeyError, ValueError):
        known = ", ".join(map(repr, (KEEP, *SCHEMES)))
        numbered = ", ".join(f"'{name}:NUMBER'" for name in _WITH_NUMBER)
        raise UnsupportedError(
            f"The initialization {initialize!r} is unknown. Known are {known}, and {numbered}."
        ) from None


def quantile_polynomial() -> Polynomial:
    """P with u * P(-log(1 - u²)) the quantile of the normal distribution at (1 + u) / 2, within its two deviations."""
    u = math.erf(_TRUNCATED_AT / math.sqrt(2.0)) * np.sin(np.linspace(1e-3, np.pi / 2, 400))  # dense at the end
    quantiles = np.array([NormalDist().inv_cdf((1.0 + value) / 2) for value in u])
    return Polynomial.fit(-np.log1p(-u * u), quantiles / u, deg=10).convert()


def _write_polynomial(
    builder: GraphBuilder, blank: Blank, variable: str, coefficients: np.ndarray, element_type: int
) -> str:
    """Horner's scheme as a Loop over the coefficients, from that of the highest power."""
    name, names = blank.name, builder.names
    stored = builder.initializer(f"{name}/coefficients", coefficients, element_type)
    iteration, old = names.fresh(f"{name}/iteration"), names.fresh(f"{name}/sum")
    body = builder.nested()
    moved = body.add("Mul", (old, variable), f"{name}/raised")
    result = body.add("Add", (moved, body.add("Gather", (stored, iteration), f"{name}/coefficient")), f"{name}/added")
    start = builder.filled(f"{name}/start", blank.dims, 0.0, element_type)
    loop = _Loop(name, len(coefficients), iteration, old, result, blank.dims, element_type)
    return loop.write(builder, body, start)


def _write_newton(builder: GraphBuilder, tall: Blank, start: str) -> str:
    """X <- X (3 - XᵀX) / 2 takes every singular value to 1, from anywhere below the square root of 3."""
    name, names, kind = tall.name, builder.names, tall.element_type
    # a matrix of normal numbers has a singular value above the two roots and t with a probability of exp(-t² / 2)
    largest = math.sqrt(tall.dims[-2]) + math.sqrt(tall.dims[-1]) + 4.0
    start = builder.add("Div", (start, builder.initializer(f"{name}/largest", largest, kind)), f"{name}/start")
    iteration, old = names.fresh(f"{name}/iteration"), names.fresh(f"{name}/matrix")
    three_halves = builder.initializer(f"{name}/three_halves", 1.5, kind)
    half = builder.initializer(f"{name}/half", 0.5, kind)
    body = builder.nested()
    rank = len(tall.dims)
    turned = body.add("Transpose", (old,), f"{name}/turned", perm=[*range(rank - 2), rank - 1, rank - 2])
    gram = body.add("MatMul", (turned, old), f"{name}/gram")
    product = body.add("MatMul", (old, gram), f"{name}/product")
    kept = body.add("Mul", (old, three_halves), f"{name}/kept")
    taken = body.add("Mul", (product, half), f"{name}/taken")
    result = body.add("Sub", (kept, taken), f"{name}/next")
    return _Loop(name, _ITERATIONS, iteration, old, result, tall.dims, kind).write(builder, body, start)


@dataclass(frozen=True)
class _Loop:
    """A Loop that carries one tensor through a fixed number of iterations."""

    name: str
    count: int
    iteration: str
    old: str
    new: str
    dims: tuple[int, ...]
    element_type: int

    def write(self, builder: GraphBuilder, body: GraphBuilder, start: str) -> str:
        """Adds it around the nodes of `body`; the name of the tensor after the last iteration."""
        go_on = builder.names.fresh(f"{self.name}/condition")
        still = body.add("Identity", (go_on,), f"{go_on}/kept")
        graph = helper.make_graph(
            body.nodes,
            "iteration",
            [
                helper.make_tensor_value_info(self.iteration, TensorProto.INT64, []),
                helper.make_tensor_value_info(go_on, TensorProto.BOOL, []),
                self._carried(self.old),
            ],
            [helper.make_tensor_value_info(still, TensorProto.BOOL, []), self._carried(self.new)],
        )
        count = builder.integers(f"{self.name}/count", self.count)
        always = builder.initializer(f"{self.name}/always", True, TensorProto.BOOL)
        return builder.add("Loop", (count, always, start), f"{self.name}/last", body=graph)

    def _carried(self, name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, self.element_type, self.dims)


def _computed_type(blank: Blank) -> int:
    return TensorProto.FLOAT if blank.element_type in HALF_TYPES else blank.element_type


def _rounded(builder: GraphBuilder, blank: Blank, value: str, element_type: int) -> str:
    return value if element_type == blank.element_type else builder.cast(value, blank.element_type, blank.name)


def _drawn_in_its_own_type(builder: GraphBuilder, blank: Blank, distribution: str, **attributes: Any) -> str:
    # RandomNormal knows no bfloat16 before opset 22
    kind = TensorProto.FLOAT if blank.element_type == TensorProto.BFLOAT16 else blank.element_type
    name = blank.name if kind == blank.element_type else f"{blank.name}/drawn"
    return _rounded(builder, blank, blank.draw(builder, name, distribution, kind, **attributes), kind)
