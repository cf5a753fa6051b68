"""Runs graphs: looks values up by name, computes what is missing, and says where it happened when something fails.

Evaluation goes by demand. A scope holds the values that are known so far; `Scope.compute` finds the nodes that the
wanted names need and runs their rules in order, so dead nodes cost nothing and nodes may stand in any order. Values
are numpy arrays while they are static and JAX arrays once they depend on something traced.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from onnxtrain.graph.model import AttributeReference, Function, FunctionKey, Graph, Node
from onnxtrain.graph.order import is_gradient, reads
from onnxtrain.lowering import gradient, registry, static
from onnxtrain.lowering.binding import Injected, bind
from onnxtrain.lowering.static import StaticInputError


@dataclass(frozen=True)
class Context:
    """What a graph is run with.

    Attributes:
      functions: the model-local functions.
      opset_imports: the opset of each domain for the nodes of this graph.
      key: the PRNG key of the session, or None where no random node may run.
      salts: integers, traced or not, that tell this run from others: the algorithm, the step, the loop's iteration.
      path: the calls that led here, as a prefix of node identities.
    """

    functions: Mapping[FunctionKey, Function]
    opset_imports: Mapping[str, int]
    key: Any = None
    salts: tuple[Any, ...] = ()
    path: str = ""

    def node_key(self, node: Node, seed: float | None) -> Any:
        """The node's own stream (R-01), from the session's seed or, where it has one, the node's (R-02)."""
        key = self.key if seed is None else jax.random.key(int(np.float32(seed).view(np.uint32)))
        if key is None:
            return None
        for salt in self.salts:
            key = jax.random.fold_in(key, salt)
        return jax.random.fold_in(key, zlib.crc32(f"{self.path}{_identity(node)}".encode()))


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
    ):
        self.name = name
        self.nodes = nodes
        self.values = values
        self.context = context
        self.parent = parent
        self.attributes = attributes if attributes is not None else (parent.attributes if parent else {})
        self.producers = {output: node for node in nodes for output in node.outputs if output}

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
            self.values.update(zip(node.outputs, run_node(self, node), strict=False))

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
        parent = self.parent.overlay(stale, rest) if self.parent is not None else None
        return Scope(self.name, self.nodes, kept | own, self.context, parent=parent, attributes=self.attributes)

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
    require_rules(scope, outputs)
    scope.compute(outputs)
    return {name: scope[name] for name in outputs}


def run_node(scope: Scope, node: Node) -> tuple[Any, ...]:
    """The outputs of one node, whose inputs have been computed."""
    attributes = resolve(node.attributes, scope.attributes)
    inputs = tuple(scope[name] if name else None for name in node.inputs)
    function = find_function(scope.context, node)
    try:
        if function is not None:
            return _run_function(scope, node, function, inputs, attributes)
        return _run_rule(scope, node, inputs, attributes)
    except StaticInputError as error:
        raise _explain_static(scope, node, error) from None
    except OnnxTrainError as error:
        raise error if error.located else error.at(_where(scope, node)) from error
    except (TypeError, ValueError, LookupError, ArithmeticError, NotImplementedError) as error:
        shapes = ", ".join(_describe(value) for value in inputs)
        raise OperatorError(f"{_where(scope, node)} failed on ({shapes}).\n{error}").mark() from error


def find_function(context: Context, node: Node) -> Function | None:
    """The model-local function that a node calls, if it calls one."""
    return context.functions.get((node.domain, node.op_type, node.overload))


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
        scope.context, opset_imports=function.opset_imports, path=f"{scope.context.path}{_identity(node)}/"
    )
    values = dict(zip(function.inputs, (*inputs, *[None] * (len(function.inputs) - len(inputs))), strict=True))
    body = Scope(function.name, function.nodes, values, context, attributes={**function.defaults, **attributes})
    body.compute(function.outputs)
    return tuple(body[name] for name in function.outputs)


def _run_rule(scope: Scope, node: Node, inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    schema, rule = find_rule(scope.context, node)
    if schema is None or rule is None:
        raise UnsupportedOperatorError("There is no rule for this operator.")
    arguments = {
        name: GraphBody(scope, node, name, value) if isinstance(value, Graph) else value
        for name, value in attributes.items()
    }
    key = scope.context.node_key(node, attributes.get("seed")) if rule.draws else None
    bound = bind(rule, schema, inputs, arguments, Injected(key, len(node.outputs)))
    positional = bound.positional
    if not (rule.folds and bound.static):
        positional = tuple(
            value if rule.kind_at(i) is registry.Kind.VALUE else static.representable(value)
            for i, value in enumerate(positional)
        )
    with np.errstate(all="ignore"):  # a division by zero is no news at run time, so it is none while tracing
        result = rule.function(*positional, **bound.keyword)
    return result if isinstance(result, tuple) else (result,)


class GraphBody:
    """A graph attribute as a callable: see `registry.GraphCallable`."""

    def __init__(self, scope: Scope, node: Node, attribute: str, graph: Graph):
        self.scope = scope
        self.graph = graph
        self.path = f"{scope.context.path}{_identity(node)}/{attribute}/"
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


def find_rule(context: Context, node: Node) -> tuple[schemas.Schema | None, registry.Rule | None]:
    """The schema that a node means under its opset, and the rule that runs it."""
    opset = context.opset_imports.get(node.domain)
    newest = schemas.NEWEST_TESTED.get(node.domain)
    if opset is None:
        return None, None
    if newest is not None and opset > newest:
        raise UnsupportedOperatorError(
            f"Opset {opset} of {node.domain or 'ai.onnx'} is newer than {newest}, the newest that onnxtrain was tested "
            "with. Export the model with an older opset, or upgrade onnxtrain."
        )
    schema = schemas.find(node.domain, node.op_type, opset)
    return schema, schema and registry.find(node.domain, node.op_type, schema.since_version)


def require_rules(scope: Scope, outputs: Iterable[str]) -> None:
    """Raises `UnsupportedOperatorError` with every operator that the outputs need and that has no rule."""
    needed, _ = scope.pending(outputs)
    missing: dict[tuple[str, str], list[str]] = {}
    for context, graph, node in _every_node(scope.context, scope.name, needed):
        if is_gradient(node) or find_function(context, node) is not None:
            continue
        if find_rule(context, node)[1] is None:
            label = (
                f"{node.op_type} ({node.domain or 'ai.onnx'} {context.opset_imports.get(node.domain, 'not imported')})"
            )
            missing.setdefault((label, graph), []).append(node.name or next(filter(None, node.outputs), ""))
    if missing:
        lines = [f"  {label} in graph {graph!r}: {_some(names)}" for (label, graph), names in missing.items()]
        raise UnsupportedOperatorError(
            "\n".join(["The model needs operators that onnxtrain has no rule for:", *lines])
            + "\nReplace them, add their body as a model-local function, or ask only for outputs that do not need them."
        )


def _every_node(context: Context, graph: str, nodes: Iterable[Node]) -> Iterator[tuple[Context, str, Node]]:
    """Nodes with those of their subgraphs and of the functions they call, each function once."""
    entered: set[FunctionKey] = set()
    stack = [(context, graph, node) for node in nodes]
    while stack:
        context, graph, node = stack.pop()
        yield context, graph, node
        for subgraph in node.subgraphs:
            stack.extend((context, subgraph.name, inner) for inner in subgraph.nodes)
        function = find_function(context, node)
        if function is not None and function.key not in entered:
            entered.add(function.key)
            inside = replace(context, opset_imports=function.opset_imports)
            stack.extend((inside, function.name, inner) for inner in function.nodes)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _identity(node: Node) -> str:
    """What tells a node from all others in its graph: node names may repeat or be absent, outputs may not."""
    return next((output for output in node.outputs if output), node.name)


def _where(scope: Scope, node: Node) -> str:
    version = scope.context.opset_imports.get(node.domain, 0)
    return describe_node(node.op_type, node.name, scope.name, node.domain, version)


def _explain_static(scope: Scope, node: Node, error: StaticInputError) -> OnnxTrainError:
    source, path = _trace_back(scope, node.inputs[error.position])
    return StaticValueError(
        f"{_where(scope, node)}.\nInput '{error.parameter}' must be known while tracing, but it depends on {source!r}, "
        f"which is only known at run time.\n{' -> '.join([*path, error.parameter])}\n"
        f"Feed {source!r} as a static value (a numpy array that is not an argument of jit), or export the model with "
        "fixed shapes.",
        source=source,
    ).mark()


def _trace_back(scope: Scope, name: str) -> tuple[str, list[str]]:
    """The traced value that a traced value comes from, and the way from there in words."""
    path: list[str] = []
    while True:
        here: Scope | None = scope
        while here is not None and name not in here.producers:
            here = here.parent
        if here is None:
            return name, [name, *reversed(path)]
        scope, node = here, here.producers[name]
        path.append(f"{node.op_type} {(node.name or _identity(node))!r}")
        name = next((read for read in node.inputs if read and not static.is_static(scope[read])), "")
        if not name:
            return _identity(node), list(reversed(path))


def _describe(value: Any) -> str:
    if value is None:
        return "absent"
    if hasattr(value, "dtype"):
        return f"{dtypes.name_of(value.dtype)}{list(value.shape)}"
    return type(value).__name__
