"""Operators of onnxruntime and newer ones of ONNX that PyTorch has as a chain of two or three functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.parity.operators.records import TorchCase, real, whole

FAR = real(-100, -3, -1, 0, 0.5, 100)
EPSILON = 1e-5


def microsoft(op_type: str, twin: Any, *inputs: Any, outputs: int = 1, **attributes: Any) -> TorchCase:
    """A node of `com.microsoft`."""
    return TorchCase(op_type, twin, inputs, attributes, outputs, 1, "com.microsoft")


def gelu_of_tanh(x: Any, bias: Any = 0) -> Any:
    return F.gelu(x + bias, approximate="tanh")


def layer_norm_of_sum(x: Any, skip: Any, scale: Any, beta: Any = None, bias: Any = 0) -> Any:
    return F.layer_norm(x + skip + bias, scale.shape, scale, beta, EPSILON)


def embedding(ids: Any, segments: Any, words: Any, places: Any, kinds: Any, scale: Any, beta: Any) -> Any:
    total = F.embedding(ids.long(), words) + places[: ids.shape[1]] + F.embedding(segments.long(), kinds)
    return F.layer_norm(total, scale.shape, scale, beta, EPSILON)


def grouped_attention(q: Any, k: Any, v: Any, *_: Any) -> Any:
    heads = [x.reshape(*x.shape[:2], count, 4).transpose(1, 2) for x, count in ((q, 4), (k, 2), (v, 2))]
    y = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
    return y.transpose(1, 2).flatten(2)


def causal_convolution(x: Any, weight: Any, bias: Any, past: Any) -> tuple[Any, Any]:
    extended = torch.cat([past, x], 2)
    return F.conv1d(extended, weight, bias, groups=x.shape[1]), extended[..., -past.shape[2] :]


OF_ONNX = [
    TorchCase("SwiGLU", lambda a, b: F.silu(a) * b, [FAR, real(1, 2, -3, 4, 0, 5)]),
    TorchCase(
        "Scatter",
        lambda x, _, u: x.scatter(1, torch.tensor([[1, 0, 2], [2, 0, 1]]), u),
        [(2, 3), whole([1, 0, 2], [2, 0, 1]), (2, 3)],
        {"axis": 1},
        opset=9,
    ),
    TorchCase("CausalConvWithState", causal_convolution, [(2, 3, 5), (3, 1, 4), (3,), (2, 3, 3)], outputs=2),
    TorchCase("ConcatFromSequence", lambda x: torch.cat(x, 1), [[np.ones((2, 3)), np.zeros((2, 1))]], {"axis": 1}),
    TorchCase(
        "ConcatFromSequence",
        lambda x: torch.stack(x, 1),
        [[np.ones((2, 3)), np.zeros((2, 3))]],
        {"axis": 1, "new_axis": 1},
    ),
    TorchCase("SplitToSequence", lambda x, _: x.split([2, 3]), [(5, 3), whole(2, 3)]),
    TorchCase(
        "FlexAttention",
        F.scaled_dot_product_attention,
        [(2, 4, 3, 6), (2, 4, 5, 6), (2, 4, 5, 7)],
        opset=1,
        domain="ai.onnx.preview",
    ),
]

OF_ONNXRUNTIME = [
    microsoft("Gelu", F.gelu, FAR),
    microsoft("BiasGelu", lambda a, b: F.gelu(a + b), (3, 4), (4,)),
    microsoft("FastGelu", gelu_of_tanh, FAR),
    microsoft("FastGelu", gelu_of_tanh, (3, 4), (4,)),
    microsoft("QuickGelu", lambda x: x * torch.sigmoid(1.5 * x), FAR, alpha=1.5),
    microsoft("FusedMatMul", lambda a, b: 0.5 * a.mT @ b, (2, 4, 3), (2, 4, 5), transA=1, alpha=0.5),
    microsoft("TransposeMatMul", lambda a, b: a @ b.mT, (2, 3, 4), (2, 5, 4), transB=1),
    microsoft("CDist", torch.cdist, real([0, 1], [2, 3]), real([0, 1], [5, 5], [1, 0]), metric="euclidean"),
    microsoft("Pad", lambda x, *_: F.pad(x, (1, 0, 0, 2)), (2, 3), whole(0, 1, 2, 0)),
    microsoft("ExpandDims", lambda x, _: x.unsqueeze(1), (2, 3), whole(1).astype("int32")),
    microsoft("GatherND", lambda x, _: x[[1, 0], [2, 1]], (2, 3), whole([1, 2], [0, 1])),
    microsoft("FusedGemm", lambda a, b, c: F.relu(a @ b + c), (3, 4), (4, 5), (5,), activation="Relu"),
    microsoft(
        "FusedConv", lambda x, w, b: F.conv2d(x, w, b).relu(), (1, 2, 5, 5), (3, 2, 3, 3), (3,), activation="Relu"
    ),
    microsoft("SkipLayerNormalization", layer_norm_of_sum, (2, 3, 8), (2, 3, 8), (8,), (8,), (8,), epsilon=EPSILON),
    microsoft(
        "SkipSimplifiedLayerNormalization",
        lambda x, skip, scale: F.rms_norm(x + skip, (8,), scale, EPSILON),
        *((2, 3, 8), (2, 3, 8), (8,)),
        epsilon=EPSILON,
    ),
    microsoft(
        "EmbedLayerNormalization",
        embedding,
        *(whole([3, 0, 3], [1, 1, 6]).astype("int32"), whole([0, 1, 1], [0, 0, 1]).astype("int32")),
        *((7, 8), (5, 8), (2, 8), (8,), (8,)),
        epsilon=EPSILON,
    ),
    microsoft(
        "GroupQueryAttention",
        grouped_attention,
        *((2, 5, 16), (2, 5, 8), (2, 5, 8), None, None),
        *(whole(4, 4).astype("int32"), whole(5).astype("int32")),
        num_heads=4,
        kv_num_heads=2,
    ),
    microsoft("Trilu", lambda x, _: x.tril(1), (2, 3, 4), np.array(1), upper=0),
]

CASES = [*OF_ONNX, *OF_ONNXRUNTIME]
