"""Which inputs of which operators are weights, and what kind of weight each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import onnx

from onnxtrain.authoring.protos import is_standard


class Role(Enum):
    """What a weight does, which decides how it is initialized."""

    KERNEL = "kernel"  # a linear map: MatMul, Conv, the gates of an LSTM
    EMBEDDING = "embedding"  # rows that are looked up or joined to the data
    BIAS = "bias"  # added
    SCALE = "scale"  # multiplied element by element
    SLOPE = "slope"  # of PRelu
    OTHER = "other"  # no weight by its place; trained only when it is named


K, E, B, S = Role.KERNEL, Role.EMBEDDING, Role.BIAS, Role.SCALE

# Operator: input index: role. A place that does not stand here holds no weight: shapes, scales of Resize, bounds of
# Clip, paddings, exponents, divisors, running statistics, initial states, thresholds, quantization parameters.
WEIGHT_INPUTS: Mapping[tuple[str, str], Mapping[int, Role]] = {
    ("", "MatMul"): {0: K, 1: K},
    ("", "Gemm"): {0: K, 1: K, 2: B},
    ("", "Einsum"): {0: K, 1: K, 2: K},
    ("", "Conv"): {1: K, 2: B},
    ("", "ConvTranspose"): {1: K, 2: B},
    ("", "DeformConv"): {1: K, 3: B},
    ("", "CausalConvWithState"): {1: K, 2: B},
    ("", "RNN"): {1: K, 2: K, 3: B},
    ("", "GRU"): {1: K, 2: K, 3: B},
    ("", "LSTM"): {1: K, 2: K, 3: B, 7: B},
    ("", "BatchNormalization"): {1: S, 2: B},
    ("", "InstanceNormalization"): {1: S, 2: B},
    ("", "LayerNormalization"): {1: S, 2: B},
    ("", "GroupNormalization"): {1: S, 2: B},
    ("", "RMSNormalization"): {1: S},
    ("", "SimplifiedLayerNormalization"): {1: S},
    ("", "PRelu"): {1: Role.SLOPE},
    ("", "Gather"): {0: E},
    ("", "GatherND"): {0: E},
    ("", "GatherElements"): {0: E},
    ("com.microsoft", "FusedMatMul"): {0: K, 1: K},
    ("com.microsoft", "FusedGemm"): {0: K, 1: K, 2: B},
    ("com.microsoft", "FusedConv"): {1: K, 2: B},
    ("com.microsoft", "Attention"): {1: K, 2: B},
    ("com.microsoft", "DynamicQuantizeLSTM"): {3: B, 7: B},
    ("com.microsoft", "BiasGelu"): {1: B},
    ("com.microsoft", "FastGelu"): {1: B},
    ("com.microsoft", "SkipLayerNormalization"): {2: S, 3: B, 4: B},
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): {2: S, 3: B},
    ("com.microsoft", "EmbedLayerNormalization"): {2: E, 3: E, 4: E, 5: S, 6: B},
}

# A constant in plain arithmetic is a weight only under the conditions of `weights.py`.
ARITHMETIC: Mapping[str, Role] = {"Add": B, "Sub": B, "Sum": B, "Mul": S}


def _operators(names: str) -> frozenset[str]:
    return frozenset(names.split())


# A stored tensor that goes through one of these is still that tensor, in another form.
CARRIES_FIRST_INPUT = _operators(
    "Identity Transpose Reshape Squeeze Unsqueeze Flatten Cast CastLike Expand Tile Slice Split "
    "QuantizeLinear DequantizeLinear"
)
# So is one that meets nothing but other stored tensors here.
CARRIES_CONSTANTS = _operators("Concat Gather Add Sub Mul Div Pad")

# Nothing can be learned through these. Gradients pass straight through quantized values, so that none of those is here.
NOT_DIFFERENTIABLE = _operators(
    "Shape Size NonZero ArgMax ArgMin Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not IsNaN IsInf "
    "BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift OneHot ConstantOfShape EyeLike Range NonMaxSuppression "
    "RandomNormalLike RandomUniformLike Bernoulli Multinomial TfIdfVectorizer StringNormalizer StringConcat "
    "Unique BitCast"
)


def weight_role(node: onnx.NodeProto, index: int) -> Role | None:
    """The role of a stored tensor at an input of a node that is not arithmetic; None where it is no weight."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return WEIGHT_INPUTS.get((domain, node.op_type), {}).get(index)


def is_statistic(node: onnx.NodeProto, index: int) -> bool:
    """Whether an input is a running mean or variance of BatchNormalization."""
    return is_standard(node, "BatchNormalization") and index in (3, 4)


def may_be_updated(node: onnx.NodeProto, index: int) -> bool:
    """Whether training may change a tensor at an input of a node: it can be a weight, by itself or through the nodes
    after it, or it is a running statistic.
    """
    if weight_role(node, index) is not None or is_statistic(node, index):
        return True
    carries = is_standard(node, *CARRIES_FIRST_INPUT) and index == 0
    return carries or is_standard(node, *CARRIES_CONSTANTS, *ARITHMETIC)
