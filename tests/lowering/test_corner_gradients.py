"""Gradients where formulas break down: at zero, on ties, far out. Finite wherever the function has a derivative.

What belongs to one family alone stands in that family's tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lowering.one_node import run_node

INFINITY = np.inf

# operator, opset, attributes, point, gradient at the point
POINTS: list[tuple[str, int, Mapping[str, Any], float, float]] = [
    ("Relu", 14, {}, 0.0, 0.0),
    ("Abs", 13, {}, 0.0, 0.0),
    ("Abs", 13, {}, -INFINITY, -1.0),
    ("Sign", 13, {}, 0.0, 0.0),
    ("Floor", 13, {}, 2.0, 0.0),
    ("Ceil", 13, {}, 2.0, 0.0),
    ("Round", 22, {}, 2.5, 0.0),
    ("Sqrt", 13, {}, 4.0, 0.25),
    ("Sqrt", 13, {}, 0.0, INFINITY),
    ("Reciprocal", 13, {}, 2.0, -0.25),
    ("Log", 13, {}, 0.0, INFINITY),
    ("Exp", 13, {}, -1000.0, 0.0),
    ("Tanh", 13, {}, 100.0, 0.0),
    ("Tanh", 13, {}, -100.0, 0.0),
    ("Sigmoid", 13, {}, -1000.0, 0.0),
    ("Erf", 13, {}, 100.0, 0.0),
    ("Atan", 22, {}, 1e10, 1e-20),
    ("Asinh", 22, {}, 1e10, 1e-10),
    ("Asinh", 22, {}, -1e10, 1e-10),
    ("Softplus", 22, {}, 1000.0, 1.0),
    ("Clip", 6, {"min": -1.0, "max": 1.0}, 1.0, 1.0),
    ("ReduceL1", 18, {"keepdims": 0}, 0.0, 0.0),
    ("ReduceL1", 18, {"keepdims": 0}, -3.0, -1.0),
    ("ReduceL2", 18, {"keepdims": 0}, 0.0, 0.0),
    ("ReduceSumSquare", 18, {"keepdims": 0}, 0.0, 0.0),
    ("ReduceLogSum", 18, {"keepdims": 0}, 0.0, INFINITY),
    ("ReduceLogSumExp", 18, {"keepdims": 0}, 1000.0, 1.0),
]

ROW = np.array([[-100, 100, 0, 100], [0, 0, 0, 0], [-100, -100, -100, -100]], np.float32)


@pytest.mark.parametrize(
    ("op_type", "opset", "attributes", "point", "expected"),
    [pytest.param(*row, id=f"{row[0]} at {row[3]:g}") for row in POINTS],
)
def test_gradient_at_a_point(
    op_type: str, opset: int, attributes: Mapping[str, Any], point: float, expected: float, x64: None
) -> None:
    def function(x: Any) -> Any:
        return run_node(op_type, [x], opset=opset, attributes=attributes)[0]

    np.testing.assert_allclose(jax.grad(function)(jnp.float64(point)), expected, rtol=1e-6)


@pytest.mark.parametrize("opset", [1, 11, 13])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_gradient_of_softmax_is_finite_however_large_the_scores(op_type: str, opset: int) -> None:
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    gradient = jax.grad(lambda x: (run_node(op_type, [x], opset=opset, axis=1)[0] * weights).sum())(jnp.asarray(ROW))
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient.sum(axis=1), [0, 0, 0], atol=1e-5)


@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_the_gradient_of_inputs_that_tie_is_shared_and_adds_up_to_one(op_type: str) -> None:
    gradients = jax.grad(lambda a, b, c: run_node(op_type, [a, b, c], opset=13)[0], (0, 1, 2))(1.0, 1.0, 1.0)
    assert sum(gradients) == 1
    assert min(gradients) > 0


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
def test_the_gradient_of_elements_that_tie_is_shared_and_adds_up_to_one(op_type: str) -> None:
    gradient = jax.grad(lambda x: run_node(op_type, [x], opset=20, keepdims=0)[0])(jnp.ones(5))
    np.testing.assert_allclose(gradient, np.full(5, 0.2), rtol=1e-6)


@pytest.mark.parametrize(
    ("op_type", "opset", "more", "attributes"),
    [
        ("LayerNormalization", 17, 2, {}),
        ("RMSNormalization", 23, 1, {}),
        ("MeanVarianceNormalization", 13, 0, {"axes": (1,)}),
        ("LpNormalization", 22, 0, {"axis": 1, "p": 1}),
        ("LpNormalization", 22, 0, {"axis": 1, "p": 2}),
        ("LRN", 13, 0, {"size": 3}),
        ("InstanceNormalization", 22, 2, {}),
        ("GroupNormalization", 21, 2, {"num_groups": 2}),
    ],
)
@pytest.mark.parametrize("x", [np.zeros_like(ROW), ROW, ROW * 1e6], ids=["zeros", "large", "very large"])
def test_gradient_of_normalization_is_finite_whatever_the_input(
    op_type: str, opset: int, more: int, attributes: Mapping[str, Any], x: Any
) -> None:
    x = x if op_type in ("LayerNormalization", "RMSNormalization", "LpNormalization") else x[..., None]
    parameters = [np.ones(4, np.float32), np.zeros(4, np.float32)][:more]
    weights = np.arange(12, dtype=np.float32).reshape(x.shape)

    def function(x: Any) -> Any:
        return (run_node(op_type, [x, *parameters], opset=opset, attributes=attributes)[0] * weights).sum()

    assert np.isfinite(jax.grad(function)(jnp.asarray(x))).all()


@pytest.mark.parametrize(("op_type", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_gradient_of_saturated_gates_is_finite(op_type: str, gates: int) -> None:
    x = np.full((3, 1, 2), 1000, np.float32) * np.array([-1, 1], np.float32)
    w, r = np.ones((1, gates * 2, 2), np.float32), np.full((1, gates * 2, 2), 100, np.float32)

    def function(x: Any, w: Any, r: Any) -> Any:
        return run_node(op_type, [x, w, r], opset=22, hidden_size=2)[0].sum()

    for gradient in jax.grad(function, (0, 1, 2))(x, w, r):
        assert np.isfinite(gradient).all()


def test_gradient_of_attention_is_finite_behind_a_mask_of_minus_infinity() -> None:
    mask = np.where(np.tri(3, dtype=bool), np.float32(0), np.float32(-np.inf))

    def function(q: Any, k: Any, v: Any) -> Any:
        return jnp.square(run_node("Attention", [q, k, v, mask], opset=23)[0]).sum()

    q, k, v = (np.full((1, 1, 3, 2), size, np.float32) for size in (100, 100, 1))
    for gradient in jax.grad(function, (0, 1, 2))(q, k, v):
        assert np.isfinite(gradient).all()


def test_dividing_by_zero_spoils_no_other_element() -> None:
    gradient = jax.grad(lambda x: run_node("Div", [np.float32(1), x], opset=14)[0][1])(jnp.array([0.0, 2.0]))
    assert gradient[1] == -0.25


def test_an_infinite_gradient_of_the_square_root_stays_where_it_is() -> None:
    gradient = jax.grad(lambda x: run_node("Sqrt", [x], opset=13)[0].sum())(jnp.array([0.0, 1.0]))
    np.testing.assert_array_equal(gradient, [np.inf, 0.5])


def test_the_gradient_of_a_determinant_that_is_zero_is_that_of_its_cofactors() -> None:
    """PyTorch has zero here, and infinity where the rank falls by more than one."""
    gradient = jax.grad(lambda x: run_node("Det", [x], opset=22)[0])(jnp.diag(jnp.array([2.0, 3.0, 0.0])))
    np.testing.assert_allclose(gradient, np.diag([0, 0, 6]), atol=1e-6)
