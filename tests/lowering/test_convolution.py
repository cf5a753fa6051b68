from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onnxtrain.errors import OperatorError
from tests.lowering.elsewhere import Case, assert_equal_to_onnxruntime
from tests.lowering.one_node import run_node

SAME = ("SAME_UPPER", "SAME_LOWER")

CASES = [
    Case("Conv", 1, [(2, 3, 9), (4, 3, 3)], {"pads": [2, 1], "strides": [2], "dilations": [2]}),
    Case("Conv", 22, [(2, 4, 5, 6, 7), (6, 2, 3, 2, 1), (6,)], {"group": 2, "pads": [1, 0, 0, 0, 1, 0]}),
    Case("Conv", 22, [(2, 3, 7, 8), (3, 1, 3, 2)], {"group": 3, "pads": [1, 0, 2, 1], "dilations": [1, 2]}),
    Case("Conv", 22, [(2, 3, 7, 8), (3, 1, 3, 2), (3,)], {"group": 3, "auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    *(Case("Conv", 11, [(1, 2, 7, 8), (3, 2, 2, 3)], {"auto_pad": mode, "strides": [2, 3]}) for mode in SAME),
    Case("ConvTranspose", 1, [(2, 3, 5), (3, 2, 3), (2,)], {"strides": [2], "pads": [1, 0], "output_padding": [1]}),
    Case("ConvTranspose", 22, [(2, 4, 3, 4, 3), (4, 3, 2, 3, 1), (6,)], {"group": 2, "dilations": [2, 1, 1]}),
    *(
        Case("ConvTranspose", 11, [(1, 2, 4, 5), (2, 3, 3, 4)], {"auto_pad": mode, "strides": [2, 3], **more})
        for mode in SAME
        for more in ({}, {"output_padding": [1, 2]})
    ),
    Case("ConvTranspose", 11, [(1, 2, 4, 5), (2, 3, 3, 4)], {"output_shape": [8, 13], "strides": [2, 3]}),
    Case("ConvInteger", 10, [np.arange(25, dtype=np.uint8).reshape(1, 1, 5, 5), np.ones((2, 1, 2, 2), np.uint8)]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_convolution_agrees_with_onnxruntime(case: Case) -> None:
    assert_equal_to_onnxruntime(case)


@pytest.mark.parametrize("auto_pad", SAME)
@pytest.mark.parametrize("kernel", [1, 2, 4])
def test_same_padding_of_the_transpose_multiplies_the_input_by_the_stride(auto_pad: str, kernel: int) -> None:
    """Also with kernels that leave gaps, where onnxruntime's output is shorter."""
    x, w = jnp.ones((1, 1, 5)), jnp.ones((1, 1, kernel))
    (y,) = run_node("ConvTranspose", [x, w], opset=22, auto_pad=auto_pad, strides=(3,), group=1)
    assert y.shape == (1, 1, 15)


def test_output_shape_of_the_transpose_may_name_batch_and_channels() -> None:
    x, w = jnp.ones((1, 1, 3, 3)), jnp.ones((1, 2, 3, 3))
    short, long = (
        run_node("ConvTranspose", [x, w], opset=11, output_shape=shape, strides=(3, 2))[0]
        for shape in ((10, 8), (1, 2, 10, 8))
    )
    np.testing.assert_array_equal(short, long)


def test_what_no_window_of_the_transpose_reaches_is_the_bias() -> None:
    x, w, b = jnp.ones((1, 1, 2)), jnp.ones((1, 1, 2)), jnp.array([7.0])
    (y,) = run_node("ConvTranspose", [x, w, b], opset=11, output_shape=(6,), strides=(2,))
    np.testing.assert_array_equal(y, [[[8, 8, 8, 8, 7, 7]]])


def test_a_kernel_shape_that_is_not_the_kernels_is_refused() -> None:
    with pytest.raises(OperatorError, match=r"kernel_shape \[2, 2\] is not the shape of the kernels \[3, 3\]"):
        run_node("Conv", [jnp.ones((1, 1, 5, 5)), jnp.ones((1, 1, 3, 3))], opset=22, kernel_shape=(2, 2))


def test_pads_of_another_rank_are_refused() -> None:
    with pytest.raises(OperatorError, match="An input of 2 spatial axes does not go with"):
        run_node("Conv", [jnp.ones((1, 1, 5, 5)), jnp.ones((1, 1, 3, 3))], opset=22, pads=(1, 1))


def test_an_undeformed_deformable_convolution_is_a_convolution() -> None:
    random = np.random.default_rng(0)
    x, w, b = (random.standard_normal(shape).astype(np.float32) for shape in ((2, 4, 5, 6), (6, 2, 3, 2), (6,)))
    attributes: dict[str, Any] = {"group": 2, "pads": (1, 0, 1, 1), "strides": (2, 1), "dilations": (1, 2)}
    (plain,) = run_node("Conv", [x, w, b], opset=22, attributes=attributes)
    offset = np.zeros((2, 2 * 3 * 2 * 2, *plain.shape[2:]), np.float32)
    (deformed,) = run_node("DeformConv", [x, w, offset, b], opset=22, offset_group=2, attributes=attributes)
    np.testing.assert_allclose(deformed, plain, rtol=1e-4, atol=1e-5)


def test_gradient_of_a_depthwise_convolution_is_that_of_the_grouped_one() -> None:
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 6, 5), (3, 1, 3, 2)))

    def loss(x: Any, w: Any, group: int) -> Any:
        return jnp.sin(run_node("Conv", [x, w], opset=22, group=group, pads=(1, 0, 0, 1), strides=(1, 2))[0]).sum()

    dense = jnp.zeros((3, 3, 3, 2)).at[jnp.arange(3), jnp.arange(3)].set(w[:, 0])
    found, expected = jax.grad(loss, (0, 1))(x, w, 3), jax.grad(loss, (0, 1))(x, dense, 1)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1][:, 0], expected[1][np.arange(3), np.arange(3)], rtol=1e-4, atol=1e-5)


def test_col2im_is_the_transpose_of_taking_blocks() -> None:
    """What it does to blocks of an image multiplies each element by the number of blocks that hold it."""

    def blocks(image: Any) -> Any:
        parts = jax.lax.conv_general_dilated_patches(image, (2, 3), (1, 2), ((1, 0), (0, 1)), rhs_dilation=(2, 1))
        return parts.reshape(*parts.shape[:2], -1)

    image = jnp.asarray(np.random.default_rng(0).standard_normal((1, 2, 5, 6)), jnp.float32)
    columns, pull_back = jax.vjp(blocks, image)
    (found,) = run_node(
        "Col2Im",
        [columns, np.array([5, 6]), np.array([2, 3])],
        opset=18,
        static_inputs=(1, 2),
        dilations=(2, 1),
        pads=(1, 0, 0, 1),
        strides=(1, 2),
    )
    np.testing.assert_allclose(found, pull_back(columns)[0], rtol=1e-5)


def test_causal_convolution_in_parts_equals_the_whole() -> None:
    random = np.random.default_rng(0)
    x, w, b = (random.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 9), (3, 1, 4), (3,)))
    whole, last = run_node("CausalConvWithState", [x, w, b], opset=27, outputs=2, activation="silu")
    parts, state = [], None
    for part in np.split(x, [2, 3], axis=2):
        y, state = run_node("CausalConvWithState", [part, w, b, state], opset=27, outputs=2, activation="silu")
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, 2), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(state, last)
