"""Convolutions, poolings and resampling of images, with ties and at borders."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.parity.operators.records import TorchCase, real, whole

IMAGE = (2, 4, 6, 7)


def conv(x: Any, w: Any, b: Any = None) -> Any:
    """Padding before and after an axis may differ in ONNX."""
    return F.conv2d(F.pad(x, (2, 0, 1, 3)), w, b, stride=(2, 1), dilation=(1, 2), groups=2)


CONVOLUTIONS = [
    TorchCase("Conv", F.conv1d, [(2, 3, 8), (4, 3, 3), (4,)]),
    TorchCase("Conv", F.conv3d, [(1, 2, 4, 4, 4), (3, 2, 2, 2, 2)]),
    TorchCase(
        "Conv",
        conv,
        [IMAGE, (6, 2, 3, 2), (6,)],
        {"group": 2, "strides": (2, 1), "dilations": (1, 2), "pads": (1, 2, 3, 0)},
    ),
    TorchCase("ConvTranspose", F.conv_transpose1d, [(2, 3, 5), (3, 4, 3), (4,)]),
    TorchCase(
        "ConvTranspose",
        lambda x, w, b: F.conv_transpose2d(x, w, b, (2, 3), (1, 2), (1, 0), 2, (1, 2)),
        [IMAGE, (4, 3, 3, 2), (6,)],
        {"group": 2, "strides": (2, 3), "pads": (1, 2, 1, 2), "output_padding": (1, 0), "dilations": (1, 2)},
    ),
]

# every window holds its largest value several times
TIED = np.tile(real([0, 1, 1], [1, 1, 0]), (1, 2, 2, 2))
KERNEL = {"kernel_shape": (2, 3)}
STRIDED: dict[str, Any] = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}

POOLINGS = [
    TorchCase("MaxPool", lambda x: F.max_pool2d(x, (2, 3), 1), [IMAGE], KERNEL),
    TorchCase("MaxPool", lambda x: F.max_pool2d(x, (2, 3), 1), [TIED], KERNEL),
    TorchCase("MaxPool", lambda x: F.max_pool2d(x, 3, 2, 1), [TIED], STRIDED),
    TorchCase("MaxPool", lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), [IMAGE], {**STRIDED, "ceil_mode": 1}),
    TorchCase(
        "MaxPool", lambda x: F.max_pool2d(x, 2, 1, 0, (2, 3)), [IMAGE], {"kernel_shape": (2, 2), "dilations": (2, 3)}
    ),
    TorchCase(
        "MaxPool",
        lambda x: F.max_pool2d(x, 9, 9, 4),
        [np.ones((1, 1, 18, 18))],
        {
            "kernel_shape": (9, 9),
            "strides": (9, 9),
            "pads": (4, 4, 4, 4),
        },
    ),
    TorchCase(
        "MaxPool",
        lambda x: F.max_pool1d(x, 2, 2, return_indices=True)[0],
        [(1, 1, 6)],
        {
            "kernel_shape": (2,),
            "strides": (2,),
        },
    ),
    TorchCase("AveragePool", lambda x: F.avg_pool2d(x, (2, 3), 1), [IMAGE], KERNEL),
    TorchCase("AveragePool", lambda x: F.avg_pool2d(x, 3, 2, 1), [IMAGE], {**STRIDED, "count_include_pad": 1}),
    TorchCase("AveragePool", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), [IMAGE], STRIDED),
    TorchCase(
        "AveragePool",
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        [IMAGE],
        {**STRIDED, "ceil_mode": 1},
    ),
    TorchCase("LpPool", lambda x: F.lp_pool2d(x, 2, (2, 3), 1), [IMAGE], KERNEL),
    TorchCase("GlobalAveragePool", lambda x: F.adaptive_avg_pool2d(x, 1), [IMAGE]),
    TorchCase("GlobalMaxPool", lambda x: F.adaptive_max_pool2d(x, 1), [TIED]),
    TorchCase("GlobalLpPool", lambda x: torch.linalg.vector_norm(x, 2, (2, 3), keepdim=True), [IMAGE]),
    TorchCase("GlobalLpPool", lambda x: torch.linalg.vector_norm(x, 2, (2, 3), keepdim=True), [np.zeros((1, 1, 2, 2))]),
    TorchCase(
        "MaxUnpool",
        lambda x, i: F.max_unpool2d(x, i, [2, 2]),
        [(1, 1, 2, 2), whole([[[0, 3], [9, 14]]])],
        {"kernel_shape": (2, 2), "strides": (2, 2)},
    ),
]

MODES = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}
PADDINGS = ("zeros", "border", "reflection")
OUTSIDE = np.random.default_rng(3).uniform(-1.6, 1.6, (1, 3, 4, 2))
GRIDS = [
    TorchCase(
        "GridSample",
        lambda x, grid, mode=mode, padding=padding, align=align: F.grid_sample(x, grid, MODES[mode], padding, align),
        [(1, 2, 4, 5), OUTSIDE],
        {"mode": mode, "padding_mode": padding, "align_corners": int(align)},
    )
    for mode in MODES
    for padding in PADDINGS
    for align in (False, True)
] + [
    TorchCase(
        "GridSample",
        lambda x, grid: F.grid_sample(x, grid, "bilinear", "zeros", False),
        [(1, 2, 3, 4, 5), np.random.default_rng(3).uniform(-1.3, 1.3, (1, 2, 3, 2, 3))],
    ),
    *(
        TorchCase(
            "AffineGrid",
            lambda theta, size, align=align: F.affine_grid(theta, size.tolist(), align),
            [(2, len(size) - 2, len(size) - 1), whole(*size)],
            {"align_corners": int(align)},
        )
        for size in ((2, 3, 4, 5), (2, 3, 4, 5, 6))
        for align in (False, True)
    ),
]


def resized(mode: str, size: tuple[int, int], twin: dict[str, Any], **attributes: Any) -> TorchCase:
    """An image of 4 x 5 in another size."""
    return TorchCase(
        "Resize",
        lambda x, *_: F.interpolate(x, size, **twin),
        [(1, 2, 4, 5), None, None, whole(1, 2, *size)],
        {"mode": mode, **attributes},
    )


ALIGNED = {"coordinate_transformation_mode": "align_corners"}
RESIZES = [
    *(
        case
        for size in ((8, 10), (7, 3), (2, 9))
        for case in (
            resized("linear", size, {"mode": "bilinear"}, coordinate_transformation_mode="pytorch_half_pixel"),
            resized("linear", size, {"mode": "bilinear", "align_corners": True}, **ALIGNED),
            resized("cubic", size, {"mode": "bicubic"}),
            resized("cubic", size, {"mode": "bicubic", "align_corners": True}, **ALIGNED),
            resized(
                "nearest",
                size,
                {"mode": "nearest"},
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            ),
        )
    ),
    resized("linear", (2, 3), {"mode": "bilinear", "antialias": True}, antialias=1, exclude_outside=1),
    TorchCase(
        "Upsample",
        lambda x, _: F.interpolate(x, scale_factor=(2, 3)),
        [(1, 2, 3, 4), np.array([1, 1, 2, 3], np.float32)],
        opset=9,
    ),
]

CASES = [*CONVOLUTIONS, *POOLINGS, *GRIDS, *RESIZES]
