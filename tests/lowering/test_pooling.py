from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onnxtrain.errors import OperatorError
from tests.lowering.elsewhere import Case, assert_equal_to_onnxruntime
from tests.lowering.one_node import run_node

IMAGE = (2, 3, 7, 8)
WINDOW = {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 2, 1]}
ROIS = np.array([[0.5, 1, 9, 7], [3, 2, 13, 13.5], [4, 4, 4.5, 4.2], [1, 0, 12, 5]], np.float32)
IMAGES = np.array([0, 1, 1, 0])

CASES = [
    *(
        Case("MaxPool", opset, [IMAGE], {**WINDOW, **more}, outputs)
        for opset, more, outputs in (
            (1, {}, 1),
            (8, {"storage_order": 1}, 2),
            (12, {"ceil_mode": 1, "dilations": [2, 1]}, 2),
            (22, {"storage_order": 1, "ceil_mode": 1}, 2),
        )
    ),
    Case("MaxPool", 12, [(1, 2, 5, 6, 7)], {"kernel_shape": [2, 3, 2], "storage_order": 1}, 2),
    Case("MaxPool", 12, [(1, 1, 400)], {"kernel_shape": [100], "strides": [7], "pads": [3, 4]}, 2),
    *(
        Case("AveragePool", opset, [IMAGE], {**WINDOW, **more, "count_include_pad": include})
        for include in (0, 1)
        for opset, more in ((7, {}), (11, {"ceil_mode": 1}), (22, {"ceil_mode": 1, "dilations": [2, 1]}))
    ),
    Case("AveragePool", 7, [(1, 1, 400)], {"kernel_shape": [100], "strides": [7], "pads": [3, 4]}),
    *(
        Case(op_type, 22, [IMAGE], {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": mode, **more})
        for op_type, more in (("MaxPool", {}), ("AveragePool", {"count_include_pad": 1}), ("LpPool", {"p": 3}))
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    Case("LpPool", 2, [IMAGE], {**WINDOW, "p": 1}),
    Case("GlobalLpPool", 2, [IMAGE], {"p": 3}),
    Case("GlobalMaxPool", 1, [IMAGE]),
    *(
        Case(
            "RoiAlign",
            16,
            [(2, 3, 9, 11), ROIS, IMAGES],
            {
                "mode": mode,
                "coordinate_transformation_mode": coordinates,
                "sampling_ratio": ratio,
                "output_height": 3,
                "output_width": 2,
                "spatial_scale": 0.8,
            },
            static_inputs=static_inputs,
        )
        for mode in ("avg", "max")
        for coordinates in ("half_pixel", "output_half_pixel")
        for ratio, static_inputs in ((0, ()), (0, (1,)), (2, ()))
    ),
    Case(
        "MaxRoiPool",
        1,
        [(2, 3, 9, 11), np.column_stack([IMAGES, ROIS]).astype(np.float32)],
        {"pooled_shape": [3, 2], "spatial_scale": 0.5},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.outputs}{case.static_inputs}")
def test_pooling_agrees_with_onnxruntime(case: Case, x64: None) -> None:
    assert_equal_to_onnxruntime(case)


def gradient(op_type: str, x: Any, **attributes: Any) -> Any:
    return jax.grad(lambda x: run_node(op_type, [x], opset=22, **attributes)[0].sum())(jnp.asarray(x))


@pytest.mark.parametrize("kernel", [2, 70])
def test_gradient_of_max_pooling_goes_to_the_first_of_equal_maxima(kernel: int) -> None:
    """Of short windows, which are compared slice by slice, and of long ones."""
    x = np.zeros((1, 1, kernel, kernel), np.float32)
    expected = np.zeros_like(x)
    expected[0, 0, 0, 0] = 1
    np.testing.assert_array_equal(gradient("MaxPool", x, kernel_shape=(kernel, kernel)), expected)
    np.testing.assert_array_equal(gradient("GlobalMaxPool", x), expected)


def test_max_pooling_prefers_the_first_row_to_the_first_column() -> None:
    x = np.array([[[[0, 5], [5, 0]]]], np.float32)
    np.testing.assert_array_equal(gradient("MaxPool", x, kernel_shape=(2, 2)), [[[[0, 1], [0, 0]]]])


def test_max_pooling_passes_nan_on() -> None:
    x = np.array([[[1, np.nan, 3, 4]]], np.float32)
    (y,) = run_node("MaxPool", [x], opset=22, kernel_shape=(2,), strides=(2,))
    np.testing.assert_array_equal(y, [[[np.nan, 4]]])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_max_pooling_of_integers_pads_with_the_lowest(dtype: Any) -> None:
    x = np.array([[[3, 1]]], dtype)
    (y,) = run_node("MaxPool", [x], opset=12, kernel_shape=(2,), pads=(1, 1))
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, [[[3, 3, 1]]])


def test_gradient_of_average_pooling_divides_by_what_was_counted() -> None:
    x = np.zeros((1, 1, 3), np.float32)
    window = {"kernel_shape": (2,), "strides": (2,), "pads": (1, 0)}
    np.testing.assert_array_equal(gradient("AveragePool", x, **window), [[[1, 0.5, 0.5]]])
    np.testing.assert_array_equal(gradient("AveragePool", x, count_include_pad=1, **window), [[[0.5, 0.5, 0.5]]])


@pytest.mark.parametrize(("op_type", "attributes"), [("LpPool", {"kernel_shape": (2,)}), ("GlobalLpPool", {})])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_gradient_of_a_norm_is_zero_where_all_elements_are(op_type: str, attributes: Any, p: int) -> None:
    np.testing.assert_array_equal(gradient(op_type, np.zeros((1, 1, 2), np.float32), p=p, **attributes), [[[0, 0]]])


def test_gradient_of_the_global_norm_is_that_of_the_mathematics() -> None:
    x = np.array([[[3, -4]]], np.float32)
    np.testing.assert_allclose(gradient("GlobalLpPool", x, p=2), [[[0.6, -0.8]]], rtol=1e-6)


def test_sums_of_half_precision_keep_their_digits() -> None:
    x = np.full((1, 1, 60000), 2, np.float16)
    for op_type, attributes in (("GlobalAveragePool", {}), ("AveragePool", {"kernel_shape": (60000,)})):
        (y,) = run_node(op_type, [x], opset=22, attributes=attributes)
        assert (y.dtype, float(y[0, 0, 0])) == (np.float16, 2.0)


def test_unpooling_puts_the_maxima_back(x64: None) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 6)).astype(np.float32)
    window = {"kernel_shape": (2, 2), "strides": (2, 2)}
    y, indices = run_node("MaxPool", [x], opset=22, outputs=2, attributes=window)
    (back,) = run_node("MaxUnpool", [y, indices], opset=22, attributes=window)
    expected = np.where(np.isin(x, np.asarray(y)), x, 0)
    np.testing.assert_array_equal(back, expected)


def test_gradient_of_pooled_regions_goes_to_their_maxima() -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    rois = np.array([[0, 1, 0, 2, 1]], np.float32)

    def pooled(x: Any) -> Any:
        return run_node("MaxRoiPool", [x, rois], opset=22, pooled_shape=(1, 2))[0].sum()

    expected = np.zeros_like(x)
    expected[0, 0, 1, 1:3] = 1
    np.testing.assert_array_equal(jax.grad(pooled)(x), expected)


def test_a_window_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OperatorError, match="A window of 5 elements does not fit on an axis of 3"):
        run_node("MaxPool", [jnp.ones((1, 1, 3))], opset=22, kernel_shape=(5,))


@pytest.mark.parametrize(("size", "stride", "kernel"), [*itertools.product((4, 5), (1, 2), (2, 3))])
def test_windows_in_ceil_mode_never_start_behind_the_input(size: int, stride: int, kernel: int) -> None:
    x = np.full((1, 1, size), -1, np.float32)
    (y,) = run_node("MaxPool", [x], opset=22, kernel_shape=(kernel,), strides=(stride,), pads=(1, 1), ceil_mode=1)
    np.testing.assert_array_equal(y, np.full_like(y, -1))
