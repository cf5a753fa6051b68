"""docs/operators.md says what holds, and of every operator."""

from __future__ import annotations

import tomllib

import pytest

from onnxtrain.lowering import registry
from tests.operator_table import DOMAINS, NOTES, TABLE, Operator, host_groups, operators, render

QONNX = {"onnx.brevitas", "finn.custom_op.general"}
LISTED = {name: group["operators"] for name, group in host_groups().items()}


def test_the_table_is_up_to_date() -> None:
    up_to_date = TABLE.read_text(encoding="utf-8") == render()
    assert up_to_date, "docs/operators.md is stale: run `python -m tests.operator_table`"


def test_every_domain_with_rules_is_in_the_table() -> None:
    assert {rule.domain for rule in registry.all_rules()} - DOMAINS.keys() == QONNX


@pytest.mark.parametrize("operator", [known for known in operators() if any(r.host for r in known.rules)], ids=str)
def test_an_operator_that_runs_on_the_host_does_so_for_one_reason(operator: Operator) -> None:
    assert sum(str(operator) in names for names in LISTED.values()) == 1


def test_reasons_and_notes_are_about_operators_of_the_table() -> None:
    known = {str(operator) for operator in operators()}
    assert {name for names in LISTED.values() for name in names} <= known
    assert tomllib.loads(NOTES.read_text()).keys() <= known
