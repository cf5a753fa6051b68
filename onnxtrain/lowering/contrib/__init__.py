"""Operators that ONNX does not define: the fused and quantized ones of onnxruntime, and the quantizers of QONNX.

Nodes of `com.microsoft` are what onnxruntime's and Optimum's optimizers leave in a file.
"""

from onnxtrain.lowering.contrib import (
    activation,
    attention,
    normalization,
    product,
    qonnx,
    quantized,
    quantized_product,
    recurrent,
)

__all__ = [
    "activation",
    "attention",
    "normalization",
    "product",
    "qonnx",
    "quantized",
    "quantized_product",
    "recurrent",
]
