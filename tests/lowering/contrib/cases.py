"""One node of every operator of onnxruntime's own that has a rule, in each of its forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.lowering.elsewhere import Case

RANDOM = np.random.default_rng(0)


def microsoft(
    op_type: str, *inputs: Any, outputs: int = 1, static_inputs: tuple[int, ...] = (), **attributes: Any
) -> Case:
    """A node of `com.microsoft`."""
    return Case(op_type, 1, inputs, attributes, outputs, static_inputs, "com.microsoft")


def below(limit: int, *shape: int, dtype: Any = np.int32) -> np.ndarray:
    """Integers from 0 up to the limit."""
    return RANDOM.integers(0, limit, shape, dtype)


IDS, SEGMENTS = below(7, 2, 3), below(2, 2, 3)
EMBEDDINGS = ((7, 8), (5, 8), (2, 8), (8,), (8,))
BATCHES = (4, 2, 3, 5)

ACTIVATIONS = [
    microsoft("Gelu", (3, 4)),
    microsoft("BiasGelu", (3, 4), (4,)),
    microsoft("FastGelu", (3, 4)),
    microsoft("FastGelu", (3, 4), (4,)),
    microsoft("QuickGelu", (3, 4)),
    microsoft("QuickGelu", (3, 4), alpha=1.0),
]

NORMALIZATIONS = [
    Case("LayerNormalization", 12, [(2, 3, 8), (8,), (8,)]),
    Case("SimplifiedLayerNormalization", 12, [(2, 3, 8), (8,)], outputs=2),
    Case("SimplifiedLayerNormalization", 17, [(2, 3, 8), (3, 8)], {"axis": 1, "epsilon": 0.1}),
    microsoft("SkipLayerNormalization", (2, 3, 8), (2, 3, 8), (8,), (8,), (8,)),
    microsoft("SkipLayerNormalization", (2, 3, 8), (1, 3, 8), (8,), epsilon=0.1),
    microsoft("SkipSimplifiedLayerNormalization", (2, 3, 8), (2, 3, 8), (8,)),
    microsoft("SkipSimplifiedLayerNormalization", (2, 3, 8), (3, 8), (8,), (8,), epsilon=0.1),
    microsoft("EmbedLayerNormalization", IDS, SEGMENTS, *EMBEDDINGS, below(2, 2, 3), outputs=3, epsilon=0.1),
    microsoft("EmbedLayerNormalization", IDS, None, (7, 8), (5, 8), None, (8,), (8,), None, below(5, 2, 3), outputs=2),
]

PRODUCTS = [
    microsoft("FusedMatMul", (3, 4), (4, 5), alpha=0.5),
    microsoft("FusedMatMul", (2, 4, 3), (2, 5, 4), transA=1, transB=1),
    microsoft("FusedMatMul", (4, 2, 3, 5), (4, 2, 5, 6), alpha=2.0),
    microsoft("FusedMatMul", (3, 4, 2, 5), (4, 2, 5, 6), transBatchA=1),
    microsoft("FusedMatMul", (5, 4, 2, 3), (6, 4, 2, 5), transBatchA=1, transA=1, transBatchB=1, transB=1),
    microsoft("FusedGemm", (3, 4), (5, 4), (5,), transB=1, alpha=0.5, beta=2.0, activation="Relu"),
    microsoft("FusedGemm", (3, 4), (4, 5), activation="LeakyRelu", activation_alpha=0.3),
    microsoft("FusedConv", (1, 2, 5, 5), (3, 2, 3, 3), (3,), activation="Relu", pads=[1, 1, 1, 1]),
    microsoft("FusedConv", (1, 2, 5, 5), (4, 1, 3, 3), group=2, activation="LeakyRelu", activation_params=[0.2]),
    microsoft("FusedConv", (1, 2, 5, 5), (3, 2, 3, 3), (3,), (1, 3, 3, 3), activation="Tanh"),
    microsoft("FusedConv", (1, 2, 5), (3, 2, 3), activation="Clip", activation_params=[-0.5, 1.5]),
    microsoft("FusedConv", (1, 2, 5, 5), (3, 2, 3, 3), (3,), activation="HardSigmoid", activation_params=[0.2, 0.5]),
    microsoft("Inverse", (2, 3, 3)),
    microsoft("Trilu", (3, 4)),
    microsoft("Trilu", (2, 3, 4), np.array(1), upper=0, static_inputs=(1,)),
]

FLOAT_CASES = [*ACTIVATIONS, *NORMALIZATIONS, *PRODUCTS]
