"""Makes training models from inference models: plain ONNX in, plain ONNX out, nothing of JAX."""

from onnxtrain.authoring.adapter_files import load_adapters, merge_adapters, save_adapters
from onnxtrain.authoring.adapters import LoRA
from onnxtrain.authoring.batch import free_batch
from onnxtrain.authoring.classifier import add_classifier
from onnxtrain.authoring.clipping import ClipByGlobalNorm, ClipByNorm, ClipByValue
from onnxtrain.authoring.groups import Group
from onnxtrain.authoring.head import replace_head
from onnxtrain.authoring.learning_rate import FedRate
from onnxtrain.authoring.loss_scaling import LossScale
from onnxtrain.authoring.optimizers import (
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Lamb,
    Lion,
    Momentum,
    NAdam,
    RAdam,
    RmsProp,
    Sgd,
)
from onnxtrain.authoring.prepare import make_trainable
from onnxtrain.authoring.quantization import fake_quantize
from onnxtrain.authoring.surgery import add_outputs, cut

__all__ = [
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "ClipByGlobalNorm",
    "ClipByNorm",
    "ClipByValue",
    "FedRate",
    "Group",
    "Lamb",
    "Lion",
    "LoRA",
    "LossScale",
    "Momentum",
    "NAdam",
    "RAdam",
    "RmsProp",
    "Sgd",
    "add_classifier",
    "add_outputs",
    "cut",
    "fake_quantize",
    "free_batch",
    "load_adapters",
    "make_trainable",
    "merge_adapters",
    "replace_head",
    "save_adapters",
]
