"""The optimizers, by name and with coefficients of their own."""

from __future__ import annotations

from collections.abc import Mapping

from onnxtrain.authoring.optimizers.adam import Adam
from onnxtrain.authoring.optimizers.gradient_descent import Momentum, Sgd
from onnxtrain.authoring.optimizers.rule import Optimizer, Parameter
from onnxtrain.errors import UnsupportedError

__all__ = ["OPTIMIZERS", "Adam", "Momentum", "Optimizer", "Parameter", "Sgd", "find_optimizer"]

OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": Sgd(),
    "momentum": Momentum(),
    "nesterov": Momentum(nesterov=True),
    "adam": Adam(),
}


def find_optimizer(optimizer: str | Optimizer) -> Optimizer:
    """The optimizer of this name, or the given one with its own coefficients.

    Raises:
      UnsupportedError: there is none of this name; the message lists those that there are.
    """
    if not isinstance(optimizer, str):
        return optimizer
    if optimizer not in OPTIMIZERS:
        known = ", ".join(map(repr, OPTIMIZERS))
        raise UnsupportedError(f"The optimizer {optimizer!r} is unknown. Known are {known}.")
    return OPTIMIZERS[optimizer]
