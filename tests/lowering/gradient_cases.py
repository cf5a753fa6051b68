"""Which inputs of which operators have a gradient, and the cases that check it; nothing is run on import.

The cases are those of the public suite that add something: an input that was absent before, or another value of an
attribute. What the suite lacks stands in `gradient_records.py` and among the cases of onnxruntime's own operators.
What has no gradient to check stands in `gradient_exceptions.toml`, with its reason.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import onnx
from onnx import defs, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

import onnxtrain.lowering  # noqa: F401  (importing it registers the rules)
from onnxtrain import dtypes
from onnxtrain import schema as schemas
from onnxtrain.graph.model import Graph, Node
from onnxtrain.graph.read import read_model
from onnxtrain.lowering import registry
from onnxtrain.lowering.context import Context
from onnxtrain.lowering.interpreter import run_graph
from tests.lowering.backend_cases import BackendCase, expected_failures, load_cases
from tests.lowering.contrib.cases import CASES as CONTRIB_CASES
from tests.lowering.elsewhere import Case
from tests.lowering.gradient_records import RECORDS

EXCEPTIONS = Path(__file__).with_name("gradient_exceptions.toml")

_FLOAT_TYPES = ("tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)")
_FLOAT_CODES = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})


class Input(NamedTuple):
    """A formal input of an operator."""

    domain: str
    op_type: str
    name: str

    def __str__(self) -> str:
        return f"{self.domain + ':' if self.domain else ''}{self.op_type}.{self.name}"


@dataclass(frozen=True)
class GradientCase:
    """One node, with its float inputs in float64 and moved a little so that none sits on a kink."""

    name: str
    node: Node
    opsets: Mapping[str, int]
    values: tuple[Any, ...]

    @property
    def operator(self) -> tuple[str, str]:
        return self.node.domain, self.node.op_type

    @cached_property
    def point(self) -> dict[int, Any]:
        """The inputs that the gradient is taken of, by position: arrays, and lists of arrays."""
        return {
            position: value
            for position, value in enumerate(self.values)
            if _holds_floats(value) and str(self.formal(position)) not in exceptions()
        }

    def formal(self, position: int) -> Input:
        """The formal input that stands at a position; the last one may take all that follow."""
        schema = schemas.find(*self.operator, self.opsets[self.node.domain])
        names = [formal.name for formal in schema.inputs] if schema else _foreign_inputs()[self.operator]
        return Input(*self.operator, names[min(position, len(names) - 1)])

    def run(self, point: Mapping[int, Any]) -> list[Any]:
        """All arrays among the outputs, as a function of the inputs at these positions; the others are static."""
        fed = {f"input{i}": point.get(i, value) for i, value in enumerate(self.values) if value is not None}
        graph = Graph("gradient", (), (), (self.node,))
        found = run_graph(graph, fed, self.node.outputs, Context({}, self.opsets, key=jax.random.key(0)))
        return jax.tree.leaves(list(found.values()))


@cache
def gradient_cases() -> tuple[GradientCase, ...]:
    """The cases of every operator whose gradient is checked."""
    suite = (_from_suite(case) for case in _distinct_cases())
    own = (_from_record(case) for case in (*RECORDS, *CONTRIB_CASES))
    return tuple(case for case in (*suite, *own) if case.operator in _checked_operators() and case.point)


def covered_inputs() -> frozenset[Input]:
    """Every formal input whose gradient is compared with finite differences."""
    return frozenset(case.formal(position) for case in gradient_cases() for position in case.point)


@cache
def differentiable_inputs() -> frozenset[Input]:
    """Every formal float input of an operator with a rule and a float output, in its newest version."""
    ruled = {(rule.domain, rule.op_type) for rule in registry.all_rules()}
    described = frozenset(
        Input(schema.domain, schema.name, formal.name)
        for schema in (*_newest_schemas(), *_foreign_schemas())
        if (schema.domain, schema.name) in ruled and any(_may_be_float(formal) for formal in schema.outputs)
        for formal in schema.inputs
        if _may_be_float(formal)
    )
    return described | {Input(*operator, name) for operator in _undescribed() for name in _foreign_inputs()[operator]}


@cache
def exceptions() -> Mapping[str, str]:
    """Reasons by input. The file has patterns of inputs' names; one that fits no input stands for itself."""
    every = [str(known) for known in differentiable_inputs()]
    return {
        name: group["reason"]
        for group in _groups()
        for pattern in group.get("inputs", ())
        for name in fnmatch.filter(every, pattern) or [pattern]
    }


def exceptional_cases() -> Mapping[str, str]:
    """Reasons by pattern of the names of the suite's cases."""
    return {pattern: group["reason"] for group in _groups() for pattern in group.get("cases", ())}


def _groups() -> Iterable[Any]:
    return tomllib.loads(EXCEPTIONS.read_text()).values()


@cache
def _checked_operators() -> frozenset[tuple[str, str]]:
    checked = (known for known in differentiable_inputs() if str(known) not in exceptions())
    return frozenset((known.domain, known.op_type) for known in checked)


def _newest_schemas() -> Iterable[Any]:
    """Of every operator of ONNX; of one that is deprecated, the newest version that is not."""
    newest: dict[tuple[str, str], Any] = {}
    for schema in sorted(defs.get_all_schemas_with_history(), key=lambda schema: schema.since_version):
        if not schema.deprecated:
            newest[schema.domain, schema.name] = schema
    return newest.values()


@cache
def _foreign_schemas() -> tuple[Any, ...]:
    """onnxruntime's schemas of the operators that have a rule but none of ONNX's."""
    foreign = {(rule.domain, rule.op_type) for rule in registry.all_rules() if rule.states_schema}
    return tuple(schema for schema in get_all_operator_schema() if (schema.domain, schema.name) in foreign)


@cache
def _foreign_inputs() -> dict[tuple[str, str], list[str]]:
    """The inputs' names of the operators that ONNX does not define."""
    stated = {
        (rule.domain, rule.op_type): [formal.name for formal in rule.schema.inputs]
        for rule in registry.all_rules()
        if rule.states_schema
    }
    described = {
        (schema.domain, schema.name): [formal.name for formal in schema.inputs] for schema in _foreign_schemas()
    }
    return {**stated, **described}


def _undescribed() -> set[tuple[str, str]]:
    """The operators that neither ONNX nor onnxruntime has a schema of; all inputs of theirs are floats."""
    return _foreign_inputs().keys() - {(schema.domain, schema.name) for schema in _foreign_schemas()}


def _may_be_float(formal: Any) -> bool:
    return any(name.endswith(")") and float_type in name for name in formal.types for float_type in _FLOAT_TYPES)


def _distinct_cases() -> Iterator[BackendCase]:
    """The cases of the suite that have something that none before them has."""
    seen: dict[str, set[Any]] = defaultdict(set)
    left_out = [*expected_failures(), *exceptional_cases(), "*_expanded*"]
    for case in load_cases():
        if case.kind != "node" or any(fnmatch.fnmatch(case.name, pattern) for pattern in left_out):
            continue
        features = set(_features(case.model))
        if len(case.model.graph.node) == 1 and not features <= seen[case.operator]:
            seen[case.operator] |= features
            yield case


def _features(model: onnx.ModelProto) -> Iterator[Any]:
    """What distinguishes a case: which inputs it feeds, as floats or not, and its words and small numbers."""
    declared = {value.name: value.type for value in model.graph.input}
    node = model.graph.node[0]
    for position, name in enumerate(node.input):
        if name:
            yield min(position, 8), any(code in str(declared.get(name)) for code in ("elem_type: 1\n", "elem_type: 10"))
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        small = isinstance(value, bytes) or (isinstance(value, int) and abs(value) < 4)
        yield attribute.name, value if small else None


def _from_suite(case: BackendCase) -> GradientCase:
    model = read_model(_widened(case.model))
    (node,) = model.graph.nodes
    values, _ = next(case.data_sets(case.model))
    fed = dict(zip(model.graph.input_names, values, strict=False))
    return _gradient_case(case.name, node, model.opset_imports, [fed.get(name) for name in node.inputs])


def _from_record(case: Case) -> GradientCase:
    node = Node(case.op_type, case.domain, "", (), ("output",) * case.outputs, case.attributes)
    return _gradient_case(case.name, node, {case.domain: case.opset}, case.values())


def _gradient_case(name: str, node: Node, opsets: Mapping[str, int], values: list[Any]) -> GradientCase:
    inputs = tuple("" if value is None else f"input{i}" for i, value in enumerate(values))
    outputs = tuple(f"output{i}" for i in range(len(node.outputs)))
    renamed = Node(node.op_type, node.domain, node.name, inputs, outputs, node.attributes)
    return GradientCase(name, renamed, opsets, tuple(_moved(value) for value in values))


def _moved(value: Any) -> Any:
    if isinstance(value, list):
        return [_moved(item) for item in value]
    if not _is_float(value):
        return value
    wide = np.asarray(value, np.float64)
    return wide + 0.003 + 0.01 * np.random.default_rng(wide.size).random(wide.shape)


def _holds_floats(value: Any) -> bool:
    return bool(value) and all(map(_is_float, value)) if isinstance(value, list) else _is_float(value)


def _is_float(value: Any) -> bool:
    return hasattr(value, "dtype") and dtypes.is_float(value.dtype) and value.dtype.itemsize > 1


def _widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a one-node model that computes in float64 what it computed in smaller floats."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    _widen_constants(wide.graph)
    for node in wide.graph.node:
        if node.op_type == "LayerNormalization":  # the type of its statistics is an attribute
            node.attribute.append(helper.make_attribute("stash_type", onnx.TensorProto.DOUBLE))
    return wide


def _widen_constants(graph: onnx.GraphProto) -> None:
    """Initializers and the tensors among the attributes of all nodes, at any depth, in float64."""
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    for attribute in attributes:
        _widen_constants(attribute.g)
    for tensor in (*graph.initializer, *(attribute.t for attribute in attributes)):
        if tensor.data_type in _FLOAT_CODES:
            wide = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
