"""The backend interface: ONNX's own test runner drives it, and what callers give and get is as the interface says."""

from __future__ import annotations

import doctest
import unittest
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from onnx import helper, parser
from onnx.backend.test import BackendTest

import onnxtrain.backend
from onnxtrain import backend
from onnxtrain.errors import InputError, UnsupportedError, UnsupportedOperatorError
from tests.graph.training_models import linear_with_sgd
from tests.lowering.backend_cases import expected_failures, load_cases, tolerances

# A few cases of every sort of value and of every kind of case.
SLICE = r"^test_(add|cast_FLOAT_|loop|optional|sequence|string|nonzero|unique|adam|ai_onnx_ml|Conv2d|AvgPool1d|squeeze)"

# The runner asks each item of a sequence for its length, and one of this case's is a scalar.
BEYOND_THE_RUNNER = ("test_loop16_seq_none",)

SUM = parser.parse_model(
    """<ir_version: 10, opset_import: ["": 21]>
    sum (float[N] a, float[N] b) => (float[N] total, int64[1] size) { total = Add(a, b) size = Shape(total) }"""
)
ONES = np.ones(3, np.float32)


@pytest.fixture(autouse=True)
def onnx_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner keeps what it computes in a folder that this variable names."""
    monkeypatch.setenv("ONNX_HOME", str(tmp_path))


def run_suite(pattern: str) -> unittest.TestResult:
    """What ONNX's runner finds in the cases that match, with the failures that we expect."""
    wider = {name: {"rtol": rtol} for name, rtol in tolerances().items()}
    module: Any = backend  # it has the functions of the class, which is how backends are passed
    runner = BackendTest(module, __name__, wider).include(pattern)
    for name in (*expected_failures(), *BEYOND_THE_RUNNER):
        runner.xfail(rf"^{name}_(cpu|cuda)$")
    result = unittest.TestResult()
    runner.test_suite.run(result)
    return result


def report(result: unittest.TestResult) -> list[str]:
    """The cases that went otherwise than expected."""
    failed = [f"{case.id()}\n{message}" for case, message in (*result.failures, *result.errors)]
    return failed + [f"{case.id()} passed" for case in result.unexpectedSuccesses]


@pytest.mark.filterwarnings("ignore::RuntimeWarning:onnx")
def test_some_of_every_kind_pass_in_the_runner_of_onnx() -> None:
    result = run_suite(SLICE)
    assert report(result) == []
    assert result.testsRun - len(result.skipped) > 90


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning:onnx")
def test_the_whole_suite_passes_in_the_runner_of_onnx() -> None:
    result = run_suite("")
    assert report(result) == []
    devices = sum(map(backend.supports_device, ("CPU", "CUDA")))
    assert result.testsRun - len(result.skipped) == devices * len(load_cases())


def test_the_example_in_the_documentation_runs() -> None:
    assert doctest.testmod(onnxtrain.backend).failed == 0
    assert doctest.testmod(onnxtrain.backend).attempted > 0


@pytest.mark.parametrize("inputs", [[ONES, ONES], (ONES, ONES), {"b": ONES, "a": ONES}], ids=["list", "tuple", "dict"])
def test_inputs_come_by_position_or_by_name(inputs: Any) -> None:
    total, size = backend.run_model(SUM, inputs)
    np.testing.assert_array_equal(total, 2 * ONES)
    assert size == 3


def test_one_array_is_the_input_of_a_model_that_has_one() -> None:
    model = parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g (float[N] x) => (float[N] y) { y = Neg(x) }')
    np.testing.assert_array_equal(backend.run_model(model, ONES).y, -ONES)


def test_outputs_are_a_tuple_that_is_indexed_by_name_too() -> None:
    found: Any = backend.prepare(SUM).run([ONES, ONES])
    assert issubclass(type(found), tuple)
    assert found["total"] is found[0]
    assert found["size"] is found[1]


def test_outputs_belong_to_the_caller() -> None:
    """The size is known while compiling, so that the session holds on to it."""
    prepared = backend.prepare(SUM)
    for _ in range(2):
        total, size = prepared.run([ONES, ONES])
        assert (total[0], size[0]) == (2, 3)
        total[0] = size[0] = -1


def test_a_model_may_be_a_file(tmp_path: Path) -> None:
    onnx.save(SUM, tmp_path / "sum.onnx")
    np.testing.assert_array_equal(backend.run_model(tmp_path / "sum.onnx", [ONES, ONES])["total"], 2 * ONES)


def test_a_training_model_infers_with_the_values_of_its_session() -> None:
    prepared = backend.prepare(linear_with_sgd())
    before = prepared.run([np.ones((1, 3), np.float32)])
    prepared.session.step({"x": np.ones((1, 3), np.float32), "target": np.full((1, 2), 100, np.float32)})
    after = prepared.run([np.ones((1, 3), np.float32)])
    assert np.all(after["y"] > before["y"])


def test_more_inputs_than_the_model_has_are_refused() -> None:
    with pytest.raises(InputError, match=r"2 inputs \('a', 'b'\), and 3 were given"):
        backend.run_model(SUM, [ONES, ONES, ONES])


def test_an_input_of_another_type_is_refused() -> None:
    with pytest.raises(InputError, match=r"'b' must be float32, and float64 was fed"):
        backend.run_model(SUM, [ONES, ONES.astype(np.float64)])


def test_a_node_runs_on_its_own() -> None:
    node = helper.make_node("TopK", ["x", "k"], ["values", "indices"], axis=0)
    found = backend.run_node(node, [np.array([1.0, 3.0, 2.0]), np.array([2])])
    np.testing.assert_array_equal(found["values"], [3, 2])
    np.testing.assert_array_equal(found["indices"], [1, 2])


def test_a_node_runs_in_the_version_that_is_asked_for() -> None:
    """Before version 13, Softmax normalized over all axes from `axis` on."""
    node = helper.make_node("Softmax", ["x"], ["y"], axis=1)
    x = np.zeros((1, 2, 2), np.float32)
    assert backend.run_node(node, [x], opset_version=12)["y"][0, 0, 0] == 0.25
    assert backend.run_node(node, [x])["y"][0, 0, 0] == 0.5


def test_a_node_takes_sequences_and_leaves_out_what_it_does_not_name() -> None:
    insert = helper.make_node("SequenceInsert", ["sequence", "item"], ["longer"])
    (longer,) = backend.run_node(insert, [[ONES], 2 * ONES])
    np.testing.assert_array_equal(longer, [ONES, 2 * ONES])
    clip = helper.make_node("Clip", ["x", "", "most"], ["y"])
    np.testing.assert_array_equal(backend.run_node(clip, [2 * ONES, np.float32(1)])["y"], ONES)


def test_a_node_of_another_domain_runs() -> None:
    node = helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft")
    assert backend.run_node(node, [ONES])["y"].shape == (3,)


def test_a_node_without_a_rule_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match="Mystery"):
        backend.run_node(helper.make_node("Mystery", ["x"], ["y"], domain="com.example"), [ONES])


@pytest.mark.parametrize("device", ["TPU", "cpu", "CPU:99", "CPU:x", "CPU:-1", ""])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(device: str) -> None:
    assert not backend.supports_device(device)
    with pytest.raises(UnsupportedError, match=f"'{device}'; JAX finds CPU:0"):
        backend.prepare(SUM, device)


def test_devices_are_those_of_jax() -> None:
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert backend.supports_device("CUDA") == any(device.platform == "gpu" for device in jax.devices())


def test_state_and_results_stay_on_the_device_that_was_asked_for() -> None:
    prepared = backend.prepare(linear_with_sgd(), "CPU")
    assert {device.platform for device in prepared.session.state.variables["W"].devices()} == {"cpu"}


def test_a_model_is_compatible_when_every_needed_operator_has_a_rule() -> None:
    unused, needed = onnx.ModelProto(), onnx.ModelProto()
    for model, result in ((unused, "unread"), (needed, "total")):
        model.CopyFrom(SUM)
        model.opset_import.append(helper.make_opsetid("com.example", 1))
        model.graph.node.append(helper.make_node("Mystery", ["a"], [result], domain="com.example"))
    del needed.graph.node[0]
    assert backend.is_compatible(SUM)
    assert backend.is_compatible(unused)
    assert not backend.is_compatible(needed)
    assert not backend.is_compatible(SUM, "TPU")
