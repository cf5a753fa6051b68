"""The operator Gradient: partial derivatives of one value with respect to others, anywhere in a graph.

The nodes between `xs` and `y` run once, under `jax.vjp`, and every value that they compute on the way is kept for
the rest of the graph; several Gradient nodes over one `y` share one pullback (G-06). The graph is cut at `xs` and
`zs` (G-02, G-04), and fed other tensors it is evaluated once more at those (G-03). Since all of this is done
by running part of a scope again under differentiation, a Gradient inside that part nests, to any order (G-05).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from onnxtrain import dtypes
from onnxtrain.errors import ModelError, ModelWarning, OperatorError, StaticValueError
from onnxtrain.graph.model import Node
from onnxtrain.graph.order import reads
from onnxtrain.lowering import static

if TYPE_CHECKING:
    from onnxtrain.lowering.interpreter import Scope


@dataclass(frozen=True)
class Request:
    """What one Gradient node asks for."""

    node: Node
    xs: tuple[str, ...]
    zs: tuple[str, ...]
    y: str

    @property
    def substitutes(self) -> bool:
        """Whether other tensors are fed than those that `xs` and `zs` name."""
        return self.node.inputs != (*self.xs, *self.zs)


def differentiate(scope: Scope, node: Node, others: Sequence[Node]) -> None:
    """Computes the outputs of a Gradient node, and of others over the same `y` that can share its pullback."""
    request = read_request(node)
    if request.substitutes:
        _differentiate_elsewhere(scope, request)
        return
    requests = [request]
    for other in (read_request(other) for other in others if other is not node):
        if other.y == request.y and not other.substitutes and _independent(scope, [*requests, other]):
            requests.append(other)
    _differentiate_here(scope, requests)


def read_request(node: Node) -> Request:
    """The attributes of a Gradient node, checked against each other."""
    xs, zs, y = node.attributes.get("xs", ()), node.attributes.get("zs", ()), node.attributes.get("y", "")
    if not xs or not y:
        raise ModelError(f"Gradient {node.name!r} needs the attributes 'xs' and 'y'; it has {sorted(node.attributes)}.")
    if len(node.inputs) != len(xs) + len(zs):
        raise ModelError(
            f"Gradient {node.name!r} has {len(node.inputs)} inputs, but names {len(xs)} xs and {len(zs)} zs: "
            "there is one input for each of them, in that order."
        )
    return Request(node, tuple(xs), tuple(zs), y)


def _differentiate_here(scope: Scope, requests: Sequence[Request]) -> None:
    xs = tuple(dict.fromkeys(x for request in requests for x in request.xs))
    zs = tuple(dict.fromkeys(z for request in requests for z in request.zs if z not in xs))
    scope.compute((*xs, *zs))
    primals = {x: _differentiable(scope, x) for x in xs}
    gradients, computed, stand_ins = _pull_back(scope, primals, {z: scope[z] for z in zs}, requests[0].y)
    new = computed.keys() - scope.values.keys()
    scope.values.update({name: computed[name] for name in new})
    scope.stand_ins.update({name: value for name, value in stand_ins.items() if name in new})
    for request in requests:
        scope.values.update(_named_outputs(request, gradients))


def _differentiate_elsewhere(scope: Scope, request: Request) -> None:
    scope.compute(request.node.inputs)
    fed = dict(zip((*request.xs, *request.zs), request.node.inputs, strict=True))
    primals = {x: _differentiable(scope, fed[x]) for x in request.xs}
    frozen = {z: scope[fed[z]] for z in request.zs if z not in primals}
    gradients, _, _ = _pull_back(scope, primals, frozen, request.y)
    scope.values.update(_named_outputs(request, gradients))


def _named_outputs(request: Request, gradients: Mapping[str, Any]) -> dict[str, Any]:
    return {name: gradients[x] for name, x in zip(request.node.outputs, request.xs, strict=False) if name}


def _pull_back(
    scope: Scope, primals: Mapping[str, Any], frozen: Mapping[str, Any], y: str
) -> tuple[Mapping[str, Any], dict[str, Any], dict[str, Any]]:
    """Gradients of `y` by name of x, and the values of this scope that were computed on the way, with stand-ins."""
    stale = _dependents(scope, frozenset((*primals, *frozen)), y)
    static_values: dict[str, Any] = {}

    def forward(variables: Mapping[str, Any]) -> tuple[Any, tuple[dict[str, Any], dict[str, Any]]]:
        inner = scope.overlay(stale, {**frozen, **variables})
        inner.compute([y])
        computed = {name: value for name, value in inner.values.items() if name in stale or name not in scope.values}
        traced_values = {name: value for name, value in computed.items() if not static.is_static(value)}
        static_values.update({name: value for name, value in computed.items() if name not in traced_values})
        return static.traced(inner[y]), (traced_values, inner.stand_ins)

    try:
        result, pullback, (traced_values, stand_ins) = jax.vjp(forward, dict(primals), has_aux=True)
    except StaticValueError as error:
        error.differentiated = True
        raise
    if not dtypes.is_float(result.dtype):
        raise OperatorError(f"Gradient of {y!r}: it is {result.dtype}, and only floating-point values have gradients.")
    if result.ndim:
        warnings.warn(
            f"Gradient: {y!r} has shape {list(result.shape)}; the gradient of its sum is taken.",
            ModelWarning,
            stacklevel=2,
        )
    (gradients,) = pullback(jnp.ones_like(result))
    return gradients, {**static_values, **traced_values}, stand_ins


def _differentiable(scope: Scope, name: str) -> jax.Array:
    value = static.traced(scope[name])
    if not dtypes.is_float(value.dtype):
        raise OperatorError(
            f"Gradient with respect to {name!r}: it is {value.dtype}, and only floating-point values have gradients."
        )
    return value


def _independent(scope: Scope, requests: Sequence[Request]) -> bool:
    """Whether none of the values at which these nodes cut the graph is computed from another.

    If one is, the cut that one node asks for would hide a path that another node has to follow.
    """
    named = frozenset(name for request in requests for name in (*request.xs, *request.zs))
    changed = set(named)
    for node in scope.ancestors(named):
        if not changed.isdisjoint(reads(node)):
            if not named.isdisjoint(node.outputs):
                return False
            changed.update(node.outputs)
    return True


def _dependents(scope: Scope, sources: frozenset[str], y: str) -> frozenset[str]:
    """The sources and all that lies between them and `y`: what has other values when the sources have."""
    given = scope.context.given
    changed = set(sources)
    for node in scope.ancestors([y], stop=sources | given):
        if not changed.isdisjoint(reads(node)):
            changed.update(output for output in node.outputs if output and output not in given)
    return frozenset(changed)
