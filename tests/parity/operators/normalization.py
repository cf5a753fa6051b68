"""Normalizations, constant inputs among them, and losses with weights and ignored labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch.nn.functional as F

from tests.parity.operators.records import TorchCase, real, whole

IMAGE = (2, 4, 3, 2)
DOUBLE = {"stash_type": 11}
EPSILON = 1e-5
VARIANCES = real(0.5, 1, 2, 0)


def batch_norm(x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    """PyTorch's own function takes no gradient of the statistics."""
    mean, factor = mean[:, None, None], (scale / (variance + EPSILON).sqrt())[:, None, None]
    return (x - mean) * factor + bias[:, None, None]


def batch_norm_in_training(x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> tuple[Any, Any, Any]:
    """ONNX keeps the variance of the batch itself, PyTorch the one of all that it stands for."""
    y = F.batch_norm(x, None, None, scale, bias, True, eps=EPSILON)
    own_mean, own_variance = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    return y, mean * 0.75 + own_mean * 0.25, variance * 0.75 + own_variance * 0.25


def layer_norm(x: Any, scale: Any, bias: Any = None) -> Any:
    return F.layer_norm(x, scale.shape, scale, bias, EPSILON)


# attributes are given in full, since ONNX's defaults are those of float32
NORMALIZATIONS = [
    TorchCase(
        "BatchNormalization",
        lambda x, scale, bias, mean, variance: F.batch_norm(x, mean, variance, scale, bias),
        [IMAGE, (4,), (4,), (4,), VARIANCES],
        {"epsilon": EPSILON},
        constants=(3, 4),
    ),
    TorchCase(
        "BatchNormalization",
        batch_norm,
        [IMAGE, (4,), (4,), (4,), VARIANCES],
        {"epsilon": EPSILON},
    ),
    TorchCase(
        "BatchNormalization",
        batch_norm_in_training,
        [IMAGE, (4,), (4,), (4,), VARIANCES],
        {"epsilon": EPSILON, "training_mode": 1, "momentum": 0.75},
        outputs=3,
    ),
    TorchCase("LayerNormalization", layer_norm, [(2, 3, 4), (4,), (4,)], {"epsilon": EPSILON, **DOUBLE}),
    TorchCase("LayerNormalization", layer_norm, [(2, 3, 4), (3, 4)], {"axis": 1, "epsilon": EPSILON, **DOUBLE}),
    TorchCase("LayerNormalization", layer_norm, [np.ones((2, 4)), (4,)], {"epsilon": EPSILON, **DOUBLE}),
    TorchCase(
        "RMSNormalization",
        lambda x, scale: F.rms_norm(x, (4,), scale, EPSILON),
        [(2, 3, 4), (4,)],
        {
            "epsilon": EPSILON,
            **DOUBLE,
        },
    ),
    TorchCase(
        "RMSNormalization",
        lambda x, scale: F.rms_norm(x, (4,), scale, EPSILON),
        [np.zeros((2, 4)), (4,)],
        {
            "epsilon": EPSILON,
            **DOUBLE,
        },
    ),
    TorchCase(
        "SimplifiedLayerNormalization",
        lambda x, scale: F.rms_norm(x, (4,), scale, EPSILON),
        [(2, 4), (4,)],
        {
            "epsilon": EPSILON,
            **DOUBLE,
        },
    ),
    TorchCase(
        "InstanceNormalization",
        lambda x, scale, bias: F.instance_norm(x, None, None, scale, bias),
        [
            IMAGE,
            (4,),
            (4,),
        ],
        {"epsilon": EPSILON},
    ),
    TorchCase(
        "GroupNormalization",
        lambda x, scale, bias: F.group_norm(x, 2, scale, bias),
        [IMAGE, (4,), (4,)],
        {
            "num_groups": 2,
            "epsilon": EPSILON,
            **DOUBLE,
        },
    ),
    TorchCase(
        "LRN",
        lambda x: F.local_response_norm(x, 3, 0.1, 0.5, 2.0),
        [IMAGE],
        {
            "size": 3,
            "alpha": 0.1,
            "beta": 0.5,
            "bias": 2.0,
        },
    ),
    TorchCase("LpNormalization", lambda x: F.normalize(x, 2, 1), [(2, 3)], {"axis": 1, "p": 2}),
    TorchCase("LpNormalization", lambda x: F.normalize(x, 1, 1), [(2, 3)], {"axis": 1, "p": 1}),
    TorchCase(
        "MeanVarianceNormalization",
        lambda x: F.batch_norm(x, None, None, training=True, eps=1e-30),
        [(6, 4, 3, 2)],
        rtol=1e-7,
    ),  # ONNX adds 1e-9 to the deviation
]

LABELS = whole([0, 2, -1], [1, 1, 0])
WEIGHTS = real(0.5, 1, 2)
SCORES = real([[100, -100, 0], [0, 0, 0], [-100, 0, 3]], [[1, 2, 3], [0.5, 0, 2], [0, 1, 1]])


def loss(op_type: str, twin: Callable[..., Any], weighted: bool, **options: Any) -> TorchCase:
    """A loss over two rows of three classes and places; the label -1 is to be ignored."""
    labels = LABELS if options.get("ignore_index") == -1 else LABELS % 3
    inputs = [SCORES, labels, WEIGHTS] if weighted else [SCORES, labels]
    return TorchCase(op_type, lambda *inputs: twin(*inputs, **options), inputs, options, constants=(2,))


LOSSES = [
    loss(op_type, twin, weighted, reduction=reduction, **ignored)
    for op_type, twin in (("NegativeLogLikelihoodLoss", F.nll_loss), ("SoftmaxCrossEntropyLoss", F.cross_entropy))
    for reduction in ("none", "sum", "mean")
    for weighted in (False, True)
    for ignored in ({}, {"ignore_index": -1}, {"ignore_index": 1})
]

CASES = [*NORMALIZATIONS, *LOSSES]
