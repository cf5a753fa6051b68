"""The table of rules: which function runs which operator, from which version on.

A rule is a plain function and the operator's schema is its signature. Positional parameters are the operator's
inputs in order (or, in versions that have it so, the attribute of that name), keyword-only parameters are its
attributes; versions and attribute defaults come from `onnx.defs`, so nobody types them again::

    @op("LeakyRelu", since=6)
    def leaky_relu(x: Array, *, alpha: float) -> Array:
        return jnp.where(x > 0, x, alpha * x)

    @op("ReduceSum")
    def reduce_sum(data: Array, axes: Ints | None = None, *, keepdims: bool) -> Array:
        ...

A rule holds from its `since` to the next rule of the same operator. An operator that ONNX does not define has no other
schema than the signature of its rule, which then gives attributes their defaults and says so with `states_schema`::

    @op("QuickGelu", domain="com.microsoft", states_schema=True)
    def quick_gelu(x: Array, *, alpha: float = 1.702) -> Array:
        return x * jax.nn.sigmoid(alpha * x)

How a parameter arrives is said by its annotation:

| annotation | arrives as |
|---|---|
| `Array` | numpy array when the value is static, JAX array when it is traced |
| `Ints`, `Floats` | tuple of Python numbers, known while tracing; a scalar becomes a tuple of one |
| `Int`, `Float`, `Bool` | one Python number, known while tracing |
| `Static` | numpy array, known while tracing |
| `DType` | numpy dtype, from an attribute that holds an element type's number |
| `Key` | a PRNG key of the node's own, different at each step (any rule that declares `key: Key`) |
| `OutputCount` | how many outputs the node names |
| `StandIns` | for each input the float whose gradient stands for its own, or None (see `StraightThrough`) |
| `StraightThroughWanted` | whether gradients pass through rounding as if it were not there |
| `Body` | a graph attribute, as a callable (see `Body`) |
| `Value` | whatever the value is, untouched: a list for a sequence, a dict for a map, None for an absent optional |
| anything else | the attribute as it was read: int, float, bool, str, tuple, numpy array |

An input that may be absent has a default or, where required ones follow it, just `| None` in its annotation.
Several inputs at the end are taken with `*inputs: Array`. A rule returns one value, or a tuple with one value an
output; trailing outputs that the node does not name are dropped. A list is one value: a sequence.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, Any, Protocol, TypeVar

import jax
import numpy as np

from onnxtrain import schema as schemas
from onnxtrain.schema import Attribute, Parameter, Schema


class Kind(Enum):
    """How a parameter of a rule arrives."""

    ARRAY = auto()
    INTS = auto()
    FLOATS = auto()
    INT = auto()
    FLOAT = auto()
    BOOL = auto()
    STATIC = auto()
    DTYPE = auto()
    KEY = auto()
    OUTPUT_COUNT = auto()
    STAND_INS = auto()
    STRAIGHT_THROUGH_WANTED = auto()
    BODY = auto()
    VALUE = auto()
    PLAIN = auto()


class GraphCallable(Protocol):
    """A graph attribute of a node, ready to run; outer values are seen without being passed."""

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]

    def __call__(self, *inputs: Any, iteration: Any = None) -> tuple[Any, ...]:
        """Runs the graph; `iteration` (an int, traced or not) gives random nodes another stream each time round."""
        ...


@dataclass(frozen=True)
class StraightThrough:
    """A result that has no gradient of its own, and a float in its shape whose gradient stands for it: a stand-in.

    What the float is does not matter, only how it changes. Nodes see the value; a rule that declares `StandIns` gets
    those of its inputs beside them. Where the user wants the gradient through rounding to be zero there are none.
    """

    value: Any
    stand_in: Any


Array = Annotated[Any, Kind.ARRAY]
Value = Annotated[Any, Kind.VALUE]
Ints = Annotated[tuple[int, ...], Kind.INTS]
Floats = Annotated[tuple[float, ...], Kind.FLOATS]
Int = Annotated[int, Kind.INT]
Float = Annotated[float, Kind.FLOAT]
Bool = Annotated[bool, Kind.BOOL]
Static = Annotated[np.ndarray, Kind.STATIC]
DType = Annotated[np.dtype, Kind.DTYPE]
Key = Annotated[jax.Array, Kind.KEY]
OutputCount = Annotated[int, Kind.OUTPUT_COUNT]
StandIns = Annotated[tuple[Any, ...], Kind.STAND_INS]
StraightThroughWanted = Annotated[bool, Kind.STRAIGHT_THROUGH_WANTED]
Body = Annotated[GraphCallable, Kind.BODY]

_Function = TypeVar("_Function", bound=Callable[..., Any])

NO_DEFAULT = inspect.Parameter.empty

# What a call gets beside the node's inputs and attributes.
INJECTED = frozenset({Kind.KEY, Kind.OUTPUT_COUNT, Kind.STAND_INS, Kind.STRAIGHT_THROUGH_WANTED})


@dataclass(frozen=True)
class RuleParameter:
    """One parameter of a rule; `positional` ones are inputs, the others attributes or injected values."""

    name: str
    kind: Kind
    positional: bool
    variadic: bool
    boolean: bool
    default: Any


@dataclass(frozen=True)
class Rule:
    """A function that runs an operator from version `since` on.

    Attributes:
      folds: on static inputs it computes in numpy and its result is static.
      host: it cannot be traced, and runs on the host with every input static.
      carries: it does with integers what it does with floats, so that stand-ins of its inputs go through it too.
      ignores: attributes of the schema that change no result, such as `consumed_inputs`.
      states_schema: ONNX does not define the operator, so that the signature is all that is known of it.
    """

    domain: str
    op_type: str
    since: int
    function: Callable[..., Any]
    parameters: tuple[RuleParameter, ...]
    folds: bool = False
    host: bool = False
    ignores: frozenset[str] = frozenset()
    states_schema: bool = False
    carries: bool = False

    @property
    def draws(self) -> bool:
        """Whether the rule takes a PRNG key."""
        return any(parameter.kind is Kind.KEY for parameter in self.parameters)

    @property
    def schema(self) -> Schema:
        """What the signature says of the operator. Defaults are left to the parameters, which have them already."""
        inputs = [parameter for parameter in self.parameters if parameter.positional]
        attributes = (p for p in self.parameters if not p.positional and p.kind not in INJECTED)
        required = [parameter for parameter in inputs if parameter.default is NO_DEFAULT and not parameter.variadic]
        variadic = any(parameter.variadic for parameter in inputs)
        return Schema(
            domain=self.domain,
            name=self.op_type,
            since_version=self.since,
            deprecated=False,
            attributes={p.name: Attribute(p.name, "", p.default is NO_DEFAULT, None) for p in attributes},
            inputs=tuple(Parameter(p.name, p.default is not NO_DEFAULT, p.variadic) for p in inputs),
            outputs=(),
            min_inputs=len(required),
            max_inputs=sys.maxsize if variadic else len(inputs),
            deterministic=not self.draws,
            has_body=False,
        )

    def kind_at(self, position: int) -> Kind:
        """How a positional argument arrives; a variadic parameter takes all from its own position on."""
        kinds = [parameter.kind for parameter in self.parameters if parameter.positional]
        return kinds[min(position, len(kinds) - 1)]


_RULES: dict[tuple[str, str], dict[int, Rule]] = {}

# Attributes of opset 1 that told old runtimes where they could work in place, and the storage hint of Constant.
MEANINGLESS = frozenset({"consumed_inputs"})


def op(
    op_type: str,
    *,
    since: int = 1,
    domain: str = "",
    folds: bool = False,
    host: bool = False,
    ignores: frozenset[str] | set[str] = frozenset(),
    states_schema: bool = False,
    carries: bool = False,
) -> Callable[[_Function], _Function]:
    """Registers the decorated function as the rule of an operator from version `since` on."""

    def register(function: _Function) -> _Function:
        parameters = _parameters(function)
        ignored = MEANINGLESS | ignores
        add(Rule(domain, op_type, since, function, parameters, folds, host, ignored, states_schema, carries))
        return function

    return register


def table(
    functions: Mapping[str, Callable[..., Any]],
    *,
    inputs: int,
    since: int = 1,
    domain: str = "",
    folds: bool = False,
    ignores: frozenset[str] | set[str] = frozenset(),
) -> None:
    """Registers operators that are one plain function of `inputs` arrays each, with no attributes."""
    parameters = tuple(
        RuleParameter(f"input{i}", Kind.ARRAY, positional=True, variadic=False, boolean=False, default=NO_DEFAULT)
        for i in range(inputs)
    )
    for op_type, function in functions.items():
        add(Rule(domain, op_type, since, function, parameters, folds, False, MEANINGLESS | ignores))


def add(rule: Rule) -> None:
    """Adds a rule to the table; two rules for one operator and version are a mistake."""
    rules = _RULES.setdefault((rule.domain, rule.op_type), {})
    if rule.since in rules:
        raise ValueError(f"{rule.op_type} ({rule.domain or 'ai.onnx'}) has two rules from version {rule.since} on.")
    rules[rule.since] = rule


def find(domain: str, op_type: str, version: int) -> Rule | None:
    """The rule that runs this version of an operator, or None."""
    rules = _RULES.get((domain, op_type), {})
    since = max((known for known in rules if known <= version), default=None)
    return None if since is None else rules[since]


def resolve(domain: str, op_type: str, opset: int) -> tuple[Schema | None, Rule | None]:
    """The schema that an operator means under an imported opset, and the rule that runs it, as far as there are any."""
    schema = schemas.find(domain, op_type, opset)
    rule = find(domain, op_type, schema.since_version if schema else opset)
    if schema is None and rule is not None:
        return (rule.schema, rule) if rule.states_schema else (None, None)
    return schema, rule


def all_rules() -> tuple[Rule, ...]:
    """Every rule, sorted by domain, operator and version."""
    return tuple(rules[since] for _, rules in sorted(_RULES.items()) for since in sorted(rules))


def _parameters(function: Callable[..., Any]) -> tuple[RuleParameter, ...]:
    hints = typing.get_type_hints(function, include_extras=True)
    return tuple(
        _parameter(parameter, hints.get(name)) for name, parameter in inspect.signature(function).parameters.items()
    )


def _parameter(parameter: inspect.Parameter, hint: Any) -> RuleParameter:
    positional = parameter.kind != inspect.Parameter.KEYWORD_ONLY
    absent = positional and parameter.default is NO_DEFAULT and types.NoneType in typing.get_args(hint)
    return RuleParameter(
        name=parameter.name,
        kind=_kind(hint),
        positional=positional,
        variadic=parameter.kind == inspect.Parameter.VAR_POSITIONAL,
        boolean=hint is bool,
        default=None if absent else parameter.default,
    )


def _kind(hint: Any) -> Kind:
    candidates = (
        (hint, *typing.get_args(hint)) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    )
    for candidate in candidates:
        for mark in getattr(candidate, "__metadata__", ()):
            if isinstance(mark, Kind):
                return mark
    return Kind.PLAIN
