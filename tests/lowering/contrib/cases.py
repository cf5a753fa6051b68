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

MASKS = (
    np.array([5, 3], np.int32),
    below(2, 2, 5) | np.eye(5, dtype=np.int32)[0],
    below(2, 2, 5, 5) | np.eye(5, dtype=np.int32),
)
PAST = (2, 2, 4, 3, 2)
PACKED = ((2, 5, 8), (8, 24), (24,))
QUERY, KEY, VALUE = (2, 3, 8), (2, 5, 8), (2, 5, 12)
CACHES = ((2, 4, 4, 2), (2, 4, 4, 2))

ATTENTIONS = [
    microsoft("Attention", *PACKED, num_heads=4),
    *(microsoft("Attention", *PACKED, mask, num_heads=4) for mask in MASKS),
    microsoft("Attention", *PACKED, np.array([5, 4, 1, 0], np.int32), num_heads=4),
    microsoft("Attention", *PACKED, MASKS[0], num_heads=4, unidirectional=1, mask_filter_value=-5.0, scale=0.3),
    microsoft("Attention", *PACKED, None, PAST, num_heads=4, unidirectional=1, outputs=2),
    microsoft("Attention", *PACKED, None, None, (2, 4, 5, 5), num_heads=4),
    microsoft("Attention", (2, 5, 8), (8, 28), (28,), num_heads=4, qkv_hidden_sizes=[8, 8, 12]),
    microsoft("MultiHeadAttention", QUERY, KEY, VALUE, num_heads=4),
    microsoft("MultiHeadAttention", QUERY, KEY, VALUE, (28,), MASKS[1], num_heads=4, scale=0.3),
    microsoft("MultiHeadAttention", QUERY, KEY, VALUE, None, MASKS[0], (1, 4, 3, 5), num_heads=4),
    microsoft("MultiHeadAttention", QUERY, (2, 4, 5, 2), (2, 4, 5, 2), (24,), num_heads=4),
    microsoft("MultiHeadAttention", KEY, KEY, KEY, None, None, None, *CACHES, num_heads=4, unidirectional=1, outputs=3),
]

# onnxruntime takes no heads of fewer than 16 elements here
ANGLES = ((9, 8), (9, 8))
START = ((2, 5, 64), (2, 5, 32), (2, 5, 32), None, None, np.array([4, 4], np.int32), np.array([5], np.int32))
CACHED = ((2, 2, 6, 16), (2, 2, 6, 16), np.array([6, 3], np.int32), np.array([7], np.int32))
ONE_MORE = ((2, 1, 64), (2, 1, 32), (2, 1, 32), *CACHED)
FEW = {"num_heads": 4, "kv_num_heads": 2}


def grouped(*inputs: Any, outputs: int = 3, **attributes: Any) -> Case:
    """A GroupQueryAttention, whose total length is known."""
    return microsoft("GroupQueryAttention", *inputs, outputs=outputs, static_inputs=(6,), **FEW, **attributes)


GROUPED_ATTENTIONS = [
    grouped(*START),
    grouped((2, 5, 128), None, None, *START[3:]),
    grouped(*START, *ANGLES, do_rotary=1),
    grouped(*START, *ANGLES, do_rotary=1, rotary_interleaved=1, softcap=0.5, scale=0.7),
    grouped(*START, local_window_size=2),
    grouped(*START, causal=0),
    grouped(*START, smooth_softmax=1),
    grouped(*START, None, None, None, None, (4,)),
    grouped(*START, None, None, None, (1, 1, 5, 5)),
    grouped(*ONE_MORE),
    grouped(*ONE_MORE, *ANGLES, do_rotary=1, local_window_size=3),
    microsoft("RotaryEmbedding", (2, 5, 64), np.array([2]), *ANGLES),
    microsoft("RotaryEmbedding", (2, 4, 5, 16), below(9, 2, 5, dtype=np.int64), *ANGLES, interleaved=1),
    microsoft(
        "RotaryEmbedding", (2, 5, 80), below(9, 2, 5, dtype=np.int64), *ANGLES, num_heads=4, rotary_embedding_dim=16
    ),
]


def bytes_of(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    """Any values of a type of one byte."""
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def scale(value: float, *shape: int) -> np.ndarray:
    """Scales of about this size."""
    return (value * (1 + RANDOM.random(shape))).astype(np.float32)


def quantized(*shape: int, dtype: Any = np.uint8, size: float = 0.02) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, their scale and their zero point."""
    return bytes_of(*shape, dtype=dtype), scale(size), np.array(3, dtype)


TO = (np.float32(0.04), np.uint8(100))
TO_SIGNED = (np.float32(0.04), np.int8(-10))
FINE = (np.float32(1 / 256), np.uint8(0))

QUANTIZED = [
    microsoft("QGemm", *quantized(3, 4), *quantized(5, 4, dtype=np.int8), below(99, 5), *TO, transB=1, alpha=0.5),
    microsoft("QGemm", *quantized(4, 3), bytes_of(4, 5), scale(0.02, 5), bytes_of(5), transA=1),
    microsoft("QuantizeLinear", (3, 4), np.float32(0.02), np.uint8(128)),
    microsoft("DequantizeLinear", bytes_of(3, 4), scale(0.02, 3), bytes_of(3), axis=0),
    microsoft("QLinearAdd", *quantized(2, 3, 4), *quantized(4), *TO),
    microsoft("QLinearAdd", *quantized(3, 4, dtype=np.int8), *quantized(3, 1, dtype=np.int8), *TO_SIGNED),
    microsoft("QLinearMul", *quantized(2, 3, 4), *quantized(4), *TO),
    microsoft("QLinearMul", *quantized(3, 1, dtype=np.int8), *quantized(4, dtype=np.int8), *TO_SIGNED),
    microsoft("QLinearConcat", *TO, *quantized(2, 3), *quantized(2, 4), axis=1),
    microsoft("QLinearLeakyRelu", *quantized(3, 4), *TO, alpha=0.3),
    microsoft("QLinearLeakyRelu", *quantized(3, 4, dtype=np.int8), *TO_SIGNED),
    microsoft("QLinearSigmoid", *quantized(3, 4), *FINE),
    microsoft("QLinearSoftmax", *quantized(2, 3, 4), *FINE, opset=13, axis=1),
    microsoft("QLinearSoftmax", *quantized(2, 3, 4), *FINE, opset=12, axis=1),
    microsoft("QLinearGlobalAveragePool", *quantized(1, 2, 4, 5), *TO),
    microsoft("QLinearGlobalAveragePool", *quantized(1, 4, 5, 2), *TO, channels_last=1),
    microsoft("QLinearAveragePool", *quantized(1, 2, 5, 5), *TO, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    microsoft("QLinearAveragePool", *quantized(1, 5, 5, 2), *TO, kernel_shape=[2, 2], strides=[2, 2], channels_last=1),
    microsoft("DynamicQuantizeMatMul", (3, 4), bytes_of(4, 5), scale(0.02), np.uint8(120), (5,)),
    microsoft("DynamicQuantizeMatMul", (3, 4), bytes_of(4, 5, dtype=np.int8), scale(0.02, 5)),
]

QUANTIZED_IMAGES = [
    microsoft(
        "QLinearConv",
        *(*quantized(1, 5, 5, 2), bytes_of(3, 2, 3, 3, dtype=np.int8), scale(0.02, 3), np.zeros(3, np.int8)),
        *(np.float32(0.3), np.uint8(100), below(99, 3)),
        channels_last=1,
        pads=[1, 1, 1, 1],
    ),
    microsoft(
        "QLinearConv",
        *(*quantized(1, 2, 5, 5), *quantized(4, 1, 3, 3), np.float32(0.3), np.uint8(100)),
        group=2,
        strides=[2, 2],
    ),
    microsoft("NhwcMaxPool", bytes_of(1, 5, 5, 3), kernel_shape=[2, 2], strides=[2, 2]),
    microsoft("NhwcMaxPool", bytes_of(1, 5, 5, 3, dtype=np.int8), kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    microsoft("QLinearWhere", below(2, 3, 4) > 0, *quantized(3, 4), *quantized(4), *TO),
]

QUANTIZED_TEXT = [
    microsoft(
        "QAttention",
        bytes_of(2, 5, 8),
        bytes_of(8, 24),
        (24,),
        scale(0.02),
        scale(0.02),
        None,
        *[np.uint8(9)] * 2,
        num_heads=4,
    ),
    microsoft(
        "QAttention",
        *(
            bytes_of(2, 5, 8),
            bytes_of(8, 24, dtype=np.int8),
            (24,),
            scale(0.02),
            scale(0.02, 24),
            np.array([5, 3], np.int32),
        ),
        *(np.uint8(9), np.zeros(24, np.int8), (2, 2, 4, 3, 2)),
        num_heads=4,
        unidirectional=1,
        outputs=2,
    ),
    microsoft(
        "QEmbedLayerNormalization",
        *(IDS, SEGMENTS, bytes_of(7, 8), bytes_of(5, 8), bytes_of(2, 8), bytes_of(8), bytes_of(8), below(2, 2, 3)),
        *(scale(0.02) for _ in range(5)),
        *(np.uint8(zero_point) for zero_point in (3, 5, 7, 9, 11)),
        outputs=2,
    ),
]

OLDER_NAMES = [
    microsoft("TransposeMatMul", (3, 4), (5, 4), transB=1, alpha=0.5),
    microsoft("CDist", (3, 4), (5, 4)),
    microsoft("CDist", (3, 4), (5, 4), metric="euclidean"),
    microsoft("Pad", (2, 3), np.array([0, 1, 2, 0]), np.array([0.5], np.float32), static_inputs=(1,)),
    microsoft("Pad", (2, 3), np.array([1, 2, 0, 1]), static_inputs=(1,), mode="reflect"),
    microsoft("ExpandDims", (2, 3), np.array([1], np.int32), static_inputs=(1,)),
    microsoft("GatherND", (2, 3), np.array([[1, 2], [0, 1]])),
]

LSTM = (bytes_of(1, 3, 16), bytes_of(1, 4, 16))
BOTH_WAYS = (bytes_of(2, 3, 16, dtype=np.int8), bytes_of(2, 4, 16, dtype=np.int8), (2, 32))
SMALL = (scale(0.002, 1), np.array([120], np.uint8), scale(0.002, 1), np.array([130], np.uint8))
SMALL_BY_COLUMN = (scale(0.004, 2, 16), np.zeros((2, 16), np.int8), scale(0.004, 2, 16), np.zeros((2, 16), np.int8))

QUANTIZED_LSTMS = [
    microsoft("DynamicQuantizeLSTM", (5, 2, 3), *LSTM, *[None] * 5, *SMALL, hidden_size=4, outputs=3),
    microsoft(
        "DynamicQuantizeLSTM",
        *((5, 2, 3), *BOTH_WAYS, None, (2, 2, 4), (2, 2, 4), (2, 12), *SMALL_BY_COLUMN),
        hidden_size=4,
        direction="bidirectional",
        outputs=3,
    ),
]

QUANTIZED_WEIGHTS = [
    microsoft("MatMulIntegerToFloat", bytes_of(3, 4), bytes_of(4, 5), scale(0.02), scale(0.02, 5), np.uint8(9)),
    microsoft(
        "MatMulIntegerToFloat",
        *(bytes_of(2, 3, 4), bytes_of(4, 5, dtype=np.int8), scale(0.02), scale(0.02), np.uint8(9), np.int8(2), (5,)),
    ),
    *(
        microsoft("MatMulBnb4", (3, 32), bytes_of(80), (10,), K=32, N=5, block_size=16, quant_type=kind)
        for kind in (0, 1)
    ),
    microsoft("GatherBlockQuantized", bytes_of(7, 16), below(7, 2, 3) - 3, (7, 2), None, block_size=16),
    microsoft("GatherBlockQuantized", bytes_of(7, 32), below(7, 2), (7, 2), bytes_of(7, 2), bits=8, block_size=16),
    microsoft("GatherBlockQuantized", bytes_of(7, 16), below(7, 4), (7, 2), bytes_of(7, 1), block_size=16),
    microsoft("MatMulNBits", (3, 40), bytes_of(5, 3, 8), (5, 3), None, K=40, N=5, block_size=16),
    microsoft("MatMulNBits", (3, 40), bytes_of(5, 3, 8), (5, 3), bytes_of(5, 2), K=40, N=5, bits=4, block_size=16),
    microsoft("MatMulNBits", (3, 32), bytes_of(5, 2, 4), (5, 2), bytes_of(5, 1), K=32, N=5, bits=2, block_size=16),
    microsoft("MatMulNBits", (3, 32), bytes_of(5, 2, 16), (5, 2), None, None, (5,), K=32, N=5, bits=8, block_size=16),
]

FLOATS = [*ACTIVATIONS, *NORMALIZATIONS, *PRODUCTS, *ATTENTIONS, *GROUPED_ATTENTIONS]
CASES = [
    *(*QUANTIZED, *QUANTIZED_IMAGES, *QUANTIZED_TEXT, *QUANTIZED_LSTMS, *QUANTIZED_WEIGHTS),
    *(*OLDER_NAMES, *FLOATS),
]
