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
    for outcome in ("passed", "failed", "xfailed"):
        for report in terminalreporter.getreports(outcome):
            operator = dict(report.user_properties).get("operator")
            if operator is not None:
                counts.setdefault(operator, Counter())[outcome] += 1
    terminalreporter.section("public cases by operator")
    for operator, count in sorted(counts.items()):
        terminalreporter.write_line(
            f"{operator:40} {count['passed']:5} passed {count['failed']:5} failed {count['xfailed']:5} expected to fail"
        )
