"""Every rule against every schema version that it claims, and every schema version against the rules.

A rule holds from its `since` to the next rule of the operator, so a schema that gained an input or an attribute in
between must fit it too. What no rule runs stands in `missing_rules.toml`, with its reason.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import onnxtrain.lowering  # noqa: F401  (importing it registers the rules)
from onnxtrain import schema as schemas
from onnxtrain.lowering import registry
from onnxtrain.lowering.registry import INJECTED, NO_DEFAULT, Kind, Rule, RuleParameter
from onnxtrain.schema import Schema

MISSING = tomllib.loads(Path(__file__).with_name("missing_rules.toml").read_text())

# The types of attribute that each kind of parameter can take, beside the plain ones, which take any.
_ATTRIBUTE_TYPES = {
    Kind.INTS: {"INTS", "INT"},
    Kind.INT: {"INT"},
    Kind.FLOATS: {"FLOATS", "FLOAT"},
    Kind.FLOAT: {"FLOAT", "INT"},
    Kind.BOOL: {"INT"},
    Kind.DTYPE: {"INT"},
    Kind.BODY: {"GRAPH"},
    Kind.ARRAY: {"FLOAT", "INT", "FLOATS", "INTS", "TENSOR"},
    Kind.STATIC: {"FLOATS", "INTS", "TENSOR"},
}

# Attributes that a schema lets be absent although the operator means nothing without them: the rule asks for them.
_NEEDED_IN_FACT = {("LpPool", 1): "kernel_shape", ("Reshape", 1): "shape"}


@cache
def standard_schemas() -> tuple[Schema, ...]:
    """Every version of every operator in the domains that onnxtrain knows, up to the newest tested opset."""
    return tuple(
        _schema(domain, op_type, version)
        for domain, op_type in schemas.operators()
        for version in schemas.versions(domain, op_type)
        if version <= schemas.NEWEST_TESTED.get(domain, 0)
    )


def _schema(domain: str, op_type: str, version: int) -> Schema:
    found = schemas.find(domain, op_type, version)
    assert found is not None
    return found


@cache
def claims() -> dict[Rule, tuple[Schema, ...]]:
    """The schema versions that each rule of a standard operator runs."""
    claimed: dict[int, list[Schema]] = defaultdict(list)
    for schema in standard_schemas():
        rule = registry.find(schema.domain, schema.name, schema.since_version)
        if rule is not None:
            claimed[id(rule)].append(schema)
    return {rule: tuple(claimed[id(rule)]) for rule in registry.all_rules() if not rule.states_schema}


def _pairs() -> list[Any]:
    return [pytest.param(rule, schema, id=label(schema)) for rule, versions in claims().items() for schema in versions]


def _rules() -> list[Any]:
    return [pytest.param(rule, id=f"{rule.op_type}-{rule.since}") for rule in claims()]


def label(schema: Schema) -> str:
    prefix = f"{schema.domain}." if schema.domain else ""
    return f"{prefix}{schema.name}-{schema.since_version}"


@pytest.mark.spec("M-01")
def test_every_operator_version_has_a_rule_or_a_reason() -> None:
    absent = {
        label(schema)
        for schema in standard_schemas()
        if registry.find(schema.domain, schema.name, schema.since_version) is None
    }
    listed = {name for group in MISSING.values() for name in group["versions"]}
    assert absent == listed
    assert all(group["reason"] for group in MISSING.values())


def test_newest_tested_opsets_are_the_newest_of_onnx() -> None:
    newest = {
        domain: max(version for name in names for version in schemas.versions(domain, name))
        for domain, names in _operators_by_domain().items()
    }
    assert {domain: version for domain, version in newest.items() if version > schemas.NEWEST_TESTED[domain]} == {}


def _operators_by_domain() -> dict[str, list[str]]:
    names: dict[str, list[str]] = defaultdict(list)
    for domain, op_type in schemas.operators():
        names[domain].append(op_type)
    return names


@pytest.mark.parametrize("rule", _rules())
def test_a_rule_begins_at_a_version_of_its_operator(rule: Rule) -> None:
    versions = schemas.versions(rule.domain, rule.op_type)
    assert versions, "ONNX has no such operator"
    assert rule.since in versions or rule.since == 1, f"the versions are {versions}"
    assert claims()[rule], f"a later rule runs every version of {versions}"


def test_only_rules_of_operators_that_onnx_does_not_define_state_their_schema() -> None:
    stating = {(rule.domain, rule.op_type) for rule in registry.all_rules() if rule.states_schema}
    assert stating & set(schemas.operators()) == set()
    assert {operator for operator in stating if operator[0] in schemas.NEWEST_TESTED} == schemas.FOREIGN


@pytest.mark.parametrize(("rule", "schema"), _pairs())
def test_positional_parameters_are_the_inputs(rule: Rule, schema: Schema) -> None:
    positional = [parameter for parameter in rule.parameters if parameter.positional]
    variadic = bool(positional) and positional[-1].variadic
    for position, formal in enumerate(schema.inputs):
        assert position < len(positional) or variadic, f"input {position} ({formal.name!r}) has no parameter"
        parameter = positional[min(position, len(positional) - 1)]
        if formal.variadic:
            assert parameter.variadic, f"input {formal.name!r} is variadic, and {parameter.name!r} is not"
        if formal.optional:
            assert _may_be_absent(parameter), (
                f"input {formal.name!r} is optional, and {parameter.name!r} has no default"
            )
    for parameter in positional[len(schema.inputs) :]:
        assert parameter.name in schema.attributes or _may_be_absent(parameter), (
            f"{parameter.name!r} is neither an input nor an attribute, and has no default"
        )


def _may_be_absent(parameter: RuleParameter) -> bool:
    return parameter.variadic or parameter.default is not NO_DEFAULT or parameter.kind is Kind.VALUE


@pytest.mark.parametrize(("rule", "schema"), _pairs())
def test_attributes_are_taken_or_ignored(rule: Rule, schema: Schema) -> None:
    taken = {parameter.name: parameter for parameter in _taken_from_attributes(rule, schema)}
    assert set(schema.attributes) - set(taken) - rule.ignores == set()
    for name, parameter in taken.items():
        attribute = schema.attributes.get(name)
        if _may_lack(schema, name) and _NEEDED_IN_FACT.get((schema.name, schema.since_version)) != name:
            assert parameter.default is not NO_DEFAULT, f"{name!r} may be absent, and the parameter has no default"
        if attribute is not None:
            allowed = _ATTRIBUTE_TYPES.get(Kind.BOOL if parameter.boolean else parameter.kind, {attribute.type})
            assert attribute.type in allowed, f"{name!r} holds {attribute.type}"


def _taken_from_attributes(rule: Rule, schema: Schema) -> Iterator[RuleParameter]:
    """The parameters that `binding` fills from attributes when it binds a node of this version."""
    for position, parameter in enumerate(rule.parameters):
        beyond = parameter.positional and not parameter.variadic and position >= len(schema.inputs)
        keyword = not parameter.positional and parameter.kind not in INJECTED
        if keyword or (beyond and parameter.name in schema.attributes):
            yield parameter


@pytest.mark.parametrize("rule", _rules())
def test_a_rule_takes_and_ignores_nothing_that_its_operator_never_had(rule: Rule) -> None:
    known = {name for schema in claims()[rule] for name in schema.attributes}
    taken = {
        parameter.name for parameter in rule.parameters if not parameter.positional and parameter.kind not in INJECTED
    }
    assert taken - known == set()
    assert rule.ignores - registry.MEANINGLESS - known == set()
    assert taken & rule.ignores == set()


@pytest.mark.parametrize("rule", _rules())
def test_a_rule_has_no_parameter_and_no_default_that_no_version_needs(rule: Rule) -> None:
    versions = claims()[rule]
    for position, parameter in enumerate(rule.parameters):
        if parameter.kind in INJECTED or parameter.variadic:
            continue
        if parameter.positional:
            absent = [schema for schema in versions if not _is_required_input(parameter, position, schema)]
            unknown = all(
                position >= len(schema.inputs) and parameter.name not in schema.attributes for schema in versions
            )
            assert not unknown, f"no version has an input or attribute {parameter.name!r}"
        else:
            absent = [schema for schema in versions if _may_lack(schema, parameter.name)]
        assert absent or parameter.default is NO_DEFAULT, (
            f"every version gives {parameter.name!r}, so no default is used"
        )


def _is_required_input(parameter: RuleParameter, position: int, schema: Schema) -> bool:
    if position < len(schema.inputs):
        return not schema.inputs[position].optional
    return not _may_lack(schema, parameter.name)


def _may_lack(schema: Schema, name: str) -> bool:
    attribute = schema.attributes.get(name)
    return attribute is None or (attribute.default is None and not attribute.required)


def test_the_audit_sees_an_attribute_that_no_parameter_takes() -> None:
    rule = registry.find("", "LeakyRelu", 16)
    assert rule is not None
    deaf = dataclasses.replace(rule, parameters=tuple(p for p in rule.parameters if p.name != "alpha"))
    with pytest.raises(AssertionError, match="alpha"):
        test_attributes_are_taken_or_ignored(deaf, _schema("", "LeakyRelu", 16))


def test_the_audit_sees_an_optional_input_that_a_rule_requires() -> None:
    rule = registry.find("", "Conv", 11)
    assert rule is not None
    strict = tuple(dataclasses.replace(p, default=NO_DEFAULT) if p.positional else p for p in rule.parameters)
    with pytest.raises(AssertionError, match="optional"):
        test_positional_parameters_are_the_inputs(dataclasses.replace(rule, parameters=strict), _schema("", "Conv", 11))
