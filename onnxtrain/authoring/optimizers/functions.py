"""Optimizers that are no operators of ONNX: each is a local function of standard operators, called once per weight.

The coefficients are attributes of the call: tensors of float64, because 1 - 0.999 is 1.3e-5 off in float32, which all
other numbers among the attributes of ONNX are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import cleandoc
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.expressions import Expression
from onnxtrain.authoring.names import Names
from onnxtrain.authoring.optimizers.rule import Parameter
from onnxtrain.authoring.state import State
from onnxtrain.errors import UnsupportedError

DOMAIN = "onnxtrain.optimizers"
_COUNT, _RATE = "count", "learning_rate"

Formula = Callable[..., Sequence[Expression]]


def write_call(
    builder: GraphBuilder,
    name: str,
    formula: Formula,
    parameter: Parameter,
    state: State,
    slots: Mapping[str, Sequence[int]],
    coefficients: Mapping[str, float],
    **axes: Sequence[int],
) -> str:
    """Adds the call of one weight.

    Args:
      builder: takes the node and the function.
      name: that of the function.
      formula: gives the next weight and the next slots, from expressions by keyword: `weight`, `gradient`,
        `learning_rate`, `count` (the number of this update) where it asks for it, the slots and the coefficients. Its
        docstring becomes that of the function.
      parameter: the weight.
      state: takes the slots as state variables.
      slots: the shapes of the tensors that the optimizer keeps for a weight.
      coefficients: the attributes of the call.
      axes: more attributes, lists of axes.

    Returns:
      The name of the next weight.
    """
    element_type = parameter.element_type
    kept = [state.variable(f"{parameter.name}/{slot}", dims, element_type) for slot, dims in slots.items()]
    given = {_RATE: parameter.learning_rate, "weight": parameter.value, "gradient": parameter.gradient}
    given |= dict(zip(slots, kept, strict=True))
    if _COUNT in formula.__annotations__:
        given[_COUNT] = state.count
    function = _function(builder.opset, name, formula, element_type, [*given], [*slots], [*coefficients], [*axes])
    attributes: dict[str, Any] = {
        key: numpy_helper.from_array(np.asarray(value, np.float64)) for key, value in coefficients.items()
    }
    attributes |= {key: list(value) for key, value in axes.items()}
    outputs = (f"{parameter.name}/updated", *(f"{slot}/updated" for slot in kept))
    label = f"{name.lower()}/{parameter.name}"
    updated, *slot_values = builder.call(function, [*given.values()], outputs, name=label, **attributes)
    for slot, value in zip(kept, slot_values, strict=True):
        state.assign(slot, value)
    return updated


def _function(
    opset: int,
    name: str,
    formula: Formula,
    element_type: int,
    inputs: Sequence[str],
    slots: Sequence[str],
    coefficients: Sequence[str],
    axes: Sequence[str],
) -> onnx.FunctionProto:
    """The function of a formula for weights of one element type; that of others than float32 is in its name."""
    body = GraphBuilder(Names(onnx.ModelProto()), opset)
    values = {given: body.names.fresh(given) for given in inputs}
    if _COUNT in values:
        values[_COUNT] = body.cast(values[_COUNT], element_type, f"{_COUNT}/cast")
    known = {key: Expression(body, value, element_type, name.lower()) for key, value in values.items()}
    for key in coefficients:
        known[key] = Expression(body, _from_attribute(body, key), TensorProto.DOUBLE, name.lower())
    results = formula(**known, **({"axes": axes} if axes else {}))
    outputs = [
        body.add("Identity", (result.value,), f"{key}/updated")
        for key, result in zip(("weight", *slots), results, strict=True)
    ]
    nodes = [*(helper.make_node("Constant", [], [one.name], value=one) for one in body.initializers), *body.nodes]
    _check(name, nodes, opset)
    if element_type != TensorProto.FLOAT:
        name = f"{name}_{TensorProto.DataType.Name(element_type).lower()}"
    return helper.make_function(
        DOMAIN,
        name,
        inputs,
        outputs,
        nodes,
        [helper.make_opsetid("", opset)],
        [*coefficients, *axes],
        doc_string=cleandoc(formula.__doc__ or ""),
    )


def _from_attribute(body: GraphBuilder, name: str) -> str:
    """The value of an attribute of the call."""
    value = body.add("Constant", (), name)
    reference = AttributeProto(name="value", ref_attr_name=name, type=AttributeProto.TENSOR)
    body.nodes[-1].attribute.append(reference)
    return value


def _check(name: str, nodes: Sequence[onnx.NodeProto], opset: int) -> None:
    missing = {node.op_type for node in nodes if not onnx.defs.has(node.op_type, max_inclusive_version=opset)}
    if missing:
        raise UnsupportedError(
            f"The optimizer {name} needs {', '.join(sorted(missing))}, which opset {opset} does not have. "
            "Convert the model to a newer opset (onnx.version_converter)."
        )


def mean_over(value: Expression, attribute: str) -> Expression:
    """The mean over the axes that an attribute of the call lists; they keep their place with a size of 1."""
    body, label = value.builder, f"{value.label}/{attribute}"
    if body.opset < 18:
        found = body.add("ReduceMean", (value.value,), label, keepdims=1)
        reference = AttributeProto(name="axes", ref_attr_name=attribute, type=AttributeProto.INTS)
        body.nodes[-1].attribute.append(reference)
    else:
        axes = body.add("Constant", (), attribute)
        reference = AttributeProto(name="value_ints", ref_attr_name=attribute, type=AttributeProto.INTS)
        body.nodes[-1].attribute.append(reference)
        found = body.add("ReduceMean", (value.value, axes), label, keepdims=1)
    return Expression(body, found, value.element_type, value.label)
