"""Runs one node on its own, under jit, with every input traced unless it is named static."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax

import onnxtrain.lowering  # noqa: F401  (importing it registers the rules)
from onnxtrain.graph.model import Graph, Node
from onnxtrain.lowering import static
from onnxtrain.lowering.context import Context
from onnxtrain.lowering.interpreter import run_graph


def run_node(
    op_type: str,
    inputs: Sequence[Any],
    *,
    opset: int,
    domain: str = "",
    outputs: int = 1,
    static_inputs: Collection[int] = (),
    seed: int = 0,
    salts: tuple[Any, ...] = (),
    name: str = "",
    attributes: Mapping[str, Any] | None = None,
    **more_attributes: Any,
) -> tuple[Any, ...]:
    """The outputs of the node; None among the inputs is an absent one. Strings and lists are static anyway."""
    names = tuple("" if value is None else f"input{i}" for i, value in enumerate(inputs))
    results = tuple(f"{name}output{i}" for i in range(outputs))
    graph = Graph(
        "test", (), (), (Node(op_type, domain, name, names, results, {**(attributes or {}), **more_attributes}),)
    )
    context = Context({}, {domain: opset}, key=jax.random.key(seed), salts=salts)
    values = {key: value for key, value in zip(names, inputs, strict=True) if key}
    fixed = {
        key: value
        for position, (key, value) in enumerate(zip(names, inputs, strict=True))
        if key and (position in static_inputs or not hasattr(value, "dtype") or value.dtype == object)
    }
    known: dict[str, Any] = {}

    def run(fed: dict[str, Any]) -> dict[str, Any]:
        found = run_graph(graph, {**fixed, **fed}, results, context)
        known.update({key: value for key, value in found.items() if static.is_static(value)})
        return {key: value for key, value in found.items() if key not in known}

    found = {**jax.jit(run)({key: value for key, value in values.items() if key not in fixed}), **known}
    return tuple(found[key] for key in results)
