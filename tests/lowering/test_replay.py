"""The public cases at every version of their operators that their form allows, with onnxruntime as the oracle.

One model, two runtimes. Where onnxruntime has no kernel for a version, ONNX's reference evaluator is the oracle, and
where that has none either, the case's own output: its form then says the same in both versions.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    NotImplemented,
    RuntimeException,
)

import onnxtrain as ot
from tests.lowering.backend_cases import tolerances
from tests.lowering.replay import Replay, load_replays, schemas, versions_of_the_suite
from tests.lowering.test_backend_cases import compare

REPLAYS = load_replays()
TOLERANCES = tolerances()
TABLE = tomllib.loads(Path(__file__).with_name("replay.toml").read_text())

_REFUSALS = (RuntimeError, ValueError, Fail, InvalidArgument, InvalidGraph, NotImplemented, RuntimeException)


def by_version() -> dict[str, list[Replay]]:
    """The replays of each operator version, those that use most of its form first."""
    groups: dict[str, list[Replay]] = defaultdict(list)
    for replay in REPLAYS:
        groups[f"{replay.operator}-{replay.version}"].append(replay)
    return {name: sorted(group, key=lambda replay: -replay.richness) for name, group in sorted(groups.items())}


def _versions() -> list[Any]:
    return [pytest.param(group, id=name) for name, group in by_version().items()]


def _every_replay() -> list[Any]:
    parameters = []
    for replay in REPLAYS:
        name = f"{replay.case}@{replay.version}"
        marks = [pytest.mark.xfail(reason=_reason(replay), strict=True)] if _reason(replay) else []
        parameters.append(pytest.param(replay, id=name, marks=marks))
    return parameters


def _reason(replay: Replay) -> str:
    cases = f"{replay.case}@{replay.version}"
    return next((group["reason"] for group in TABLE["differences"].values() if cases in group["cases"]), "")


@pytest.mark.spec("M-01")
@pytest.mark.parametrize("group", _versions())
def test_one_case_of_each_version_gives_the_values_of_the_oracle(group: Sequence[Replay]) -> None:
    agreed = [replay for replay in group if not _reason(replay)]
    for oracle in (by_onnxruntime, by_reference, by_suite):
        for replay in agreed:
            expected = oracle(replay)
            if expected is not None:
                check(replay, expected)
                return


@pytest.mark.slow
@pytest.mark.spec("M-01")
@pytest.mark.parametrize("replay", _every_replay())
def test_every_replayed_case_gives_the_values_of_the_oracle(replay: Replay) -> None:
    expected = by_onnxruntime(replay) or by_reference(replay) or by_suite(replay)
    check(replay, expected)


@pytest.mark.spec("M-01")
def test_versions_without_a_replay_have_a_reason() -> None:
    replayed = {(replay.domain, replay.operator, replay.version) for replay in REPLAYS} | versions_of_the_suite()
    gaps = {
        f"{name}-{version}"
        for (domain, name), versions in schemas().items()
        for version in versions
        if (domain, name, version) not in replayed
    }
    assert gaps == {version for group in TABLE["not_replayed"].values() for version in group["versions"]}


@pytest.mark.parametrize("group", TABLE["not_replayed"].values(), ids=TABLE["not_replayed"])
def test_operators_without_a_replay_have_tests_of_their_own(group: Mapping[str, Any]) -> None:
    texts = [Path(__file__).with_name(name).read_text() for name in group["tests"]]
    operators = {version.rpartition("-")[0] for version in group["versions"]}
    assert [name for name in sorted(operators) if not any(f'"{name}"' in text for text in texts)] == []


def test_differences_name_replayed_cases() -> None:
    names = {f"{replay.case}@{replay.version}" for replay in REPLAYS}
    assert {case for group in TABLE["differences"].values() for case in group["cases"]} <= names


def check(replay: Replay, expected: Sequence[Any]) -> None:
    """Our outputs against the expected ones: values within the suite's tolerances, shapes and types exactly."""
    found = ot.TrainingSession(replay.model).infer(replay.inputs)
    rtol = max(replay.rtol, TOLERANCES.get(replay.case, 0.0))
    for name, value in zip(found, expected, strict=True):
        compare(found[name], value, rtol, max(replay.atol, 1e-5 * _largest(value)), name)


def _largest(value: Any) -> float:
    """The largest number of an output that stands for no infinity: how large its rounding errors are."""
    if not hasattr(value, "dtype") or value.dtype.kind != "f":
        return 0.0
    magnitudes = np.abs(value.astype(np.float64))
    return float(magnitudes[magnitudes < 1e30].max(initial=0.0))


def by_onnxruntime(replay: Replay) -> list[Any] | None:
    """The outputs of onnxruntime, or None when it does not run this version or cannot hand its types out."""
    if not all(_is_plain(value) for value in (*replay.model.graph.input, *replay.model.graph.output)):
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            replay.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return list(session.run(None, _fed(replay)))
    except _REFUSALS:
        return None


def by_reference(replay: Replay) -> list[Any] | None:
    """The outputs of ONNX's reference evaluator, or None when it does not know this version."""
    try:
        return list(ReferenceEvaluator(replay.model).run(None, _fed(replay)))
    except (RuntimeError, TypeError, KeyError, NotImplementedError):
        return None


def by_suite(replay: Replay) -> list[Any]:
    """The outputs that the suite gives for its own version."""
    return list(replay.outputs)


def _is_plain(value: onnx.ValueInfoProto) -> bool:
    """Whether the element type is one that numpy has by itself; onnxruntime hands the others out as integers."""
    return value.type.tensor_type.elem_type <= TensorProto.UINT64


def _fed(replay: Replay) -> dict[str, Any]:
    return {name: value if isinstance(value, list) else np.asarray(value) for name, value in replay.inputs.items()}
