"""Every statement of the specification has a test, and docs/spec.md says which."""

from __future__ import annotations

import pytest

from tests.spec_table import TABLE, Mark, collect_marks, marks_of, read_statements, render

STATEMENTS = read_statements()
MARKS = collect_marks()


@pytest.mark.parametrize("statement", [statement.id for statement in STATEMENTS])
def test_every_statement_is_shown_by_a_test(statement: str) -> None:
    assert statement in {mark.statement for mark in MARKS}


def test_every_mark_names_a_statement() -> None:
    known = {statement.id for statement in STATEMENTS}
    assert [mark for mark in MARKS if mark.statement not in known] == []


def test_the_table_is_up_to_date() -> None:
    up_to_date = TABLE.read_text(encoding="utf-8") == render(STATEMENTS, MARKS)
    assert up_to_date, "docs/spec.md is stale: run `python -m tests.spec_table`"


def test_marks_are_found_on_tests_classes_modules_and_parameters() -> None:
    source = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.spec("A-01")]
ROWS = [pytest.param(1, marks=pytest.mark.spec("A-02")), 2]

@pytest.mark.parametrize("row", ROWS)
def test_rows(row): ...

@pytest.mark.spec("A-03", "A-04")
class TestKind:
    @pytest.mark.spec("A-04")
    def test_method(self): ...

def not_a_test(): ...
"""
    found = list(marks_of(source, "t.py"))
    rows = [Mark(id, "t.py", "test_rows") for id in ("A-01", "A-02")]
    assert found == [*rows, *(Mark(id, "t.py", "test_method") for id in ("A-01", "A-03", "A-04"))]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("@pytest.mark.spec(ID)\ndef test_it(): ...", "literal"),
        ("MARK = pytest.mark.spec('A-01')\ndef test_it(): ...", "belongs to no test"),
    ],
)
def test_a_mark_that_the_table_would_miss_is_an_error(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(marks_of(source, "t.py"))
