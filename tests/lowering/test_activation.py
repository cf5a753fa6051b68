from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lowering.one_node import run_node

SMOOTH = {
    "Elu": 22,
    "Celu": 28,
    "Selu": 22,
    "Gelu": 20,
    "Mish": 22,
    "Swish": 24,
    "Softplus": 22,
    "Softsign": 22,
    "Sigmoid": 13,
    "HardSwish": 22,
    "HardSigmoid": 22,
    "LeakyRelu": 16,
    "Relu": 14,
    "ThresholdedRelu": 22,
    "Shrink": 9,
}


def gradient(op_type: str, opset: int, x: Any, **attributes: Any) -> Any:
    return jax.grad(lambda x: run_node(op_type, [x], opset=opset, **attributes)[0].sum())(jnp.asarray(x))


@pytest.mark.parametrize(("op_type", "opset"), SMOOTH.items())
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_gradient_far_from_zero_is_finite(op_type: str, opset: int, dtype: Any, x64: None) -> None:
    x = np.array([-100, -20, -1, 0, 1, 20, 100], dtype)
    found = gradient(op_type, opset, x)
    assert found.dtype == dtype
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("op_type", "opset", "attributes", "point", "expected"),
    [
        ("Relu", 14, {}, 0.0, 0.0),
        ("LeakyRelu", 16, {"alpha": 0.25}, 0.0, 0.25),
        ("Elu", 22, {"alpha": 0.5}, 0.0, 0.5),
        ("Softsign", 22, {}, 0.0, 1.0),
        ("ThresholdedRelu", 22, {"alpha": 1.0}, 1.0, 0.0),
        ("HardSigmoid", 22, {"alpha": 1.0, "beta": 0.0}, 1.0, 0.0),
        ("HardSigmoid", 22, {"alpha": 1.0, "beta": 0.0}, 0.0, 0.0),
        ("Clip", 6, {"min": -1.0, "max": 1.0}, 1.0, 1.0),
        ("Clip", 6, {"min": -1.0, "max": 1.0}, -1.0, 1.0),
        ("Clip", 6, {"min": -1.0, "max": 1.0}, 1.5, 0.0),
    ],
)
def test_gradient_on_a_kink(op_type: str, opset: int, attributes: Any, point: float, expected: float) -> None:
    assert gradient(op_type, opset, np.float32(point), **attributes) == expected


def test_gradient_of_clip_reaches_the_bound_that_holds() -> None:
    def clipped(x: Any, low: Any, high: Any) -> Any:
        return run_node("Clip", [x, low, high], opset=13)[0].sum()

    x = jnp.array([-3.0, 0.0, 3.0, 4.0])
    gradients = jax.grad(clipped, (0, 1, 2))(x, jnp.float32(-1), jnp.float32(1))
    np.testing.assert_array_equal(gradients[0], [0, 1, 0, 0])
    assert (gradients[1], gradients[2]) == (1.0, 2.0)


@pytest.mark.parametrize("static_inputs", [(), (0, 1, 2)], ids=["traced", "static"])
def test_clip_with_crossed_bounds_gives_the_upper_one(static_inputs: tuple[int, ...]) -> None:
    x = np.array([-9, 0, 9], np.int32)
    (found,) = run_node("Clip", [x, np.int32(5), np.int32(2)], opset=13, static_inputs=static_inputs)
    np.testing.assert_array_equal(found, [2, 2, 2])


def test_clip_takes_a_bound_of_shape_one_without_changing_the_shape() -> None:
    (found,) = run_node("Clip", [np.float32(3), None, np.array([1.0], np.float32)], opset=11)
    assert (found.shape, float(found)) == ((), 1.0)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(("opset", "axis"), [(1, 1), (1, 2), (9, 0), (11, -2)])
def test_until_version_13_all_axes_from_the_given_one_are_one(op_type: str, opset: int, axis: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    (found,) = run_node(op_type, [x], opset=opset, axis=axis)
    flat = x.reshape((*x.shape[:axis], -1))
    (expected,) = run_node(op_type, [flat], opset=13, axis=-1)
    np.testing.assert_allclose(found, expected.reshape(x.shape), rtol=1e-6)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [9, 13])
def test_no_elements_give_no_elements(op_type: str, opset: int) -> None:
    (found,) = run_node(op_type, [np.ones((3, 0), np.float32)], opset=opset, axis=1)
    assert found.shape == (3, 0)


def test_hardmax_marks_the_first_of_equal_values() -> None:
    (found,) = run_node("Hardmax", [np.array([[1, 3, 3], [2, 2, 2]], np.float32)], opset=13)
    np.testing.assert_array_equal(found, [[0, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize(("slope", "aligned"), [((1,), (1,)), ((3,), (3, 1, 1))])
def test_until_version_7_slopes_go_with_channels(slope: tuple[int, ...], aligned: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 3, 4, 5)).astype(np.float32)
    slopes = random.standard_normal(slope).astype(np.float32)
    (found,) = run_node("PRelu", [x, slopes], opset=6)
    np.testing.assert_array_equal(found, np.where(x < 0, x * slopes.reshape(aligned), x))


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_shrink_of_integers_keeps_their_type(dtype: Any) -> None:
    (found,) = run_node("Shrink", [np.array([0, 1, 2, 9], dtype)], opset=9, lambd=1.5, bias=1.5)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, [0, 0, 0, 7])
