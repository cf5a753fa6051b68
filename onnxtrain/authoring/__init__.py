"""Makes training models from inference models: plain ONNX in, plain ONNX out, nothing of JAX."""

from onnxtrain.authoring.batch import free_batch
from onnxtrain.authoring.head import replace_head
from onnxtrain.authoring.optimizers import Adam, Momentum, Sgd
from onnxtrain.authoring.prepare import make_trainable
from onnxtrain.authoring.surgery import add_outputs, cut

__all__ = ["Adam", "Momentum", "Sgd", "add_outputs", "cut", "free_batch", "make_trainable", "replace_head"]
