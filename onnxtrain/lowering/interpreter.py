"""Runs graphs: looks values up by name, computes what is missing, and says where it happened when something fails.

Evaluation goes by demand. A scope holds the values that are known so far; `Scope.compute` finds the nodes that the
wanted names need and runs their rules in order, so dead nodes cost nothing and nodes may stand in any order. Values
are numpy arrays while they are static and JAX arrays once they depend on something traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from onnxtrain import dtypes
from onnxtrain import schema as schemas
from onnxtrain.errors import (
    ModelError,
    OnnxTrainError,
    OperatorError,
    StaticValueError,
    UnsupportedOperatorError,
    describe_node,
)
from onnxtrain.graph.model import AttributeReference, Function, Graph, Node
from onnxtrain.graph.order import is_gradient, reads
from onnxtrain.lowering import gradient, levels, registry, static
from onnxtrain.lowering.binding import Injected, bind
from onnxtrain.lowering.context import Context, find_function, find_rule, identity, require_rules
from onnxtrain.lowering.static import StaticInputError


class Scope:
    """The values of one graph while it runs, over the values of the graphs around it."""

    def __init__(
        self,
        name: str,
        nodes: Sequence[Node],
        values: dict[str, Any],
        context: Context,
        *,
        parent: Scope | None = None,
        attributes: Mapping[str, Any] | None = None,
        stand_ins: Mapping[str, Any] | None = None,
    ):
        self.name = name
        self.nodes = nodes
        self.values = values
        self.context = context
        self.parent = parent
        self.attributes = attributes if attributes is not None else (parent.attributes if parent else {})
        self.producers = {output: node for node in nodes for output in node.outputs if output}
        self.stand_ins: dict[str, Any] = dict(stand_ins or {})

    def __getitem__(self, name: str) -> Any:
        """The value of a name that has been computed, here or further out."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        raise ModelError(
            f"Value {name!r} in graph {self.name!r} is produced by no node and is no input or initializer."
        )

    def compute(self, names: Iterable[str]) -> None:
        """Makes sure that the named values are known, running the nodes they need."""
        names = tuple(names)
        pending, outer = self.pending(names)
        if outer and self.parent is not None:
            self.parent.compute(outer)
        # A Gradient runs the nodes up to its y itself; the last one may hold earlier ones in what it differentiates.
        while gradients := [node for node in pending if is_gradient(node)]:
            gradient.differentiate(self, gradients[-1], gradients)
            pending, _ = self.pending(names)
        for node in pending:
            for name, value in zip(node.outputs, run_node(self, node), strict=False):
                self._keep(name, value)

    def _keep(self, name: str, value: Any) -> None:
        if isinstance(value, registry.StraightThrough):
            if not self.context.straight_through:
                value = value.value
            elif dtypes.is_float(value.value.dtype):
                value = levels.with_gradient_of(value.value, value.stand_in.astype(value.value.dtype))
            else:
                self.stand_ins[name] = value.stand_in
                value = value.value
        self.values[name] = value

    def stand_in(self, name: str) -> Any:
        """The float whose gradient stands for that of a value computed here or further out, if it has one."""
        scope: Scope | None = self
        while scope is not None and name not in scope.values:
            scope = scope.parent
        return scope.stand_ins.get(name) if scope is not None else None

    def pending(self, names: Iterable[str]) -> tuple[list[Node], list[str]]:
        """Nodes still to run for these names, in an order that works, and names to be looked up further out."""
        outer: dict[str, None] = {}

        def producer(name: str) -> Node | None:
            if name in self.values:
                return None
            if name not in self.producers:
                outer[name] = None
            return self.producers.get(name)

        return _in_order(names, producer), list(outer)

    def ancestors(self, names: Iterable[str], stop: frozenset[str] = frozenset()) -> list[Node]:
        """Every node that the names depend on, here and further out, whether it has run or not; none beyond `stop`."""
        return _in_order(names, lambda name: None if name in stop else self.find_producer(name))

    def find_producer(self, name: str) -> Node | None:
        """The node that computes a value, here or further out; None for an input or initializer."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.producers:
                return scope.producers[name]
            scope = None if name in scope.values else scope.parent
        return None

    def overlay(self, stale: frozenset[str], values: Mapping[str, Any]) -> Scope:
        """A copy in which the stale names are unknown again and some have other values; this scope is untouched."""
        own = {name: value for name, value in values.items() if self.parent is None or self._owns(name)}
        rest = {name: value for name, value in values.items() if name not in own}
        kept = {name: value for name, value in self.values.items() if name not in stale}
        stand_ins = {name: value for name, value in self.stand_ins.items() if name in kept and name not in own}
        parent = self.parent.overlay(stale, rest) if self.parent is not None else None
        return Scope(
            self.name,
            self.nodes,
            kept | own,
            self.context,
            parent=parent,
            attributes=self.attributes,
            stand_ins=stand_ins,
        )

    def _owns(self, name: str) -> bool:
        return name in self.values or name in self.producers


def _in_order(names: Iterable[str], producer: Callable[[str], Node | None]) -> list[Node]:
    """The producers of the names and of all that they read, each after those that it needs."""
    ordered: list[Node] = []
    entered: set[int] = set()
    # The stack is explicit because a chain of thousands of nodes would exceed Python's own.
    stack: list[tuple[Node, Iterator[str]]] = []

    def enter(name: str) -> None:
        node = producer(name) if name else None
        if node is not None and id(node) not in entered:
            entered.add(id(node))
            stack.append((node, iter(sorted(reads(node)))))

    for wanted in names:
        enter(wanted)
        while stack:
            node, remaining = stack[-1]
            following = next(remaining, None)
            if following is not None:
                enter(following)
            else:
                ordered.append(node)
                stack.pop()
    return ordered


def run_graph(graph: Graph, values: Mapping[str, Any], outputs: Sequence[str], context: Context) -> dict[str, Any]:
    """Runs a whole graph: the values of its inputs and initializers in, the values of the named outputs back."""
    scope = Scope(graph.name, graph.nodes, dict(values), context)
    needed, _ = scope.pending(outputs)
    require_rules(context, graph.name, needed)
    scope.compute(outputs)
    return {name: scope[name] for name in outputs}


def missing_values(graph: Graph, values: Mapping[str, Any], outputs: Iterable[str]) -> list[str]:
    """Names that the outputs need and that neither the values nor the nodes give."""
    return Scope(graph.name, graph.nodes, dict(values), Context({}, {})).pending(outputs)[1]


def run_node(scope: Scope, node: Node) -> tuple[Any, ...]:
    """The outputs of one node, whose inputs have been computed."""
    attributes = resolve(node.attributes, scope.attributes)
    inputs = tuple(scope[name] if name else None for name in node.inputs)
    if scope.context.on_host:
        inputs = tuple(static.on_host(value) for value in inputs)
    function = find_function(scope.context, node)
    try:
        if function is not None:
            return _run_function(scope, node, function, inputs, attributes)
        return _run_rule(scope, node, inputs, attributes)
    except StaticInputError as error:
        raise _explain_static(scope, node, error) from None
    except StaticValueError as error:
        error.node, error.input = node, ""  # what fails inside a body or a function cannot be helped from here
        raise error if error.located else error.at(_where(scope, node)) from error
    except OnnxTrainError as error:
        raise error if error.located else error.at(_where(scope, node)) from error
    except (TypeError, ValueError, LookupError, ArithmeticError, NotImplementedError) as error:
        shapes = ", ".join(_describe(value) for value in inputs)
        raise OperatorError(f"{_where(scope, node)} failed on ({shapes}).\n{error}").mark() from error


def resolve(attributes: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """A node's attributes with references replaced by the calling node's; one that is not given is absent."""
    if not any(isinstance(value, AttributeReference) for value in attributes.values()):
        return attributes
    resolved = {
        name: given.get(value.name) if isinstance(value, AttributeReference) else value
        for name, value in attributes.items()
    }
    return {name: value for name, value in resolved.items() if value is not None}


def _run_function(
    scope: Scope, node: Node, function: Function, inputs: tuple[Any, ...], attributes: Mapping[str, Any]
) -> tuple[Any, ...]:
    context = replace(
        scope.context,
        opset_imports=function.opset_imports,
        path=f"{scope.context.path}{identity(node)}/",
        given=frozenset(),  # those are names of another scope
    )
    values = dict(zip(function.inputs, (*inputs, *[None] * (len(function.inputs) - len(inputs))), strict=True))
    given = {inner: scope.stand_in(name) for inner, name in zip(function.inputs, node.inputs, strict=False)}
    body = Scope(
        function.name,
        function.nodes,
        values,
        context,
        attributes={**function.defaults, **attributes},
        stand_ins={name: value for name, value in given.items() if value is not None},
    )
    body.compute(function.outputs)
    return tuple(_with_stand_in(body[name], body.stand_in(name)) for name in function.outputs)


def _run_rule(scope: Scope, node: Node, inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    schema, rule = find_rule(scope.context, node)
    if schema is None or rule is None:
        raise UnsupportedOperatorError("There is no rule for this operator.")
    arguments = {
        name: GraphBody(scope, node, name, value) if isinstance(value, Graph) else value
        for name, value in attributes.items()
    }
    key = scope.context.node_key(node, attributes.get("seed")) if rule.draws else None
    stand_ins = tuple(scope.stand_in(name) for name in node.inputs)
    injected = Injected(key, len(node.outputs), stand_ins, scope.context.straight_through)
    bound = bind(rule, schema, inputs, arguments, injected)
    positional = bound.positional
    if not (rule.folds and bound.static):
        positional = tuple(
            value if rule.kind_at(i) is registry.Kind.VALUE else static.representable(value)
            for i, value in enumerate(positional)
        )
    with np.errstate(all="ignore"):  # a division by zero is no news at run time, so it is none while tracing
        results = _tuple(rule.function(*positional, **bound.keyword))
        for value in results:
            if isinstance(value, jax.Array):  # under jit nothing is allocated yet
                static.check_shape(value.shape)
        if not rule.carries or all(value is None for value in stand_ins):
            return results
        floats = _floats_for(schema, positional, stand_ins)
        moved = _tuple(rule.function(*floats, **bound.keyword))
    return tuple(
        _with_stand_in(value, other if dtypes.is_float(other.dtype) else None)
        for value, other in zip(results, moved, strict=True)
    )


def _tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _with_stand_in(value: Any, stand_in: Any) -> Any:
    return value if stand_in is None else registry.StraightThrough(value, stand_in)


def _floats_for(schema: schemas.Schema, positional: Sequence[Any], stand_ins: Sequence[Any]) -> list[Any]:
    """The inputs as floats with the gradients of their stand-ins, and with them others of the same type."""
    first = next(i for i, stand_in in enumerate(stand_ins) if stand_in is not None)
    kind, dtype = _type_at(schema, first), stand_ins[first].dtype
    floats = list(positional)
    for i, stand_in in enumerate(stand_ins):
        if stand_in is not None:
            floats[i] = levels.with_gradient_of(positional[i].astype(dtype), stand_in.astype(dtype))
        elif positional[i] is not None and _type_at(schema, i) == kind:
            floats[i] = positional[i].astype(dtype)
    return floats


def _type_at(schema: schemas.Schema, position: int) -> str:
    """What the schema calls the type of an input; a variadic one takes all from its own position on."""
    return schema.inputs[min(position, len(schema.inputs) - 1)].type


class GraphBody:
    """A graph attribute as a callable: see `registry.GraphCallable`."""

    def __init__(self, scope: Scope, node: Node, attribute: str, graph: Graph):
        self.scope = scope
        self.graph = graph
        self.path = f"{scope.context.path}{identity(node)}/{attribute}/"
        self.input_names = graph.input_names
        self.output_names = graph.output_names

    def __call__(self, *inputs: Any, iteration: Any = None) -> tuple[Any, ...]:
        context = replace(self.scope.context, path=self.path)
        if iteration is not None:
            context = replace(context, salts=(*context.salts, iteration))
        values = {**self.graph.initializers, **dict(zip(self.input_names, inputs, strict=False))}
        body = Scope(self.graph.name, self.graph.nodes, values, context, parent=self.scope)
        body.compute(self.output_names)
        return tuple(body[name] for name in self.output_names)


def _where(scope: Scope, node: Node) -> str:
    version = scope.context.opset_imports.get(node.domain, 0)
    return describe_node(node.op_type, node.name, scope.name, node.domain, version)


def _explain_static(scope: Scope, node: Node, error: StaticInputError) -> StaticValueError:
    name = node.inputs[error.position]
    source, path = _trace_back(scope, name)
    explained = StaticValueError(
        f"{_where(scope, node)}.\nInput '{error.parameter}' must be known while tracing, but it depends on {source!r}, "
        f"which is only known at run time.\n{' -> '.join([*path, error.parameter])}\n"
        f"Feed {source!r} as a static value (a numpy array that is not an argument of jit), or export the model with "
        "fixed shapes.",
        source=source,
    )
    explained.located = True
    explained.node, explained.input, explained.shape_like = node, name, error.shape_like
    return explained


def _trace_back(scope: Scope, name: str) -> tuple[str, list[str]]:
    """The traced value that a traced value comes from, and the way from there in words."""
    path: list[str] = []
    while True:
        here: Scope | None = scope
        while here is not None and (name not in here.producers or name in here.context.given):
            here = here.parent
        if here is None:
            return name, [name, *reversed(path)]
        scope, node = here, here.producers[name]
        path.append(f"{node.op_type} {(node.name or identity(node))!r}")
        # its inputs first, then what its bodies capture
        read = (*filter(None, node.inputs), *sorted(reads(node)))
        name = next((name for name in read if not static.is_static(scope[name])), "")
        if not name:
            return identity(node), list(reversed(path))


def _describe(value: Any) -> str:
    if value is None:
        return "absent"
    if hasattr(value, "dtype"):
        return f"{dtypes.name_of(value.dtype)}{list(value.shape)}"
    return type(value).__name__
