"""From operators to JAX: the rules, one module a family, and the interpreter that applies them to a graph.

Importing this package registers every rule.
"""

from onnxtrain.lowering import (
    activation,
    attention,
    casting,
    constant,
    control_flow,
    convolution,
    elementwise,
    image,
    indexing,
    linear,
    loss,
    normalization,
    optimizer,
    pooling,
    quantization,
    random,
    recurrent,
    reduction,
    sequence,
    shape,
    signal,
    text,
)

__all__ = [
    "activation",
    "attention",
    "casting",
    "constant",
    "control_flow",
    "convolution",
    "elementwise",
    "image",
    "indexing",
    "linear",
    "loss",
    "normalization",
    "optimizer",
    "pooling",
    "quantization",
    "random",
    "recurrent",
    "reduction",
    "sequence",
    "shape",
    "signal",
    "text",
]
