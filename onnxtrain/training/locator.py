"""Finds where NaN or infinity comes from: the first node of a step that gave it, and what that node read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxtrain.dtypes import is_float, name_of
from onnxtrain.graph.model import Graph, Node
from onnxtrain.graph.order import describe, needed_nodes, reads

if TYPE_CHECKING:
    from onnxtrain.session import TrainingSession


@dataclass(frozen=True)
class Range:
    """A value in short.

    Attributes:
      name: the name of the value.
      type: element type and shape, such as ``float32[32, 10]``.
      lowest: the smallest finite element; None where there is none.
      highest: the largest finite element; None where there is none.
      nans: how many elements are NaN.
      infinities: how many elements are infinite.
    """

    name: str
    type: str
    lowest: float | None
    highest: float | None
    nans: int
    infinities: int

    def __str__(self) -> str:
        parts = [f"{self.type}"]
        if self.lowest is not None:
            parts[0] += f" from {self.lowest:.6g} to {self.highest:.6g}"
        if self.nans:
            parts.append(f"{self.nans} NaN")
        if self.infinities:
            parts.append(f"{self.infinities} infinite")
        return f"{self.name!r}: {', '.join(parts)}"


@dataclass(frozen=True)
class NonFinite:
    """The first value of a step that is not finite, on the way to a loss or a state variable that is not.

    Attributes:
      value: that value.
      node: the node that gave it; None for a fed input, a state variable or a constant, which was so before the step.
      graph: where the node stands.
      inputs: what the node read.
    """

    value: Range
    node: Node | None
    graph: str
    inputs: tuple[Range, ...]

    def __str__(self) -> str:
        if self.node is None:
            return f"Before any node ran, {self.value} was fed or stored."
        lines = [f"The first value that is not finite comes from {describe(self.node)} in graph {self.graph!r}:"]
        lines += [f"  it gave {self.value}", *(f"  it read {value}" for value in self.inputs)]
        return "\n".join(lines)


def find_nonfinite(
    session: TrainingSession, inputs: Mapping[str, Any], algorithm: int | None = None
) -> NonFinite | None:
    """The node that makes the next step of a session give NaN or infinity.

    The step is run with every value of its graph as an output, and the session is put back to where it was. A value
    that is infinite on purpose, such as a mask in front of a Softmax, is passed over: only what spreads to an output
    or an update counts. A value inside a subgraph or a local function is reported as the node that runs it.

    Args:
      session: its current state is the one that the step starts from.
      inputs: the batch, as for `session.step`.
      algorithm: look into this one only; by default into all of them, in order.

    Returns:
      The first value that is not finite, or None when all that the step gives is.

    Raises:
      InputError: the batch does not fit the model.

    Example::

        cause = find_nonfinite(session, {"x": x, "labels": labels})
        print(cause)
    """
    before = session.state
    program = session.program
    indices = range(len(program.combined_graphs)) if algorithm is None else (algorithm,)
    try:
        for index in indices:
            accepted = program.step_inputs(index)
            fed = {name: value for name, value in inputs.items() if algorithm is not None or name in accepted}
            found = _search(session, index, fed)
            if found:
                return found
            # All algorithms are one iteration, so the next one runs at the same step.
            session.state = replace(session.state, step=before.step)
        return None
    finally:
        session.state = before


def range_of(name: str, value: Any) -> Range:
    """The range of an array."""
    array = np.asarray(value)
    kind = f"{name_of(array.dtype)}{list(array.shape)}"
    if not (is_float(array.dtype) or array.dtype.kind in "iu"):
        return Range(name, kind, None, None, 0, 0)
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    ends = (float(finite.min()), float(finite.max())) if finite.size else (None, None)
    return Range(name, kind, *ends, int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum()))


def is_finite(value: Any) -> bool:
    """Whether a value has no NaN and no infinity; what is no array of floats has none."""
    if not (hasattr(value, "dtype") and is_float(value.dtype)):
        return True
    array = np.asarray(value)
    return bool(np.isfinite(array if array.dtype.kind == "f" else array.astype(np.float32)).all())


def _search(session: TrainingSession, index: int, fed: Mapping[str, Any]) -> NonFinite | None:
    program = session.program
    graph = program.combined_graphs[index]
    updates = [output for _, output in session.model.training_info[index].update_binding]
    results = list(dict.fromkeys((*program.step_outputs(index), *updates)))
    nodes = needed_nodes(graph.nodes, results)
    values = session.step(fed, index, outputs=_values_of(nodes, results))
    broken = {name for name, value in values.items() if not is_finite(value)}
    spread = {name for name in results if name in broken}
    sources: list[Node] = []
    for node in reversed(nodes):
        if spread.intersection(node.outputs):
            from_before = broken & reads(node)
            spread |= from_before
            sources += [] if from_before else [node]
    if not spread:
        return None
    return _describe_first(graph, nodes, sources, spread, values)


def _values_of(nodes: Iterable[Node], results: Sequence[str]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for node in nodes:
        names.update(dict.fromkeys(sorted(reads(node))))
        names.update(dict.fromkeys(name for name in node.outputs if name))
    return tuple(names | dict.fromkeys(results))


def _describe_first(
    graph: Graph, nodes: Sequence[Node], sources: Sequence[Node], spread: set[str], values: Mapping[str, Any]
) -> NonFinite:
    written = {name for node in nodes for name in node.outputs}
    stored = sorted(spread - written)
    if stored:  # what was broken before the step explains whatever else is
        return NonFinite(range_of(stored[0], values[stored[0]]), None, graph.name, ())
    node = sources[-1]  # they were collected from the end
    output = next(name for name in node.outputs if name in spread)
    read = tuple(range_of(name, values[name]) for name in sorted(reads(node)) if hasattr(values[name], "dtype"))
    return NonFinite(range_of(output, values[output]), node, graph.name, read)
