"""The only reader of `onnx.defs`: which operators exist, in which versions, with which inputs and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
from onnx import defs, helper, numpy_helper

# The newest opset of each domain whose operators the audit test has compared with the rules.
NEWEST_TESTED: Mapping[str, int] = {"": 28, "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1}

# Operators that onnxruntime's optimizer puts into ai.onnx, where ONNX has none of that name.
FOREIGN = frozenset({("", "SimplifiedLayerNormalization")})

# Operators that it writes under opsets older than their first version, which is the one it means.
_ANTEDATED: Mapping[tuple[str, str], int] = {("", "LayerNormalization"): 17}

# Attribute defaults that differ from those of `onnx.defs`. Adam's operator document states 0.0, and that holds here
# (O-01); the definitions say 1e-6, which the generator of the documents rounds.
_STATED_DEFAULTS: Mapping[tuple[str, str, str], Any] = {("ai.onnx.preview.training", "Adam", "epsilon"): 0.0}


@dataclass(frozen=True)
class Attribute:
    """An attribute of an operator version; `default` is None when the schema gives none."""

    name: str
    type: str
    required: bool
    default: Any


@dataclass(frozen=True)
class Parameter:
    """A formal input or output; a heterogeneous or homogeneous variadic one stands last.

    Those of one type in all nodes have the same `type`, such as "T"; it is empty where no schema says it.
    """

    name: str
    optional: bool
    variadic: bool
    type: str = ""


@dataclass(frozen=True)
class Schema:
    """What ONNX says of one operator at one version."""

    domain: str
    name: str
    since_version: int
    deprecated: bool
    attributes: Mapping[str, Attribute]
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    min_inputs: int
    max_inputs: int
    deterministic: bool
    has_body: bool


def normalize_domain(domain: str) -> str:
    """`ai.onnx` and the empty domain are one (M-01); the empty one is used inside."""
    return "" if domain == "ai.onnx" else domain


@cache
def find(domain: str, op_type: str, opset: int) -> Schema | None:
    """The schema that an operator means under an imported opset: its highest version not above it (M-01)."""
    try:
        found = defs.get_schema(op_type, max(opset, _ANTEDATED.get((domain, op_type), 0)), domain)
    except defs.SchemaError:
        return None
    return _convert(found)


@cache
def versions(domain: str, op_type: str) -> tuple[int, ...]:
    """Every version of an operator, oldest first; empty for an unknown one."""
    return tuple(
        sorted(schema.since_version for schema in _history() if (schema.domain, schema.name) == (domain, op_type))
    )


@cache
def operators() -> tuple[tuple[str, str], ...]:
    """(domain, operator) of everything that ONNX defines, sorted."""
    return tuple(sorted({(schema.domain, schema.name) for schema in _history()}))


@cache
def _history() -> tuple[Any, ...]:
    return tuple(defs.get_all_schemas_with_history())


def _convert(schema: Any) -> Schema:
    return Schema(
        domain=schema.domain,
        name=schema.name,
        since_version=schema.since_version,
        deprecated=schema.deprecated,
        attributes={name: _attribute(schema, attribute) for name, attribute in schema.attributes.items()},
        inputs=tuple(_parameter(formal) for formal in schema.inputs),
        outputs=tuple(_parameter(formal) for formal in schema.outputs),
        min_inputs=schema.min_input,
        max_inputs=schema.max_input,
        deterministic=schema.node_determinism != defs.OpSchema.NodeDeterminism.NonDeterministic,
        has_body=schema.has_function or schema.has_context_dependent_function,
    )


def _attribute(schema: Any, attribute: Any) -> Attribute:
    proto = attribute.default_value
    default = _STATED_DEFAULTS.get((schema.domain, schema.name, attribute.name))
    if default is None and proto.type != onnx.AttributeProto.UNDEFINED:
        default = _plain(helper.get_attribute_value(proto))
    return Attribute(attribute.name, attribute.type.name, attribute.required, default)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float):
        return float(value)
    if isinstance(value, onnx.TensorProto):
        # TreeEnsemble's optional tensors carry an undefined one as their default
        return numpy_helper.to_array(value) if value.data_type else None
    if isinstance(value, int | str):
        return value
    return tuple(_plain(item) for item in value)


def _parameter(formal: Any) -> Parameter:
    option = defs.OpSchema.FormalParameterOption
    return Parameter(formal.name, formal.option == option.Optional, formal.option == option.Variadic, formal.type_str)
