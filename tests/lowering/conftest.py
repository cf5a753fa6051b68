"""Prints the results of the public suite by operator: `pytest tests/lowering/test_backend_cases.py --by-operator`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--by-operator", action="store_true", help="print passed and failed public cases by operator")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--by-operator"):
        return
    counts: dict[str, Counter[str]] = {}
    one_function = 0
    for outcome in ("passed", "failed", "xfailed"):
        for report in terminalreporter.getreports(outcome):
            properties = dict(report.user_properties)
            one_function += properties.get("one_function", False)
            if "operator" in properties:
                counts.setdefault(properties["operator"], Counter())[outcome] += 1
    terminalreporter.section("public cases by operator")
    for operator, count in sorted(counts.items()):
        terminalreporter.write_line(
            f"{operator:40} {count['passed']:5} passed {count['failed']:5} failed {count['xfailed']:5} expected to fail"
        )
    cases = sum(count.total() for count in counts.values())
    terminalreporter.write_line(f"{one_function} of {cases} cases ran as one compiled function")
