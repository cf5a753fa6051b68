from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from onnxtrain.graph.model import Graph, Node
from onnxtrain.lowering.context import Context
from onnxtrain.lowering.interpreter import run_graph
from tests.lowering.elsewhere import Case, assert_equal_to_onnxruntime
from tests.lowering.one_node import run_node

RANDOM = np.random.default_rng(0)
SCALES = np.array([0.02, 0.1, 0.5], np.float32)


def bytes_of(dtype: Any, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max, shape, dtype, endpoint=True)


CASES = [
    Case("QuantizeLinear", 10, [(2, 3, 4), np.float32(0.01), np.uint8(128)]),
    Case("QuantizeLinear", 13, [(2, 3, 4), SCALES, bytes_of(np.int8, 3)], {"axis": -2}),
    Case("DequantizeLinear", 10, [bytes_of(np.int8, 2, 3), np.float32(0.5), np.int8(-7)]),
    Case("DequantizeLinear", 13, [bytes_of(np.uint8, 2, 3, 4), SCALES, bytes_of(np.uint8, 3)]),
    Case("DequantizeLinear", 13, [np.array([2**31 - 1, -7], np.int32), np.float32(0.5)]),
    Case("DynamicQuantizeLinear", 11, [(4, 5)], {}, 3),
    Case(
        "MatMulInteger",
        10,
        [bytes_of(np.uint8, 3, 4), bytes_of(np.int8, 4, 5), np.uint8(9), bytes_of(np.int8, 5)],
    ),
    Case(
        "QLinearMatMul",
        10,
        [
            *(bytes_of(np.uint8, 3, 4), np.float32(0.02), np.uint8(3)),
            *(bytes_of(np.uint8, 4, 5), np.float32(0.02), np.uint8(200)),
            *(np.float32(0.01), np.uint8(7)),
        ],
    ),
    Case(
        "QLinearConv",
        10,
        [
            *(bytes_of(np.uint8, 1, 2, 5, 5), np.float32(0.02), np.uint8(120)),
            *(bytes_of(np.int8, 3, 2, 3, 3), SCALES, np.zeros(3, np.int8)),
            *(np.float32(0.9), np.uint8(100)),
            np.array([-500, 0, 500], np.int32),
        ],
        {"pads": [1, 1, 1, 1]},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_quantization_agrees_with_onnxruntime(case: Case) -> None:
    assert_equal_to_onnxruntime(case)


@pytest.mark.parametrize("static_inputs", [(), (0, 1, 2)], ids=["traced", "static"])
@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.int8, [-128, -3, 0, 2, 2, 4, 127]),
        (np.uint8, [0, 0, 0, 2, 2, 4, 255]),
        (ml_dtypes.int4, [-8, -3, 0, 2, 2, 4, 7]),
        (ml_dtypes.uint2, [0, 0, 0, 2, 2, 3, 3]),
        (ml_dtypes.float8_e4m3fn, [-448, -3, 0, 1.5, 2.5, 3.5, 448]),
        (ml_dtypes.float4_e2m1fn, [-6, -3, 0, 1.5, 2, 4, 6]),
    ],
)
def test_quantizing_rounds_to_even_and_saturates(dtype: Any, expected: Any, static_inputs: tuple[int, ...]) -> None:
    x = np.array([-9e9, -3, 0, 1.5, 2.5, 3.5, 9e9], np.float32)
    (y,) = run_node("QuantizeLinear", [x, np.float32(1), np.zeros((), dtype)], opset=25, static_inputs=static_inputs)
    assert y.dtype == dtype
    np.testing.assert_array_equal(np.asarray(y).astype(np.float32), expected)


def test_without_saturation_a_float_that_is_too_large_is_none() -> None:
    x, zero = np.array([1, 500], np.float32), np.zeros((), ml_dtypes.float8_e4m3fn)
    (y,) = run_node("QuantizeLinear", [x, np.float32(1), zero], opset=19, saturate=0)
    np.testing.assert_array_equal(np.asarray(y).astype(np.float32), [1, np.nan])


def test_a_type_without_negative_zero_quantizes_it_to_zero() -> None:
    x, zero = np.array([-0.0], np.float32), np.zeros((), ml_dtypes.float8_e4m3fnuz)
    (y,) = run_node("QuantizeLinear", [x, np.float32(1), zero], opset=19)
    assert np.asarray(y).view(np.uint8) == 0


def test_a_last_block_may_be_short() -> None:
    x, scale = np.array([[2, 4, 6, 8, 10]], np.float32), np.array([[1, 2]], np.float32)
    (y,) = run_node("QuantizeLinear", [x, scale], opset=21, axis=1, block_size=3)
    np.testing.assert_array_equal(y, [[2, 4, 6, 4, 5]])
    (back,) = run_node("DequantizeLinear", [np.asarray(y), scale], opset=21, axis=1, block_size=3)
    np.testing.assert_array_equal(back, x)


def test_a_quantized_product_saturates() -> None:
    full, one, zero = np.full((1, 4), 255, np.uint8), np.float32(1), np.uint8(0)
    (y,) = run_node("QLinearMatMul", [full, one, zero, full.T, one, zero, one, zero], opset=21)
    np.testing.assert_array_equal(y, [[255]])


def test_quantizing_zeros_dynamically_gives_zeros_and_no_nan() -> None:
    y, scale, zero_point = run_node("DynamicQuantizeLinear", [np.zeros(3, np.float32)], opset=11, outputs=3)
    np.testing.assert_array_equal(y, [0, 0, 0])
    assert (scale, zero_point) == (0, 0)


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
