"""What the nodes of a graph mean: which functions and opsets they refer to, which rule runs each, and who may draw."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from onnxtrain import schema as schemas
from onnxtrain.errors import UnsupportedOperatorError
from onnxtrain.graph.model import Function, FunctionKey, Node
from onnxtrain.graph.order import is_gradient
from onnxtrain.lowering import registry

# What onnxruntime writes at the level ORT_ENABLE_ALL: weights in blocks whose size the file does not say.
_MADE_FOR_ONE_MACHINE = ("com.microsoft.nchwc", "com.ms.internal.nhwc")


@dataclass(frozen=True)
class Context:
    """What a graph is run with.

    Attributes:
      functions: the model-local functions.
      opset_imports: the opset of each domain for the nodes of this graph.
      key: the PRNG key of the session, or None where no random node may run.
      salts: integers, traced or not, that tell this run from others: the algorithm, the step, the loop's iteration.
      path: the calls that led here, as a prefix of node identities.
      given: values of the graph that the caller knows: no node computes them, and Gradient takes them as constants.
      on_host: whether rules get numpy arrays, so that every value is known; only outside of JAX's transformations.
      straight_through: whether gradients pass through rounding as if it were not there; otherwise they are zero.
    """

    functions: Mapping[FunctionKey, Function]
    opset_imports: Mapping[str, int]
    key: Any = None
    salts: tuple[Any, ...] = ()
    path: str = ""
    given: frozenset[str] = frozenset()
    on_host: bool = False
    straight_through: bool = True

    def node_key(self, node: Node, seed: float | None) -> Any:
        """The node's own stream (R-01), from the session's seed or, where it has one, the node's (R-02)."""
        key = self.key if seed is None else jax.random.key(int(np.float32(seed).view(np.uint32)))
        if key is None:
            return None
        for salt in self.salts:
            key = jax.random.fold_in(key, salt)
        return jax.random.fold_in(key, zlib.crc32(f"{self.path}{identity(node)}".encode()))


def find_function(context: Context, node: Node) -> Function | None:
    """The model-local function that a node calls, if it calls one."""
    return context.functions.get((node.domain, node.op_type, node.overload))


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
    return registry.resolve(node.domain, node.op_type, opset)


def require_rules(context: Context, graph: str, nodes: Iterable[Node]) -> None:
    """Raises `UnsupportedOperatorError` with every operator that has no rule, among the nodes and what they hold."""
    missing: dict[tuple[str, str], list[str]] = {}
    for within, place, node in _every_node(context, graph, nodes):
        if is_gradient(node) or find_function(within, node) is not None:
            continue
        if find_rule(within, node)[1] is None:
            label = (
                f"{node.op_type} ({node.domain or 'ai.onnx'} {within.opset_imports.get(node.domain, 'not imported')})"
            )
            missing.setdefault((label, place), []).append(node.name or identity(node))
    if missing:
        lines = [f"  {label} in graph {place!r}: {_some(names)}" for (label, place), names in missing.items()]
        help = "Replace them, add their body as a model-local function, or ask only for outputs that do not need them."
        if any(f"({domain} " in label for label, _ in missing for domain in _MADE_FOR_ONE_MACHINE):
            help = (
                "onnxruntime has laid this model out for one machine. Optimize the original once more, up to the level "
                "ORT_ENABLE_EXTENDED (2 in Optimum), or take it as it was."
            )
        raise UnsupportedOperatorError(
            "\n".join(["The model needs operators that onnxtrain has no rule for:", *lines, help])
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


def identity(node: Node) -> str:
    """What tells a node from all others in its graph: node names may repeat or be absent, outputs may not."""
    return next((output for output in node.outputs if output), node.name)
