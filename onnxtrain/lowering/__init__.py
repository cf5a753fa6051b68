"""From operators to JAX: the rules, one module a family, and the interpreter that applies them to a graph.

Importing this package registers every rule.
"""

from onnxtrain.lowering import (
    convolution,
    elementwise,
    image,
    linear,
    loss,
    normalization,
    optimizer,
    pooling,
    random,
)

__all__ = ["convolution", "elementwise", "image", "linear", "loss", "normalization", "optimizer", "pooling", "random"]
