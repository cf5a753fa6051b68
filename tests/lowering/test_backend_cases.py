"""The public test suite of ONNX, case by case: values, shapes and element types, through a compiled session."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnxtrain as ot
from tests.lowering.backend_cases import BackendCase, expected_failures, load_cases, tolerances

CASES = load_cases()
FAILURES = expected_failures()
TOLERANCES = tolerances()


def _parameters() -> list[Any]:
    return [
        pytest.param(
            case,
            id=case.name,
            marks=[pytest.mark.xfail(reason=FAILURES[case.name], strict=True)] if case.name in FAILURES else [],
        )
        for case in CASES
    ]


@pytest.mark.spec("M-01", "M-05")
@pytest.mark.parametrize("case", _parameters())
def test_public_case_gives_its_values(case: BackendCase, record_property: Any) -> None:
    record_property("operator", case.operator)
    model = case.model
    session = ot.TrainingSession(model)
    accepted = session.program.infer_inputs
    listed = [value.name for value in model.graph.input if value.name in accepted]
    for inputs, outputs in case.data_sets(model):
        fed = dict(zip(listed, inputs, strict=False))
        found = session.infer(fed)
        assert list(found) == [value.name for value in model.graph.output]
        for name, expected in zip(found, outputs, strict=True):
            compare(found[name], expected, max(case.rtol, TOLERANCES.get(case.name, 0.0)), case.atol, name)


def compare(found: Any, expected: Any, rtol: float, atol: float, name: str) -> None:
    """Values within the tolerances, shapes and element types exactly."""
    if expected is None or isinstance(expected, list | dict):
        kinds = (type(found), type(expected))
        assert kinds[0] is kinds[1], name
        if isinstance(expected, list):
            assert len(found) == len(expected), name
            for i, item in enumerate(expected):
                compare(found[i], item, rtol, atol, f"{name}[{i}]")
        return
    found, expected = np.asarray(found), np.asarray(expected)
    if expected.dtype.kind in "USO":
        assert found.tolist() == expected.astype(object).tolist(), name
        return
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), name
    if expected.dtype.kind not in "fciub":
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=name)


def test_expected_failures_name_cases_of_the_suite() -> None:
    names = {case.name for case in CASES}
    assert set(FAILURES) <= names
    assert set(TOLERANCES) <= names
