"""From a node and the values of its inputs to the arguments of its rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxtrain import dtypes
from onnxtrain.errors import OperatorError, UnsupportedError
from onnxtrain.lowering import static
from onnxtrain.lowering.registry import NO_DEFAULT, Kind, Rule, RuleParameter
from onnxtrain.lowering.static import StaticInputError
from onnxtrain.schema import Schema

_STATIC_KINDS = frozenset({Kind.INTS, Kind.FLOATS, Kind.INT, Kind.FLOAT, Kind.BOOL, Kind.STATIC})


@dataclass(frozen=True)
class Injected:
    """What the interpreter adds to a call beside inputs and attributes."""

    key: Any
    output_count: int
    stand_ins: tuple[Any, ...]
    straight_through: bool


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call of a rule."""

    positional: tuple[Any, ...]
    keyword: Mapping[str, Any]

    @property
    def static(self) -> bool:
        """Whether every input is known while tracing."""
        return all(static.is_static(value) for value in self.positional)


def bind(
    rule: Rule, schema: Schema, inputs: Sequence[Any], attributes: Mapping[str, Any], injected: Injected
) -> Arguments:
    """Matches a node's inputs and attributes with the parameters of its rule.

    `inputs` has None for an absent optional input. Raises `StaticInputError` for a traced value where the rule needs
    a static one, and `OperatorError` for an input or attribute that is required and absent.
    """
    positional: list[Any] = []
    keyword: dict[str, Any] = {}
    for position, parameter in enumerate(rule.parameters):
        if parameter.variadic:
            positional.extend(_input(parameter, position + i, value) for i, value in enumerate(inputs[position:]))
        elif parameter.positional and (position < len(schema.inputs) or parameter.name not in schema.attributes):
            positional.append(_positional(parameter, position, inputs))
        elif parameter.positional:
            positional.append(_attribute(parameter, schema, attributes))
        else:
            keyword[parameter.name] = _keyword(parameter, schema, attributes, injected)
    _check_arity(rule, inputs)
    _refuse_unknown_attributes(rule, schema, attributes)
    _refuse_traced_beside_text(rule, inputs)
    return Arguments(tuple(positional), keyword)


def _refuse_traced_beside_text(rule: Rule, inputs: Sequence[Any]) -> None:
    """Text never reaches the device, so all that a node combines with text has to be known while tracing."""
    if not any(isinstance(value, np.ndarray) and value.dtype == dtypes.STRING for value in inputs):
        return
    for position, value in enumerate(inputs):
        if not static.is_static(value):
            raise StaticInputError(rule.parameters[min(position, len(rule.parameters) - 1)].name, position)


def _check_arity(rule: Rule, inputs: Sequence[Any]) -> None:
    if any(parameter.variadic for parameter in rule.parameters):
        return
    taken = sum(parameter.positional for parameter in rule.parameters)
    if any(value is not None for value in inputs[taken:]):
        raise OperatorError(f"It takes {taken} inputs and was given {len(inputs)}.")


def _refuse_unknown_attributes(rule: Rule, schema: Schema, attributes: Mapping[str, Any]) -> None:
    """Operators that ONNX does not define gain attributes without a new version, and those may change the result."""
    unknown = sorted(attributes.keys() - schema.attributes.keys() - rule.ignores) if rule.states_schema else ()
    if unknown:
        raise UnsupportedError(f"What the attribute {unknown[0]!r} of this operator means is not known.")


def _positional(parameter: RuleParameter, position: int, inputs: Sequence[Any]) -> Any:
    value = inputs[position] if position < len(inputs) else None
    if value is None and parameter.kind is not Kind.VALUE:
        if parameter.default is NO_DEFAULT:
            raise OperatorError(f"Input {position} ('{parameter.name}') is required and absent.")
        return parameter.default
    return _input(parameter, position, value)


def _input(parameter: RuleParameter, position: int, value: Any) -> Any:
    if parameter.kind in _STATIC_KINDS:
        if not static.is_static(value):
            raise StaticInputError(parameter.name, position, shape_like=parameter.kind is not Kind.STATIC)
        return _python(parameter.kind, np.asarray(value))
    return value


def _python(kind: Kind, value: np.ndarray) -> Any:
    if kind is Kind.STATIC:
        return value
    if kind in (Kind.INTS, Kind.FLOATS):
        number = int if kind is Kind.INTS else float
        return tuple(number(item) for item in value.reshape(-1).tolist())
    if value.size != 1:
        raise OperatorError(f"One number was expected, and an array of shape {list(value.shape)} was given.")
    return {Kind.INT: int, Kind.FLOAT: float, Kind.BOOL: bool}[kind](value.reshape(())[()])


def _keyword(parameter: RuleParameter, schema: Schema, attributes: Mapping[str, Any], injected: Injected) -> Any:
    match parameter.kind:
        case Kind.KEY:
            return injected.key
        case Kind.OUTPUT_COUNT:
            return injected.output_count
        case Kind.STAND_INS:
            return injected.stand_ins
        case Kind.STRAIGHT_THROUGH_WANTED:
            return injected.straight_through
    return _attribute(parameter, schema, attributes)


def _attribute(parameter: RuleParameter, schema: Schema, attributes: Mapping[str, Any]) -> Any:
    declared = schema.attributes.get(parameter.name)
    value = attributes.get(parameter.name)
    if value is None and declared is not None:
        value = declared.default
    if value is None:
        if parameter.default is NO_DEFAULT:
            raise OperatorError(f"Attribute '{parameter.name}' is required and absent.")
        return parameter.default
    if parameter.kind is Kind.DTYPE:
        return dtypes.from_code(value).dtype if value else parameter.default
    if parameter.boolean:
        return bool(value)
    return _python(parameter.kind, np.asarray(value)) if parameter.kind in _STATIC_KINDS else value
