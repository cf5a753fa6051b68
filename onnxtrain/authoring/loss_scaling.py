"""Dynamic loss scaling: the loss is multiplied, so that small gradients of float16 do not vanish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnx import TensorProto

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.optimizers import Parameter
from onnxtrain.authoring.state import State


@dataclass(frozen=True)
class LossScale:
    """How the scale of the loss adapts itself.

    An update whose gradients overflow is left out, and the scale shrinks; a long run of others makes it grow.

    Attributes:
      start: the first scale.
      factor: by how much it grows and shrinks; it never falls below 1.
      patience: how many updates without overflow make it grow.
    """

    start: float = 2.0**15
    factor: float = 2.0
    patience: int = 2000


class LossScaling:
    """Loss scaling in a graph under construction.

    Attributes:
      state: the scale, and how many updates went well since it last changed.
    """

    def __init__(self, builder: GraphBuilder, settings: LossScale):
        self._builder, self._settings = builder, settings
        self.state = State(builder)
        scale = self.state.variable("loss_scale", (), TensorProto.FLOAT, settings.start)
        self._scales: dict[int, str] = {TensorProto.FLOAT: scale}
        self._good = self.state.variable("loss_scale/good_updates", (), TensorProto.INT64)

    def scale(self, loss: str, element_type: int) -> str:
        """The loss to differentiate, times the scale."""
        return self._builder.add("Mul", (loss, self._scale(element_type)), f"{loss}/scaled")

    def unscale(self, parameters: Sequence[Parameter]) -> list[Parameter]:
        """The same parameters with the gradients of the loss itself."""
        return [
            replace(
                one,
                gradient=self._builder.add(
                    "Div", (one.gradient, self._scale(one.element_type)), f"{one.gradient}/unscaled"
                ),
            )
            for one in parameters
        ]

    def write_check(self, parameters: Sequence[Parameter]) -> str:
        """Adds the nodes that find whether all gradients are finite, a bool scalar, and those of the next scale."""
        builder, scale = self._builder, self._scales[TensorProto.FLOAT]
        finite = _all_finite(builder, parameters)
        one, zero = builder.integers("loss_scale/one", 1), builder.integers("loss_scale/zero", 0)
        counted = builder.add("Add", (self._good, one), "loss_scale/counted")
        patience = builder.integers("loss_scale/patience", self._settings.patience)
        grows = builder.add("Equal", (counted, patience), "loss_scale/grows")
        factor = builder.initializer("loss_scale/factor", self._settings.factor, TensorProto.FLOAT)
        least = builder.initializer("loss_scale/least", 1.0, TensorProto.FLOAT)
        divided = builder.add("Div", (scale, factor), "loss_scale/divided")
        shrunk = builder.add("Max", (divided, least), "loss_scale/shrunk")
        multiplied = builder.add("Mul", (scale, factor), "loss_scale/multiplied")
        grown = builder.select(grows, multiplied, scale, "loss_scale/grown")
        self.state.assign(scale, builder.select(finite, grown, shrunk, f"{scale}/updated"))
        good = builder.select(grows, zero, counted, "loss_scale/good")
        self.state.assign(self._good, builder.select(finite, good, zero, f"{self._good}/updated"))
        return finite

    def _scale(self, element_type: int) -> str:
        if element_type not in self._scales:
            single = self._scales[TensorProto.FLOAT]
            self._scales[element_type] = self._builder.cast(single, element_type, f"{single}/cast")
        return self._scales[element_type]


def _all_finite(builder: GraphBuilder, parameters: Sequence[Parameter]) -> str:
    """Whether no element of a gradient is infinite or no number: x - x is 0 then."""
    sums = []
    for parameter in parameters:
        gradient = parameter.gradient
        nothing = builder.add("Sub", (gradient, gradient), f"{gradient}/nothing")
        total = builder.add("ReduceSum", (nothing,), f"{gradient}/nothing/sum", keepdims=0)
        is_single = parameter.element_type == TensorProto.FLOAT
        sums.append(total if is_single else builder.cast(total, TensorProto.FLOAT, f"{total}/cast"))
    total = sums[0] if len(sums) == 1 else builder.add("Sum", sums, "overflow/sum")
    return builder.add("Not", (builder.add("IsNaN", (total,), "overflow/found"),), "overflow/none")
