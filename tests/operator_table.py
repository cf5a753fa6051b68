"""What is known of every operator, as a table; `python -m tests.operator_table` writes docs/operators.md from it.

Versions come from `onnx.defs`, limits from the rules' signatures and docstrings, gradients from the gradient harness,
and what leaves compiled code from `lowering/host_cases.toml`.
"""

from __future__ import annotations

import inspect
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from onnxtrain import schema as schemas
from onnxtrain.lowering import registry
from onnxtrain.lowering.registry import Kind, Rule
from tests.lowering import gradient_cases
from tests.lowering.backend_cases import HOST_CASES, load_cases

ROOT = Path(__file__).parents[1]
NOTES = ROOT / "docs" / "operator_notes.toml"
TABLE = ROOT / "docs" / "operators.md"

DOMAINS: Mapping[str, str] = {
    "": "ai.onnx",
    "ai.onnx.ml": "ai.onnx.ml",
    "ai.onnx.preview": "ai.onnx.preview",
    "ai.onnx.preview.training": "ai.onnx.preview.training",
    "com.microsoft": "com.microsoft, of onnxruntime",
    "qonnx.custom_op.general": "qonnx.custom_op.general; onnx.brevitas and finn.custom_op.general mean the same",
}

PREFACE = """\
# Operators

Every operator that onnxtrain runs, with the versions that a rule handles.

*Runs*: a **compiled** operator becomes part of one function that XLA compiles. Of ONNX's {cases:,} public cases
{compiled:,} run as one such function; the others do not, because of {counts}.
What is on the **host** runs between compiled parts in sessions, and the pure functions refuse it. Strings stay on the
host with every operator that takes them.

*Gradient*: **yes** where that of every float input is checked against finite differences, **-** where no float goes in
or none comes out. An input without a gradient to check has a reason:

{reasons}

*Known while tracing*: such an input is a constant of the compiled function. It may be computed from shapes and
constants. A session takes a small one that is fed as such, and fetches a computed one from the device before it
compiles the rest.

Written by `python -m tests.operator_table`; do not edit.
"""

HEAD = "| operator | versions | runs | gradient | notes and limits |\n|---|---|---|---|---|\n"

_STATIC_KINDS = frozenset({Kind.INTS, Kind.INT, Kind.FLOATS, Kind.FLOAT, Kind.BOOL, Kind.STATIC})
# The group of gradient_exceptions.toml whose inputs do have a gradient, though not that of the function.
_STRAIGHT_THROUGH = "straight_through"


@dataclass(frozen=True)
class Operator:
    """An operator and its rules, oldest first; the interpreter runs those without any."""

    domain: str
    name: str
    rules: tuple[Rule, ...]

    def __str__(self) -> str:
        """Its name in the files of exceptions and notes."""
        return f"{self.domain}:{self.name}" if self.domain else self.name


def operators() -> tuple[Operator, ...]:
    """Every operator of the table, by domain and name."""
    rules: dict[tuple[str, str], list[Rule]] = defaultdict(list)
    rules["ai.onnx.preview.training", "Gradient"] = []
    for rule in registry.all_rules():
        rules[rule.domain, rule.op_type].append(rule)
    return tuple(Operator(*key, tuple(found)) for key, found in sorted(rules.items()) if key[0] in DOMAINS)


def render() -> str:
    """The text of docs/operators.md."""
    parts = [_preface()]
    for domain, members in groupby(operators(), key=lambda operator: operator.domain):
        parts += [f"\n## {DOMAINS[domain]}\n\n", HEAD, *map(_row, members)]
    return "".join(parts)


def host_groups() -> Mapping[str, Mapping[str, Any]]:
    """What does not run as one compiled function: cases, operators and the reason, by what it is about."""
    return tomllib.loads(HOST_CASES.read_text())


def _preface() -> str:
    groups = {name: group for name, group in host_groups().items() if group["cases"]}
    cases, on_host = len(load_cases()), sum(len(group["cases"]) for group in groups.values())
    counts = [f"{_words(name)} ({len(group['cases'])})" for name, group in groups.items()]
    reasons = (f"- *{_words(name)}*: {group['reason']}" for name, group in _exceptions().items())
    return PREFACE.format(
        cases=cases,
        compiled=cases - on_host,
        counts=f"{', '.join(counts[:-1])} and {counts[-1]}",
        reasons="\n".join(reasons),
    )


def _row(operator: Operator) -> str:
    versions = ", ".join(map(str, _versions(operator)))
    notes = " ".join(_notes(operator)).replace("|", r"\|")
    return f"| {operator.name} | {versions} | {_runs(operator)} | {_gradient(operator)} | {notes} |\n"


def _versions(operator: Operator) -> list[int]:
    newest = schemas.NEWEST_TESTED.get(operator.domain, 0)
    known = [version for version in schemas.versions(operator.domain, operator.name) if version <= newest]
    return [v for v in known if not _is_deprecated(operator, v)] or [rule.since for rule in operator.rules]


def _is_deprecated(operator: Operator, version: int) -> bool:
    schema = schemas.find(operator.domain, operator.name, version)
    return schema is not None and schema.deprecated


def _runs(operator: Operator) -> str:
    reasons = [_words(name) for name, group in host_groups().items() if str(operator) in group["operators"]]
    if any(rule.host for rule in operator.rules):
        return f"host: {', '.join(reasons)}"
    return f"compiled; host for {', '.join(reasons)}" if reasons else "compiled"


def _gradient(operator: Operator) -> str:
    if not operator.rules:
        return "yes, to any order"
    inputs = sorted(
        known
        for known in gradient_cases.differentiable_inputs()
        if (known.domain, known.op_type) == (operator.domain, operator.name)
    )
    if not inputs:
        return "-"
    without: dict[str, list[str]] = defaultdict(list)
    for known in inputs:
        if known not in gradient_cases.covered_inputs() and str(known) in gradient_cases.exceptions():
            without[_names_of_reasons()[gradient_cases.exceptions()[str(known)]]].append(f"`{known.name}`")
    parts = [f"{', '.join(names)} {_words(reason)}" for reason, names in without.items()]
    if sum(map(len, without.values())) < len(inputs):
        return "; ".join(["yes", *parts])
    word = "" if set(without) == {_STRAIGHT_THROUGH} else "no: "
    return word + ", ".join(map(_words, without))


@cache
def _exceptions() -> Mapping[str, Mapping[str, Any]]:
    """The groups of inputs without a gradient that is checked, as the harness has them."""
    groups = tomllib.loads(gradient_cases.EXCEPTIONS.read_text())
    return {name: group for name, group in groups.items() if "inputs" in group}


@cache
def _names_of_reasons() -> Mapping[str, str]:
    return {group["reason"]: name for name, group in _exceptions().items()}


def _notes(operator: Operator) -> Iterator[str]:
    for rule in operator.rules:
        text = _documentation(rule)
        if text:
            yield text if len(operator.rules) == 1 else f"*From version {rule.since}:* {text}"
    for rule in operator.rules[-1:]:
        names = [f"`{p.name}`" for p in rule.parameters if p.positional and p.kind in _STATIC_KINDS]
        if names and not rule.host:
            yield f"Known while tracing: {', '.join(names)}."
        if rule.draws:
            yield "It draws from the session's random stream."
    extra = tomllib.loads(NOTES.read_text()).get(str(operator))
    if extra:
        yield extra


def _documentation(rule: Rule) -> str:
    """The docstring of a rule of ours; a function of JAX or numpy has one that is about something else."""
    ours = getattr(rule.function, "__module__", "").startswith("onnxtrain.")
    return " ".join((inspect.getdoc(rule.function) or "").split()) if ours else ""


def _words(name: str) -> str:
    return name.replace("_", " ")


if __name__ == "__main__":
    TABLE.write_text(render(), encoding="utf-8")
