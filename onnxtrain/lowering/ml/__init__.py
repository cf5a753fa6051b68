"""The operators of ai.onnx.ml: classical models and the preparation of their features.

Numbers are computed in JAX. Labels that are strings, and maps, exist only where the input is known while tracing.
"""

from onnxtrain.lowering.ml import features, labels, linear, support_vectors, trees

__all__ = ["features", "labels", "linear", "support_vectors", "trees"]
