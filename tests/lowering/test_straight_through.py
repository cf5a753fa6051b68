"""Gradients through quantization: as if nothing had been rounded, or exactly zero."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

import onnxtrain as ot
from onnxtrain.graph.model import Graph, Node
from onnxtrain.lowering.context import Context
from onnxtrain.lowering.interpreter import run_graph
from tests.lowering.one_node import run_node

RANDOM = np.random.default_rng(0)


def there_and_back(x: Any, scale: Any, zero_point: Any, *between: Node, straight_through: bool = True) -> Any:
    """A value quantized and dequantized, by nodes that read `q` and give `moved`, if there are any, in between."""
    there = Node("QuantizeLinear", "", "there", ("x", "scale", "zero_point"), ("q",), {})
    back = Node("DequantizeLinear", "", "back", ("moved" if between else "q", "scale", "zero_point"), ("y",), {})
    values = {"x": x, "scale": scale, "zero_point": zero_point}
    return run([there, *between, back], values, straight_through=straight_through)


def run(nodes: Sequence[Node], values: dict[str, Any], *, straight_through: bool = True) -> Any:
    context = Context({}, {"": 25, "com.microsoft": 1}, straight_through=straight_through)
    return run_graph(Graph("test", (), (), tuple(nodes)), values, ["y"], context)["y"]


@pytest.mark.parametrize("zero_point", [np.int8(0), np.int8(100), np.zeros((), ml_dtypes.float8_e4m3fn)], ids=str)
def test_gradient_passes_straight_through_in_range_and_not_outside(zero_point: Any) -> None:
    lowest, highest = (-448, 448) if zero_point.dtype.kind != "i" else (-128 - int(zero_point), 127 - int(zero_point))
    x = jnp.array([lowest - 2, lowest, 0.3, 1.5, highest, highest + 2], jnp.float32)
    gradient = jax.grad(lambda x: there_and_back(x, jnp.float32(1), zero_point).sum())(x)
    np.testing.assert_array_equal(gradient, [0, 1, 1, 1, 1, 0])


def test_gradient_of_the_scale_is_that_of_learned_step_sizes() -> None:
    x = jnp.array([0.7, -1.3, 1000.0], jnp.float32)
    scale = jnp.float32(0.5)
    gradient = jax.jacobian(lambda scale: there_and_back(x, scale, np.int8(0)))(scale)
    np.testing.assert_allclose(gradient, [1 - 1.4, -3 + 2.6, 127], rtol=1e-5)


def test_straight_through_changes_no_value() -> None:
    x = RANDOM.standard_normal(100).astype(np.float32)
    scale, zero_point = np.float32(0.01), np.uint8(128)
    (q,) = run_node("QuantizeLinear", [x, scale, zero_point], opset=25)
    (expected,) = run_node("DequantizeLinear", [q, scale, zero_point], opset=25)
    np.testing.assert_array_equal(jax.jit(there_and_back)(x, scale, zero_point), expected)


def test_gradient_passes_through_dynamic_quantization() -> None:
    there = Node("DynamicQuantizeLinear", "", "there", ("x",), ("q", "scale", "zero_point"), {})
    back = Node("DequantizeLinear", "", "back", ("q", "scale", "zero_point"), ("y",), {})
    x = jnp.array([-1.0, 0.2, 0.7, 2.0])
    gradient = jax.grad(lambda x: jnp.square(run([there, back], {"x": x})).sum())(x)
    np.testing.assert_allclose(gradient, 2 * x, atol=0.05)


def moves(op_type: str, *inputs: Any, outputs: Sequence[str] = ("moved",), **attributes: Any) -> Any:
    """A node between the two that reads `q`, or the string of another name, and constants; with those by name."""
    names = [value if isinstance(value, str) else f"constant{i}" for i, value in enumerate(inputs)]
    constants = {name: value for name, value in zip(names, inputs, strict=True) if not isinstance(value, str)}
    return pytest.param(
        Node(op_type, "", "move", tuple(names), tuple(outputs), attributes), constants, id=f"{op_type} of {len(names)}"
    )


MOVES = [
    moves("Identity", "q"),
    moves("Reshape", "q", np.array([2, -1])),
    moves("Transpose", "q"),
    moves("Flatten", "q", axis=2),
    moves("Unsqueeze", "q", np.array([0])),
    moves("Squeeze", "q"),
    moves("Expand", "q", np.array([2, 1, 2, 4, 4])),
    moves("Tile", "q", np.array([1, 2, 1, 1])),
    moves("Slice", "q", np.array([1]), np.array([9]), np.array([2])),
    moves("Split", "q", outputs=("dropped", "moved"), axis=1, num_outputs=2),
    moves("Concat", "q", "q", axis=1),
    moves("Concat", "q", np.ones((1, 1, 4, 4), np.int8), axis=1),
    moves("Gather", "q", np.array([1, 0, 1]), axis=1),
    moves("GatherElements", "q", np.ones((1, 2, 1, 4), np.int64), axis=2),
    moves("GatherND", "q", np.array([[0, 1]])),
    moves("Pad", "q", np.array([0, 0, 1, 0, 0, 0, 0, 1])),
    moves("Pad", "q", np.array([0, 0, 1, 0, 0, 0, 0, 1]), np.array(3, np.int8)),
    moves("DepthToSpace", "q", blocksize=1),
    moves("SpaceToDepth", "q", blocksize=2),
    moves("MaxPool", "q", kernel_shape=(2, 2), strides=(2, 2)),
    moves("MaxPool", "q", outputs=("moved", "indices"), kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
    moves("Resize", "q", "", np.array([1, 1, 2, 2], np.float32), mode="nearest"),
    moves("Relu", "q"),
    moves("Clip", "q", np.array(-5, np.int8), np.array(9, np.int8)),
    moves("Max", "q", np.array(2, np.int8)),
    moves("Where", np.arange(32).reshape(1, 2, 4, 4) % 3 > 0, "q", np.array(2, np.int8)),
    moves("ReduceMax", "q", np.array([3])),
    moves("TopK", "q", np.array([3]), outputs=("moved", "indices")),
    moves("Compress", "q", np.array([True, False, True]), axis=3),
]


@pytest.mark.parametrize(("node", "constants"), MOVES)
def test_gradient_passes_through_what_moves_or_chooses_quantized_values(node: Node, constants: dict[str, Any]) -> None:
    """It is the gradient of the node on floats. The values lie on the grid, so that the outputs are the same too."""
    scale = np.float32(0.5)
    x = jnp.asarray(np.random.default_rng(0).permutation(32).reshape(1, 2, 4, 4) - 16, jnp.float32) * scale
    back = Node("DequantizeLinear", "", "back", ("moved", "scale"), ("y",), {})
    there = Node("QuantizeLinear", "", "there", ("x", "scale", "zero"), ("q",), {})

    def weighted(y: Any) -> Any:
        return jnp.vdot(y, jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)), y

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def quantized(x: Any) -> Any:
        return weighted(run([there, node, back], {"x": x, "scale": scale, "zero": np.int8(0), **constants}))

    @partial(jax.grad, has_aux=True)
    def plain(x: Any) -> Any:
        floats = {name: value * scale if value.dtype == np.int8 else value for name, value in constants.items()}
        return weighted(run([node, Node("Identity", "", "", ("moved",), ("y",), {})], {"q": x, **floats}))

    for found, expected in zip(quantized(x), plain(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


SCALE, MIDDLE = np.float32(0.02), np.uint8(128)


def product(op_type: str, a: str, b: str, domain: str = "", **attributes: Any) -> list[Node]:
    """The product of two quantized values, back in floats, as exporters write it for each of these operators."""
    if "Integer" in op_type:
        return [
            Node(op_type, domain, "product", (a, b, "middle", "middle"), ("integers",), attributes),
            Node("Cast", "", "cast", ("integers",), ("floats",), {"to": 1}),
            Node("Mul", "", "scale", ("floats", "both"), ("y",), {}),
        ]
    result = ("large", "middle")
    bias = ("",) if op_type == "QGemm" else ()
    inputs = (a, "scale", "middle", b, "scale", "middle", *bias, *result)
    return [
        Node(op_type, domain, "product", inputs, ("z",), attributes),
        Node("DequantizeLinear", "", "back", ("z", *result), ("y",), {}),
    ]


@pytest.mark.parametrize(
    ("op_type", "domain", "shapes", "plain"),
    [
        ("QLinearMatMul", "", ((3, 4), (4, 5)), jnp.matmul),
        ("MatMulInteger", "", ((3, 4), (4, 5)), jnp.matmul),
        ("QLinearConv", "", ((1, 2, 5, 5), (3, 2, 3, 3)), lambda x, w: jax.lax.conv(x, w, (1, 1), "VALID")),
        ("ConvInteger", "", ((1, 2, 5, 5), (3, 2, 3, 3)), lambda x, w: jax.lax.conv(x, w, (1, 1), "VALID")),
        ("QGemm", "com.microsoft", ((3, 4), (4, 5)), jnp.matmul),
        ("QLinearAdd", "com.microsoft", ((3, 4), (4,)), jnp.add),
        ("QLinearMul", "com.microsoft", ((3, 4), (4,)), jnp.multiply),
    ],
)
def test_gradient_passes_through_products_of_quantized_values(
    op_type: str, domain: str, shapes: Any, plain: Callable[..., Any]
) -> None:
    random = np.random.default_rng(0)
    a, b = (jnp.asarray(random.uniform(-2, 2, shape), jnp.float32) for shape in shapes)
    there = [
        Node("QuantizeLinear", "", f"quantize {name}", (name, "scale", "middle"), (f"q{name}",), {}) for name in "ab"
    ]
    constants = {"scale": SCALE, "middle": MIDDLE, "large": 8 * SCALE, "both": SCALE * SCALE}

    def quantized(a: Any, b: Any, straight_through: bool = True) -> Any:
        nodes = [*there, *product(op_type, "qa", "qb", domain)]
        return run(nodes, {"a": a, "b": b, **constants}, straight_through=straight_through)

    expected, pullback = jax.vjp(plain, a, b)
    found, found_pullback = jax.vjp(quantized, a, b)
    np.testing.assert_allclose(found, expected, atol=0.4)
    for one, other in zip(found_pullback(expected), pullback(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=0.02 * float(jnp.abs(other).max()))
    exact, exact_pullback = jax.vjp(partial(quantized, straight_through=False), a, b)
    np.testing.assert_array_equal(exact, found)
    assert not any(gradient.any() for gradient in exact_pullback(expected))


@pytest.mark.parametrize(
    ("op_type", "attributes", "plain"),
    [
        ("QLinearSigmoid", {}, jax.nn.sigmoid),
        ("QLinearLeakyRelu", {"alpha": 0.25}, lambda x: jnp.where(x < 0, x / 4, x)),
        ("QLinearSoftmax", {"opset": 13}, jax.nn.softmax),
        ("QLinearGlobalAveragePool", {}, lambda x: x.mean((2, 3), keepdims=True)),
        ("QLinearAveragePool", {"kernel_shape": (2, 1)}, lambda x: x.mean(2, keepdims=True)),
    ],
)
def test_gradient_passes_through_functions_of_a_quantized_value(
    op_type: str, attributes: Any, plain: Callable[..., Any]
) -> None:
    node = Node(
        op_type, "com.microsoft", "f", ("q", "scale", "zero_point", "scale", "zero_point"), ("moved",), attributes
    )
    x = jnp.asarray(np.random.default_rng(1).uniform(0, 2, (1, 2, 2, 3)), jnp.float32)
    weights = jnp.cos(jnp.arange(plain(x).size, dtype=jnp.float32)).reshape(plain(x).shape)
    gradient = jax.grad(lambda x: jnp.vdot(weights, there_and_back(x, SCALE, MIDDLE, node)))(x)
    np.testing.assert_allclose(gradient, jax.grad(lambda x: jnp.vdot(weights, plain(x)))(x), atol=0.01)


def test_gradient_passes_through_concatenated_quantized_values() -> None:
    inputs = ("scale", "zero_point", "q", "scale", "zero_point", "q", "scale", "zero_point")
    node = Node("QLinearConcat", "com.microsoft", "join", inputs, ("moved",), {"axis": 0})
    gradient = jax.grad(lambda x: there_and_back(x, SCALE, MIDDLE, node).sum())(jnp.array([0.3, 99.0]))
    np.testing.assert_array_equal(gradient, [2, 0])


def test_gradient_through_rounding_is_zero_where_the_user_asks_for_that() -> None:
    """That of the scale is what is left of it: the quantized value."""
    x = jnp.array([0.7, -1.3, 1000.0], jnp.float32)
    exact = partial(there_and_back, straight_through=False)
    values = exact(x, jnp.float32(0.5), np.int8(0))
    np.testing.assert_array_equal(values, there_and_back(x, jnp.float32(0.5), np.int8(0)))
    of_x, of_scale = jax.jacobian(exact, (0, 1))(x, jnp.float32(0.5), np.int8(0))
    np.testing.assert_array_equal(of_x, np.zeros((3, 3)))
    np.testing.assert_array_equal(of_scale, values / 0.5)


QUANTIZING = """
    q = QuantizeLinear(w, scale, zero_point)
    moved = Identity(q)
    y = DequantizeLinear(moved, scale, zero_point)
"""
BY_FUNCTIONS = """
    q = local.quantize(w, scale, zero_point)
    y = local.dequantize(q, scale, zero_point)
"""
FUNCTIONS = """
<domain: "local", opset_import: ["": 21]>
quantize (x, scale, zero_point) => (y) { y = QuantizeLinear(x, scale, zero_point) }
<domain: "local", opset_import: ["": 21]>
dequantize (x, scale, zero_point) => (y) { y = DequantizeLinear(x, scale, zero_point) }
"""


def quantized_training(body: str, functions: str = "") -> onnx.ModelProto:
    """A weight that is quantized, and moved by half the gradient of the sum of squares."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1, "local": 1]>\n'
        "g () => (float[3] y) <float[3] w = {0.3, -0.8, 9}, float scale = {0.25}, int8 zero_point = {100}> {"
        f"{body}}}{functions}"
    )
    algorithm = onnx.parser.parse_graph(
        """step () => (float loss, float[3] w_new, float[3] again) {
            loss = ReduceSumSquare <keepdims = 0> (y)
            dw = ai.onnx.preview.training.Gradient <xs = ["w"], y = "loss"> (w)
            half = Constant <value = float {0.5}> ()
            move = Mul(half, dw)
            w_new = Sub(w, move)
            of_gradient = ReduceSum <keepdims = 0> (dw)
            again = ai.onnx.preview.training.Gradient <xs = ["w"], y = "of_gradient"> (w)
        }"""
    )
    model.training_info.append(helper.make_training_info(algorithm, [("w", "w_new")], None, None))
    return model


@pytest.mark.parametrize(
    ("body", "functions"), [(QUANTIZING, ""), (BY_FUNCTIONS, FUNCTIONS)], ids=["nodes", "functions"]
)
def test_training_passes_straight_through_by_default_and_stands_still_with_exact_zeros(
    body: str, functions: str
) -> None:
    """Gradients of gradients too; the last weight is out of range."""
    session = ot.TrainingSession(quantized_training(body, functions))
    found = session.step({}, outputs=["again"])
    np.testing.assert_allclose(session.variables["w"], [0.3 - 0.25, -0.8 + 0.75, 9], rtol=1e-5)
    np.testing.assert_allclose(found["again"], [2, 2, 0])
    exact = ot.TrainingSession(quantized_training(body, functions), straight_through=False)
    exact.step({})
    np.testing.assert_array_equal(exact.variables["w"], np.array([0.3, -0.8, 9], np.float32))


def test_a_gradient_taken_later_sees_quantized_values_that_an_earlier_one_computed() -> None:
    """`jax.grad` around a step whose Gradient node has run the quantization on its way."""
    program = ot.lower(quantized_training(QUANTIZING))
    state = program.stored_state(jax.random.key(0))

    def weight_after(w: Any) -> Any:
        after, _ = program.step(dataclasses.replace(state, variables={"w": w}), {})
        return after.variables["w"].sum()

    np.testing.assert_allclose(jax.grad(weight_after)(state.variables["w"]), [0, 0, 1], atol=1e-6)
