"""The optimizers: each writes the nodes that turn a weight and its gradient into the next weight.

`Adam` and `Momentum` are ONNX's operators of ai.onnx.preview.training, with every coefficient written out. The step
counter that they read is 1 in the first step, so that Adam corrects its bias as in PyTorch and optax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from onnxtrain.authoring.builder import TRAINING_DOMAIN, GraphBuilder
from onnxtrain.errors import UnsupportedError


@dataclass(frozen=True)
class Step:
    """What one update of one weight reads, as names of values.

    Attributes:
      label: the name of the weight, from which the names of the nodes are made.
      weight: the weight.
      gradient: its gradient, of the same shape and element type.
      slots: the optimizer's state for this weight.
      learning_rate: a scalar of the same element type.
      count: how many steps were taken, this one included; an int64 scalar.
    """

    label: str
    weight: str
    gradient: str
    slots: tuple[str, ...]
    learning_rate: str
    count: str


class Optimizer(Protocol):
    """How weights follow their gradients.

    Attributes:
      slots: names for the tensors of state that each weight has, of its shape and zero at first.
      counts_steps: whether `write` reads the step counter.
    """

    @property
    def slots(self) -> tuple[str, ...]: ...

    @property
    def counts_steps(self) -> bool: ...

    def write(self, builder: GraphBuilder, step: Step) -> tuple[str, ...]:
        """Adds the nodes; returns the names of the next weight and of the next value of each slot."""
        ...


@dataclass(frozen=True)
class Sgd:
    """Gradient descent: the weight minus the learning rate times the gradient."""

    slots = ()
    counts_steps = False

    def write(self, builder: GraphBuilder, step: Step) -> tuple[str, ...]:
        change = builder.add("Mul", (step.gradient, step.learning_rate), f"{step.label}/change")
        return (builder.add("Sub", (step.weight, change), f"{step.label}/updated", name=f"sgd/{step.label}"),)


@dataclass(frozen=True)
class Momentum:
    """Gradient descent with momentum: ONNX's `Momentum`, which is PyTorch's SGD without dampening.

    Attributes:
      decay: how much of the momentum stays from step to step.
      nesterov: whether to look ahead by one step.
    """

    decay: float = 0.9
    nesterov: bool = False

    slots = ("momentum",)
    counts_steps = True

    def write(self, builder: GraphBuilder, step: Step) -> tuple[str, ...]:
        mode = "nesterov" if self.nesterov else "standard"
        attributes = {"alpha": self.decay, "beta": 1.0, "norm_coefficient": 0.0, "mode": mode}
        return _write_operator(builder, "Momentum", "nesterov" if self.nesterov else "momentum", step, attributes)


@dataclass(frozen=True)
class Adam:
    """ONNX's `Adam`.

    Attributes:
      beta1: decay of the mean of the gradients.
      beta2: decay of the mean of their squares.
      epsilon: added to the root of the latter, before the correction of bias, unlike in PyTorch.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    slots = ("first_moment", "second_moment")
    counts_steps = True

    def write(self, builder: GraphBuilder, step: Step) -> tuple[str, ...]:
        attributes = {"alpha": self.beta1, "beta": self.beta2, "epsilon": self.epsilon}
        no_decay = {"norm_coefficient": 0.0, "norm_coefficient_post": 0.0}
        return _write_operator(builder, "Adam", "adam", step, {**attributes, **no_decay})


def _write_operator(
    builder: GraphBuilder, op_type: str, prefix: str, step: Step, attributes: Mapping[str, Any]
) -> tuple[str, ...]:
    inputs = (step.learning_rate, step.count, step.weight, step.gradient, *step.slots)
    outputs = (f"{step.label}/updated", *(f"{slot}/updated" for slot in step.slots))
    name = f"{prefix}/{step.label}"
    return builder.add_node(op_type, inputs, outputs, name=name, domain=TRAINING_DOMAIN, **attributes)


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
