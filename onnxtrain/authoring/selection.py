"""Which weights a pattern means: by name, by the node that uses them, or by layer, counted from either end.

| pattern | weights |
|---|---|
| `encoder.*` | whose names match, as file names match in a shell |
| `node:/encoder/*` | that a node of a matching name uses, itself or inside it |
| `last:3`, `first:3` | of the last or first three layers |

A node without a name goes by its first output. A layer begins at a node with a kernel or an embedding, and has the
biases, scales and slopes up to the next one. A full name always means that weight, whatever characters it holds.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence

import onnx

from onnxtrain.authoring.roles import Role
from onnxtrain.authoring.survey import Use
from onnxtrain.errors import ModelError

_BEGINS_LAYER = (Role.KERNEL, Role.EMBEDDING)


def select(patterns: Sequence[str], uses: Mapping[str, Use], argument: str) -> set[str]:
    """The names of the weights that match any of the patterns; `uses` has the weights in order.

    Raises:
      ModelError: a pattern matches nothing; the message names `argument`, which it stands in.
    """
    selected: set[str] = set()
    for pattern in patterns:
        found = _match(pattern, uses, argument)
        if not found:
            raise _no_match(pattern, uses, argument)
        selected |= found
    return selected


def patterns_of(patterns: str | Sequence[str]) -> tuple[str, ...]:
    """Patterns as a caller gives them: one alone, or several."""
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches a name; one such as `layers[0].weight` is also a glob pattern that misses itself."""
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def layers(uses: Mapping[str, Use]) -> list[list[str]]:
    """The weights of each layer, in the order in which the model applies them."""
    found: list[list[str]] = []
    current: onnx.NodeProto | None = None
    for name, use in uses.items():
        begins = use.role in _BEGINS_LAYER and use.node is not current
        if begins or not found:
            found.append([])
            current = use.node
        found[-1].append(name)
    return found


def listed(names: Iterable[str], most: int = 8) -> str:
    """Names in words, the first few of many."""
    shown = list(names)
    text = ", ".join(map(repr, shown[:most]))
    return text + (f" and {len(shown) - most} more" if len(shown) > most else "")


def _match(pattern: str, uses: Mapping[str, Use], argument: str) -> set[str]:
    if pattern in uses:
        return {pattern}
    kind, _, rest = pattern.partition(":")
    if kind == "node":
        return {name for name, use in uses.items() if any(matches(place, rest) for place in use.places)}
    if kind in ("first", "last") and rest.isdecimal():
        return _outer_layers(kind, int(rest), uses, argument)
    return {name for name in uses if matches(name, pattern)}


def _outer_layers(kind: str, count: int, uses: Mapping[str, Use], argument: str) -> set[str]:
    every = layers(uses)
    if not 1 <= count <= len(every):
        raise ModelError(f"{argument}='{kind}:{count}' must be 1 to {len(every)}: so many layers the model has.")
    chosen = every[:count] if kind == "first" else every[-count:]
    return {name for layer in chosen for name in layer}


def _no_match(pattern: str, uses: Mapping[str, Use], argument: str) -> ModelError:
    kind, _, rest = pattern.partition(":")
    wanted, known, what = pattern, list(uses), "weight"
    if kind == "node":
        wanted, known, what = rest, sorted({place for use in uses.values() for place in use.places}), "node"
    close = difflib.get_close_matches(wanted, known, n=3, cutoff=0.4)
    hint = f"Did you mean {', '.join(map(repr, close))}?" if close else f"The {what}s are {listed(known)}."
    return ModelError(f"{argument}={pattern!r} matches no {what} of the model. {hint}")
