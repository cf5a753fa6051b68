"""The optimizers that are operators of ai.onnx.preview.training, with every coefficient written out.

The step counter that they read is 1 in the first step, so that Adam corrects its bias as in PyTorch and optax.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnxtrain.authoring.builder import TRAINING_DOMAIN, GraphBuilder
from onnxtrain.authoring.optimizers.rule import Parameter
from onnxtrain.authoring.state import State


def write_operator(
    builder: GraphBuilder,
    op_type: str,
    prefix: str,
    parameter: Parameter,
    state: State,
    slots: Sequence[str],
    attributes: Mapping[str, Any],
    initial: float = 0.0,
) -> str:
    """Adds the node of one weight; `slots` name the tensors of state of its shape that the operator keeps.

    They start with `initial`.
    """
    name = parameter.name
    kept = [state.variable(f"{name}/{slot}", parameter.dims, parameter.element_type, initial) for slot in slots]
    inputs = (parameter.learning_rate, state.count, parameter.value, parameter.gradient, *kept)
    outputs = (f"{name}/updated", *(f"{slot}/updated" for slot in kept))
    updated, *slot_values = builder.add_node(
        op_type, inputs, outputs, name=f"{prefix}/{name}", domain=TRAINING_DOMAIN, **attributes
    )
    for slot, value in zip(kept, slot_values, strict=True):
        state.assign(slot, value)
    return updated
