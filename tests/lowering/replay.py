"""The one-node cases of the public suite in the form of the other versions of their operators.

The suite has one version of each operator only, mostly the newest. A case goes to another one by changing the opset
that it imports and by making attributes of the inputs that are attributes there. Where the other version does not know
a type, an input or an attribute of the case, there is nothing to replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper

from tests.lowering.backend_cases import BackendCase, expected_failures, load_cases

# Inputs and attributes that had another name before: (operator, name now): name then.
_FORMER_NAMES = {("Pad", "constant_value"): "value", ("Pad", "pads"): "paddings", ("TopK", "K"): "k"}

# Newer attributes that change nothing in these cases, whatever they say.
_NEUTRAL = frozenset({"stash_type", "seed"})

# Versions whose inputs are others than those of the cases: scales of groups, slopes of channels, lengths of sequences.
_OTHER_INPUTS = frozenset({("GroupNormalization", 18), ("PRelu", 1), ("PRelu", 6), ("Scan", 8)})

# Newer inputs that ask for nothing when they are empty or false.
_DISPENSABLE = frozenset({"roi", "sizes", "training_mode"})


@dataclass(frozen=True)
class Replay:
    """A case of the suite as a node of another version: its model, its inputs by name, the suite's own outputs."""

    case: str
    domain: str
    operator: str
    version: int
    model: onnx.ModelProto
    inputs: Mapping[str, Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float

    @property
    def richness(self) -> int:
        """How much of the operator's form the case uses."""
        (node,) = self.model.graph.node
        return len(node.attribute) + len(node.input) + len(node.output)


class _NoSuchFormError(Exception):
    """The other version cannot say what the case says."""


@cache
def load_replays() -> tuple[Replay, ...]:
    """Every case at every other version that its form allows."""
    return tuple(
        replay
        for case in load_cases()
        if case.kind == "node" and "_expanded" not in case.name and len(case.model.graph.node) == 1
        if case.name not in expected_failures()
        for replay in _replays(case)
    )


def versions_of_the_suite() -> set[tuple[str, str, int]]:
    """Domain, operator and version of every node of the cases themselves."""
    nodes = ((case.model, node) for case in load_cases() if case.kind == "node" for node in case.model.graph.node)
    found = ((node, _own_schema(model, node)) for model, node in nodes)
    return {(node.domain, node.op_type, schema.since_version) for node, schema in found if schema is not None}


@cache
def schemas() -> Mapping[tuple[str, str], Mapping[int, Any]]:
    """Every version of every operator, by domain and name."""
    found: dict[tuple[str, str], dict[int, Any]] = {}
    for schema in defs.get_all_schemas_with_history():
        found.setdefault((schema.domain, schema.name), {})[schema.since_version] = schema
    return found


def _own_schema(model: onnx.ModelProto, node: onnx.NodeProto) -> Any:
    versions = schemas().get((node.domain, node.op_type), {})
    imported = next((entry.version for entry in model.opset_import if entry.domain == node.domain), 0)
    return versions.get(max((version for version in versions if version <= imported), default=0))


def _replays(case: BackendCase) -> Iterator[Replay]:
    model = case.model
    (node,) = model.graph.node
    own = _own_schema(model, node)
    if own is None:
        return
    values, outputs = next(case.data_sets(model))
    fed = dict(zip((value.name for value in model.graph.input), values, strict=False))
    for version, schema in sorted(schemas()[node.domain, node.op_type].items()):
        if version == own.since_version or not _OTHER_INPUTS.isdisjoint(
            {(node.op_type, version), (node.op_type, own.since_version)}
        ):
            continue
        try:
            other, read = _other_model(model, own, schema, fed)
        except _NoSuchFormError:
            continue
        yield Replay(case.name, node.domain, node.op_type, version, other, read, outputs, case.rtol, case.atol)


def _other_model(
    model: onnx.ModelProto, own: Any, schema: Any, fed: Mapping[str, Any]
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    (node,) = model.graph.node
    inputs, moved = _other_inputs(node, own, schema, fed)
    if not all(_runs_at(inner, schema.since_version) for inner in _inner_nodes(node)):
        raise _NoSuchFormError
    attributes = {**_other_attributes(node, own, schema), **moved, **_switches(node.op_type, inputs, schema, fed)}
    types = {value.name: value.type for value in (*model.graph.input, *model.graph.output)}
    _require_fit(schema, attributes, [types.get(name) for name in inputs], [types.get(name) for name in node.output])
    other = helper.make_node(node.op_type, inputs, node.output, domain=node.domain)
    for name, value in attributes.items():
        kind = onnx.AttributeProto.AttributeType.Value(schema.attributes[name].type.name)
        other.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    listed = [value for value in model.graph.input if value.name in inputs]
    graph = helper.make_graph([other], model.graph.name, listed, model.graph.output)
    opsets = [helper.make_opsetid(node.domain, schema.since_version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), {name: fed[name] for name in inputs if name}


def _inner_nodes(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield inner
            yield from _inner_nodes(inner)


def _runs_at(node: onnx.NodeProto, opset: int) -> bool:
    """Whether a node of a body has a form that its operator has at this opset too."""
    versions = schemas()[node.domain, node.op_type]
    schema = versions.get(max((version for version in versions if version <= opset), default=0))
    return (
        schema is not None
        and schema.min_input <= len(node.input) <= schema.max_input
        and {attribute.name for attribute in node.attribute} <= set(schema.attributes)
    )


def _other_attributes(node: onnx.NodeProto, own: Any, schema: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if attribute.name in schema.attributes:
            kind = schema.attributes[attribute.name].type.name
            attributes[attribute.name] = _converted(value, kind) if attribute.name != "to" else _type_name(value, kind)
        elif attribute.name not in _NEUTRAL and value != _default(own.attributes[attribute.name]):
            raise _NoSuchFormError
    return attributes


def _default(attribute: Any) -> Any:
    proto = attribute.default_value
    return helper.get_attribute_value(proto) if proto.type else None


def _type_name(value: int, kind: str) -> Any:
    """The first version of Cast wants the type by its name."""
    return onnx.TensorProto.DataType.Name(value) if kind == "STRING" else value


def _converted(value: Any, kind: str) -> Any:
    """A value that was an input, or an attribute of another type, in the type of an attribute."""
    if kind in ("INT", "FLOAT", "INTS", "FLOATS"):
        numbers = np.asarray(value).reshape(-1).tolist()
        if kind in ("INTS", "FLOATS"):
            return numbers
        if len(numbers) != 1:
            raise _NoSuchFormError
        return int(numbers[0]) if kind == "INT" else float(numbers[0])
    return value


def _other_inputs(
    node: onnx.NodeProto, own: Any, schema: Any, fed: Mapping[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """The inputs that still are inputs, and the attributes that the others become."""
    names = [parameter.name for parameter in schema.inputs]
    inputs: dict[int, str] = {}
    attributes: dict[str, Any] = {}
    for position, name in enumerate(node.input):
        formal = _formal(own, position).name
        former = _FORMER_NAMES.get((node.op_type, formal), formal)
        if not name:
            continue
        if _is_variadic(schema):
            inputs[position] = name
        elif formal in names:
            inputs[names.index(formal)] = name
        elif (attribute := next((key for key in (formal, former) if key in schema.attributes), None)) and name in fed:
            attributes[attribute] = _converted(fed[name], schema.attributes[attribute].type.name)
        elif formal in _DISPENSABLE and not np.any(fed.get(name, True)):
            continue
        elif position < len(names):
            inputs[position] = name
        else:
            raise _NoSuchFormError
    return [inputs.get(position, "") for position in range(max(inputs, default=-1) + 1)], attributes


def _switches(op_type: str, inputs: Sequence[str], schema: Any, fed: Mapping[str, Any]) -> dict[str, Any]:
    """What once had to be asked for: broadcasting, inference, and room for hints that mean nothing."""
    switches: dict[str, Any] = {}
    if "broadcast" in schema.attributes:
        left, right = (np.shape(fed[name]) for name in inputs[:2])
        if op_type != "Gemm" and left != right and left[len(left) - len(right) :] != right:
            raise _NoSuchFormError
        if op_type == "Gemm" or left != right:
            switches["broadcast"] = 1
    if "is_test" in schema.attributes:
        switches["is_test"] = 1
    if "consumed_inputs" in schema.attributes and schema.attributes["consumed_inputs"].required:
        switches["consumed_inputs"] = [0] * len(inputs)
    return switches


def _require_fit(
    schema: Any,
    attributes: Mapping[str, Any],
    inputs: Sequence[onnx.TypeProto | None],
    outputs: Sequence[onnx.TypeProto | None],
) -> None:
    """Refuses what the other version does not take or give, and what it draws at random."""
    required = {name for name, attribute in schema.attributes.items() if attribute.required}
    # a schema with a body counts as one that draws, because the body may
    has_body = any(attribute.type.name == "GRAPH" for attribute in schema.attributes.values())
    draws = schema.node_determinism == defs.OpSchema.NodeDeterminism.NonDeterministic and not has_body
    fits = (
        required <= set(attributes)
        and (not draws or "is_test" in attributes or schema.name == "Dropout")
        and schema.min_input <= len(inputs) <= schema.max_input
        and len(outputs) <= schema.max_output
        and all(_accepts(schema.inputs, position, declared) for position, declared in enumerate(inputs))
        and all(_accepts(schema.outputs, position, declared) for position, declared in enumerate(outputs))
    )
    if not fits:
        raise _NoSuchFormError


def _accepts(formals: Sequence[Any], position: int, declared: onnx.TypeProto | None) -> bool:
    return declared is None or _type_text(declared) in formals[min(position, len(formals) - 1)].types


def _formal(schema: Any, position: int) -> Any:
    return schema.inputs[min(position, len(schema.inputs) - 1)]


def _is_variadic(schema: Any) -> bool:
    return bool(schema.inputs) and schema.inputs[-1].option == defs.OpSchema.FormalParameterOption.Variadic


def _type_text(declared: onnx.TypeProto) -> str:
    """A type in the words of the schemas: tensor(float), seq(tensor(int64)), ..."""
    match declared.WhichOneof("value"):
        case "sequence_type":
            return f"seq({_type_text(declared.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({_type_text(declared.optional_type.elem_type)})"
        case "tensor_type":
            name = onnx.TensorProto.DataType.Name(declared.tensor_type.elem_type).lower()
            return f"tensor({name})"
    return "unknown"
