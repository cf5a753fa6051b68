"""The losses, by name and with options of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import cast

import onnx

from onnxtrain.authoring.losses.classification import (
    BinaryCrossEntropy,
    KlDivergence,
    NegativeLogLikelihood,
    SoftmaxCrossEntropy,
)
from onnxtrain.authoring.losses.ctc import Ctc
from onnxtrain.authoring.losses.custom import FunctionLoss, JaxLoss, OnnxLoss
from onnxtrain.authoring.losses.distance import Cosine, Huber, MeanAbsoluteError, MeanSquaredError, Triplet
from onnxtrain.authoring.losses.rule import SOFTMAX, Fed, Loss, Prediction, describe
from onnxtrain.authoring.losses.terms import LossLike, Term, WrittenLoss, as_terms, write_terms
from onnxtrain.errors import UnsupportedError

__all__ = [
    "LOSSES",
    "SOFTMAX",
    "BinaryCrossEntropy",
    "Cosine",
    "Ctc",
    "Fed",
    "FunctionLoss",
    "Huber",
    "JaxLoss",
    "KlDivergence",
    "Loss",
    "LossLike",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "NegativeLogLikelihood",
    "OnnxLoss",
    "Prediction",
    "SoftmaxCrossEntropy",
    "Term",
    "Triplet",
    "WrittenLoss",
    "as_terms",
    "describe",
    "find_loss",
    "write_terms",
]

LOSSES: Mapping[str, Loss] = {
    "softmax_cross_entropy": SoftmaxCrossEntropy(),
    "mean_squared_error": MeanSquaredError(),
    "negative_log_likelihood": NegativeLogLikelihood(),
    "binary_cross_entropy": BinaryCrossEntropy(),
    "mean_absolute_error": MeanAbsoluteError(),
    "huber": Huber(),
    "kl_divergence": KlDivergence(),
    "cosine": Cosine(),
    "triplet": Triplet(),
    "ctc": Ctc(),
}


def find_loss(loss: object) -> Loss:
    """The loss of this name; a model, a file or a JAX function as a loss; or the given loss with its own options.

    Raises:
      UnsupportedError: there is none of this name; the message lists those that there are.
    """
    if isinstance(loss, onnx.ModelProto | os.PathLike) or (isinstance(loss, str) and loss.endswith(".onnx")):
        return OnnxLoss(loss)
    if isinstance(loss, str):
        if loss in LOSSES:
            return LOSSES[loss]
        raise UnsupportedError(f"The loss {loss!r} is unknown. Known are {', '.join(map(repr, LOSSES))}.")
    if hasattr(loss, "write") and hasattr(loss, "replaces"):
        return cast("Loss", loss)
    if callable(loss):
        return JaxLoss(loss)
    raise UnsupportedError(f"{loss!r} is no loss: give a name, a loss object, an onnx.ModelProto or a JAX function.")
