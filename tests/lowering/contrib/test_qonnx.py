"""The quantizers of QONNX, against their definition."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onnxtrain.errors import OperatorError
from onnxtrain.graph.model import Graph, Node
from onnxtrain.lowering.context import Context
from onnxtrain.lowering.interpreter import run_graph
from tests.lowering.one_node import run_node

HALVES = np.array([-9, -1.5, -1.2, -0.5, 0, 0.5, 1.5, 1.7, 9], np.float32)


def quant(
    x: Any,
    scale: float = 1,
    zeropt: float = 0,
    bitwidth: float = 3,
    domain: str = "qonnx.custom_op.general",
    **attributes: Any,
) -> Any:
    inputs = [x, *(value if hasattr(value, "dtype") else np.float32(value) for value in (scale, zeropt, bitwidth))]
    return run_node("Quant", inputs, opset=1, domain=domain, attributes=attributes)[0]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, [-4, -2, -1, 0, 0, 0, 2, 2, 3]),
        ({"narrow": 1}, [-3, -2, -1, 0, 0, 0, 2, 2, 3]),
        ({"signed": 0}, [0, 0, 0, 0, 0, 0, 2, 2, 7]),
        ({"signed": 0, "narrow": 1}, [0, 0, 0, 0, 0, 0, 2, 2, 6]),
        ({"bitwidth": 1}, [-1, -1, -1, -1, 1, 1, 1, 1, 1]),
        ({"bitwidth": 1, "signed": 0}, [0, 0, 0, 0, 0, 0, 1, 1, 1]),
        ({"rounding_mode": "CEIL"}, [-4, -1, -1, 0, 0, 1, 2, 2, 3]),
        ({"rounding_mode": "FLOOR"}, [-4, -2, -2, -1, 0, 0, 1, 1, 3]),
        ({"rounding_mode": "UP"}, [-4, -2, -2, -1, 0, 1, 2, 2, 3]),
        ({"rounding_mode": "DOWN"}, [-4, -1, -1, 0, 0, 0, 1, 1, 3]),
        ({"rounding_mode": "HALF_UP"}, [-4, -2, -1, -1, 0, 1, 2, 2, 3]),
        ({"rounding_mode": "half_down"}, [-4, -1, -1, 0, 0, 0, 1, 2, 3]),
        ({"zeropt": 2}, [-6, -2, -1, 0, 0, 0, 1, 1, 1]),
    ],
    ids=str,
)
def test_values_are_rounded_and_cut_off_at_the_range_of_the_bits(attributes: Any, expected: Any) -> None:
    np.testing.assert_array_equal(quant(HALVES, **attributes), expected)


@pytest.mark.parametrize("domain", ["qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general"])
def test_older_names_of_the_domain_mean_the_same(domain: str) -> None:
    np.testing.assert_array_equal(quant(HALVES, 0.5, domain=domain), quant(HALVES, 0.5))


def test_scales_and_bits_may_be_those_of_channels() -> None:
    x = np.array([[0.3, 0.3], [9, 9]], np.float32)
    y = quant(x, np.array([0.5, 0.1], np.float32), bitwidth=np.array([2, 4], np.float32))  # type: ignore[arg-type]
    np.testing.assert_allclose(y, [[0.5, 0.3], [0.5, 0.7]], rtol=1e-6)


def test_gradient_passes_straight_through_in_range_and_reaches_the_scale() -> None:
    x = jnp.array([-9, -2, 0.3, 1.5, 9], jnp.float32)
    gradient = jax.grad(lambda x: quant(x, 0.5).sum())(x)
    np.testing.assert_array_equal(gradient, [0, 1, 1, 1, 0])
    of_scale = jax.jacobian(lambda scale: quant(x, scale))(jnp.float32(0.5))
    np.testing.assert_allclose(of_scale, [-4, 0, 1 - 0.6, 0, 3], rtol=1e-5)


def test_a_bipolar_value_is_plus_or_minus_the_scale_and_its_gradient_passes_within_it() -> None:
    def bipolar(x: Any) -> Any:
        return run_node("BipolarQuant", [x, np.float32(0.5)], opset=1, domain="qonnx.custom_op.general")[0]

    x = jnp.array([-9, -0.4, 0, 0.2, 9], jnp.float32)
    np.testing.assert_array_equal(bipolar(x), [-0.5, -0.5, 0.5, 0.5, 0.5])
    np.testing.assert_array_equal(jax.grad(lambda x: bipolar(x).sum())(x), [0, 1, 1, 1, 0])


def test_an_unknown_way_of_rounding_is_refused() -> None:
    with pytest.raises(OperatorError, match="rounding_mode must be one of"):
        quant(HALVES, rounding_mode="SOMEHOW")


def test_gradient_through_rounding_is_zero_where_the_user_asks_for_that() -> None:
    inputs = ("x", "scale", "zero", "bits")
    node = Node("Quant", "qonnx.custom_op.general", "", inputs, ("y",), {})
    bipolar = Node("BipolarQuant", "qonnx.custom_op.general", "", ("x", "scale"), ("y",), {})
    context = Context({}, {"qonnx.custom_op.general": 1}, straight_through=False)
    x = jnp.array([-9, -0.3, 0.2, 9], jnp.float32)
    values = {"scale": jnp.float32(0.5), "zero": jnp.float32(0), "bits": jnp.float32(3)}
    for quantizer in (node, bipolar):
        graph = Graph("test", (), (), (quantizer,))

        def run(x: Any, graph: Graph = graph) -> Any:
            return run_graph(graph, {"x": x, **values}, ["y"], context)["y"].sum()

        np.testing.assert_array_equal(jax.grad(run)(x), np.zeros(4))
