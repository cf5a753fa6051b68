"""The optimizers, by name and with coefficients of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar, cast

from onnxtrain.authoring.optimizers.adam import Adam, AdamW, Lamb, NAdam, RAdam
from onnxtrain.authoring.optimizers.adaptive import Adafactor, Adagrad, Lion, RmsProp
from onnxtrain.authoring.optimizers.gradient_descent import Momentum, Sgd
from onnxtrain.authoring.optimizers.rule import Optimizer, Parameter
from onnxtrain.authoring.optimizers.transformation import OptaxTransformation, is_transformation
from onnxtrain.errors import UnsupportedError

if TYPE_CHECKING:
    from optax import GradientTransformation

__all__ = [
    "OPTIMIZERS",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Lamb",
    "Lion",
    "Momentum",
    "NAdam",
    "OptaxTransformation",
    "Optimizer",
    "Parameter",
    "RAdam",
    "RmsProp",
    "Sgd",
    "choose_rate",
    "find_optimizer",
]

Rate = TypeVar("Rate")

DEFAULT_RATE = 1e-3
OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": Sgd(),
    "momentum": Momentum(),
    "nesterov": Momentum(nesterov=True),
    "adagrad": Adagrad(),
    "rmsprop": RmsProp(),
    "adam": Adam(),
    "adamw": AdamW(),
    "nadam": NAdam(),
    "radam": RAdam(),
    "lamb": Lamb(),
    "lion": Lion(),
    "adafactor": Adafactor(),
}


def find_optimizer(optimizer: str | Optimizer | GradientTransformation) -> Optimizer:
    """The optimizer of this name, or the given one with its own coefficients, or one of optax.

    Raises:
      UnsupportedError: there is none of this name; the message lists those that there are.
    """
    if is_transformation(optimizer):
        return OptaxTransformation(optimizer)
    if not isinstance(optimizer, str):
        return cast("Optimizer", optimizer)
    if optimizer not in OPTIMIZERS:
        known = ", ".join(map(repr, OPTIMIZERS))
        raise UnsupportedError(f"The optimizer {optimizer!r} is unknown. Known are {known}.")
    return OPTIMIZERS[optimizer]


def choose_rate(optimizer: Optimizer, rate: Rate | None) -> Rate | float | None:
    """The learning rate that was asked for, or the default; None for an optimizer that has its own.

    Raises:
      UnsupportedError: there are two.
    """
    if not isinstance(optimizer, OptaxTransformation):
        return DEFAULT_RATE if rate is None else rate
    if rate is not None:
        raise UnsupportedError(
            f"learning_rate={rate!r} is given beside an optax transformation, which has its own learning rate. "
            "Leave learning_rate out, and give the rate or an optax schedule to the transformation."
        )
    return None
