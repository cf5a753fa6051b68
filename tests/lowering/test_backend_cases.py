"""The public test suite of ONNX, case by case: values, shapes and element types, through the backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from onnxtrain import backend, execution
from onnxtrain.backend import PreparedModel
from onnxtrain.errors import StaticValueError
from tests.lowering.backend_cases import BackendCase, expected_failures, host_cases, load_cases, tolerances

CASES = load_cases()
FAILURES = expected_failures()
TOLERANCES = tolerances()
ON_HOST = host_cases()


def _parameters() -> list[Any]:
    return [
        pytest.param(
            case,
            id=case.name,
            marks=[pytest.mark.xfail(reason=FAILURES[case.name], strict=True)] if case.name in FAILURES else [],
        )
        for case in CASES
    ]


@pytest.fixture
def unknown_values(monkeypatch: pytest.MonkeyPatch) -> list[StaticValueError]:
    """What had to be known while tracing and was not, in the order in which a session met it."""
    met: list[StaticValueError] = []
    extended = execution._extended

    def extend(*arguments: Any) -> Any:
        met.extend(argument for argument in arguments if isinstance(argument, StaticValueError))
        return extended(*arguments)

    monkeypatch.setattr(execution, "_extended", extend)
    return met


@pytest.mark.spec("M-01", "M-05")
@pytest.mark.parametrize("case", _parameters())
def test_public_case_gives_its_values(
    case: BackendCase, unknown_values: list[StaticValueError], record_property: Any
) -> None:
    record_property("operator", case.operator)
    model = case.model
    prepared = backend.prepare(model)
    names = [value.name for value in model.graph.output]
    for inputs, outputs in case.data_sets(model):
        found = prepared.run(inputs)
        one_function = not (_is_cut(prepared, unknown_values) or any(map(_holds_text, (*inputs, *found))))
        record_property("one_function", one_function)
        assert one_function == (case.name not in ON_HOST)
        for name, value, expected in zip(names, found, outputs, strict=True):
            assert found[name] is value
            compare(value, expected, max(case.rtol, TOLERANCES.get(case.name, 0.0)), case.atol, name)


def _is_cut(prepared: PreparedModel, unknown_values: Iterable[StaticValueError]) -> bool:
    """Whether a value that is no shape, axis or the like had to be known, or something ran between compiled parts.

    The inputs of the cases are so small that a session makes even data a constant of the compiled function.
    """
    plans = prepared.session._execution._plans.values()
    return any(plan.cuts for plan in plans) or not all(error.shape_like for error in unknown_values)


def _holds_text(value: Any) -> bool:
    return hasattr(value, "dtype") and value.dtype.kind in "OUS"


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


@pytest.mark.parametrize("listed", [FAILURES, TOLERANCES, ON_HOST], ids=["failures", "tolerances", "on host"])
def test_the_lists_name_cases_of_the_suite(listed: Mapping[str, Any]) -> None:
    assert set(listed) <= {case.name for case in CASES}
