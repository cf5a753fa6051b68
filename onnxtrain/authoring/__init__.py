"""Makes training models from inference models: plain ONNX in, plain ONNX out, nothing of JAX."""

from onnxtrain.authoring.batch import free_batch
from onnxtrain.authoring.optimizers import Adam, Momentum, Sgd
from onnxtrain.authoring.prepare import make_trainable

__all__ = ["Adam", "Momentum", "Sgd", "free_batch", "make_trainable"]
