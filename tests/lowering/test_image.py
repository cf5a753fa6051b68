from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onnxtrain.errors import OperatorError, StaticValueError
from tests.lowering.elsewhere import Case, assert_equal_to_onnxruntime
from tests.lowering.one_node import run_node

IMAGE = (1, 2, 4, 5)
ROI = np.array([0, 0, 0.1, 0.2, 1, 1, 0.8, 1.1], np.float32)
TRANSFORMATIONS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")


def scales(*values: float) -> np.ndarray:
    return np.array([1, 1, *values], np.float32)


def sizes(*values: int) -> np.ndarray:
    return np.array([1, 2, *values])


MODES: tuple[dict[str, Any], ...] = (
    {"mode": "nearest"},
    {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    {"mode": "nearest", "nearest_mode": "floor"},
    {"mode": "nearest", "nearest_mode": "ceil"},
    {"mode": "linear"},
    {"mode": "linear", "antialias": 1},
    {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
    {"mode": "cubic", "antialias": 1},
)

CASES = [
    *(
        Case("Resize", 19, [IMAGE, None, None, to], {**mode, "coordinate_transformation_mode": how}, 1, (3,))
        for to in (sizes(7, 4), sizes(1, 10))
        for how in TRANSFORMATIONS
        for mode in MODES
    ),
    *(
        Case("Resize", 19, [IMAGE, None, by], {**mode, "coordinate_transformation_mode": how}, 1, (2,))
        for by in (scales(2.6, 0.7),)
        for how in TRANSFORMATIONS
        if how != "align_corners"  # onnxruntime uses the rounded length there, ONNX's own cases the exact one
        for mode in MODES
    ),
    *(
        Case(
            "Resize",
            19,
            [IMAGE, ROI, None, sizes(5, 1)],
            {**mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0},
            1,
            (1, 3),
        )
        for mode in MODES[4:]
        if "antialias" not in mode
    ),
    *(
        Case("Resize", 10, [IMAGE, scales(*by)], {"mode": mode}, 1, (1,))
        for by in ((2, 1.5), (0.6, 3))
        for mode in ("nearest", "linear")
    ),
    *(Case("Upsample", 9, [IMAGE, scales(2, 1.5)], {"mode": mode}, 1, (1,)) for mode in ("nearest", "linear")),
    Case("Upsample", 7, [IMAGE], {"mode": "nearest", "scales": [1.0, 1.0, 3.0, 2.0]}),
    *(
        Case(
            "GridSample",
            20,
            [(2, 2, *size), np.random.default_rng(0).uniform(-2.5, 2.5, (2, *size, len(size))).astype(np.float32)],
            {"mode": mode, "padding_mode": padding, "align_corners": align},
        )
        for size, modes in (((4, 5), ("nearest", "linear", "cubic")), ((2, 3, 4), ("nearest", "linear")))
        for mode in modes
        for padding in ("zeros", "border", "reflection")
        for align in (0, 1)
    ),
]


def _name(case: Case) -> str:
    return f"{case.name} {[np.ravel(x)[:8].tolist() for x in case.inputs if isinstance(x, np.ndarray)]}"


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_resizing_and_sampling_agree_with_onnxruntime(case: Case) -> None:
    assert_equal_to_onnxruntime(case)


def test_the_oldest_upsample_says_height_and_width() -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    (y,) = run_node("Upsample", [x], opset=1, height_scale=1.0, width_scale=2.0, mode="bilinear")
    np.testing.assert_array_equal(y, [[[[0, 0.5, 1, 1], [2, 2.5, 3, 3]]]])


@pytest.mark.parametrize(("policy", "expected"), [("not_larger", (1, 4, 8)), ("not_smaller", (1, 6, 12))])
def test_resizing_keeps_the_aspect_ratio(policy: str, expected: tuple[int, ...]) -> None:
    (y,) = run_node(
        "Resize",
        [np.ones((1, 2, 4), np.float32), None, None, np.array([6, 8])],
        opset=18,
        static_inputs=(3,),
        axes=(1, -1),
        keep_aspect_ratio_policy=policy,
    )
    assert y.shape == expected


def test_a_scaled_length_is_computed_in_single_precision() -> None:
    (y,) = run_node(
        "Resize", [np.ones(10, np.float32), None, np.array([0.7], np.float32)], opset=19, static_inputs=(2,)
    )
    assert y.shape == (7,)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resized_integers_are_rounded_and_saturate(mode: str) -> None:
    x = np.array([0, 255, 255, 0], np.uint8)
    (y,) = run_node("Resize", [x, None, np.array([4], np.float32)], opset=19, static_inputs=(2,), mode=mode)
    (exact,) = run_node(
        "Resize", [x.astype(np.float32), None, np.array([4], np.float32)], opset=19, static_inputs=(2,), mode=mode
    )
    assert y.dtype == np.uint8
    np.testing.assert_array_equal(y, np.clip(np.round(exact), 0, 255))


def test_resizing_text_takes_the_nearest() -> None:
    (y,) = run_node(
        "Resize", [np.array(["a", "b"], object), None, np.array([2], np.float32)], opset=19, static_inputs=(2,)
    )
    assert list(y) == ["a", "a", "b", "b"]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_gradient_of_growing_an_image_spreads_as_its_values_do(mode: str) -> None:
    def grown(x: Any) -> Any:
        return run_node("Resize", [x, None, scales(2, 3)], opset=19, static_inputs=(2,), mode=mode)[0]

    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 1, 3, 4)), jnp.float32)
    y, pull_back = jax.vjp(grown, x)
    _, along = jax.jvp(grown, (x,), (x,))  # linear in x, so its derivative along x is itself
    np.testing.assert_allclose(along, y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jnp.vdot(pull_back(y)[0], x), jnp.vdot(y, y), rtol=1e-5)


def test_scales_that_are_only_known_at_run_time_are_refused_with_their_name() -> None:
    x = np.ones(IMAGE, np.float32)
    with pytest.raises(StaticValueError, match="'scales' must be known while tracing") as caught:
        run_node("Resize", [x, None, scales(2, 2)], opset=19)
    assert caught.value.source == "input2"


def test_sizes_and_scales_at_once_are_refused() -> None:
    with pytest.raises(OperatorError, match="Exactly one of scales and sizes"):
        run_node(
            "Resize",
            [np.ones(2, np.float32), None, np.array([2], np.float32), np.array([4])],
            opset=19,
            static_inputs=(2, 3),
        )


def test_an_image_that_cannot_be_decoded_is_empty() -> None:
    pytest.importorskip("PIL", reason="Pillow decodes")
    (image,) = run_node("ImageDecoder", [np.arange(9, dtype=np.uint8)], opset=20, static_inputs=(0,))
    assert (image.shape, image.dtype) == ((0, 0, 3), np.uint8)


def test_an_affine_grid_of_one_element_lies_in_the_middle() -> None:
    theta = np.array([[[1, 0, 0], [0, 1, 0]]], np.float32)
    for align_corners in (0, 1):
        (grid,) = run_node(
            "AffineGrid", [theta, np.array([1, 1, 1, 1])], opset=20, static_inputs=(1,), align_corners=align_corners
        )
        np.testing.assert_array_equal(grid, [[[[0, 0]]]])
