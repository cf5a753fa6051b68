"""The public test suite that the onnx package carries, as records: models, inputs and expected outputs."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted", "real")

EXPECTED_FAILURES = Path(__file__).with_name("expected_failures.toml")
TOLERANCES = Path(__file__).with_name("tolerances.toml")
HOST_CASES = Path(__file__).with_name("host_cases.toml")


@dataclass(frozen=True)
class BackendCase:
    """One case of the suite; `rtol` and `atol` are the suite's own."""

    kind: str
    name: str
    source: Any
    rtol: float
    atol: float

    @property
    def model(self) -> onnx.ModelProto:
        return self.source.model or onnx.load(self._model_path)

    @property
    def _model_path(self) -> Path:
        if self.source.model_dir is not None:
            return Path(self.source.model_dir) / "model.onnx"
        return Path(onnx.__file__).parents[1] / self.source.url  # the light copies of real models name a file so

    @property
    def operator(self) -> str:
        """The operator that the case is about, for the table of results."""
        if self.kind != "node":
            return self.kind
        if "_expanded" in self.name:
            return "function bodies"
        return ", ".join(sorted({node.op_type for node in self.model.graph.node}))

    def data_sets(self, model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
        """Inputs and expected outputs, in the order of the graph's."""
        if self.source.data_sets is not None:
            for inputs, outputs in self.source.data_sets:
                yield [_plain(value) for value in inputs], [_plain(value) for value in outputs]
            return
        if self.source.model_dir is None:
            yield [_ramp(value) for value in _fed(model)], _read_beside(self._model_path, model)
            return
        for folder in sorted(Path(self.source.model_dir).glob("test_data_set_*")):
            yield _read_all(folder, "input", model.graph.input), _read_all(folder, "output", model.graph.output)


@cache
def load_cases() -> tuple[BackendCase, ...]:
    """Every case of every kind, those in memory and those on disk."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the suite overflows on purpose while it builds its values
        return tuple(
            BackendCase(kind, case.name, case, case.rtol, case.atol)
            for kind in KINDS
            for case in load_model_tests(kind=kind)
        )


@cache
def expected_failures() -> dict[str, str]:
    """Reason by case name."""
    return _reasons(EXPECTED_FAILURES)


@cache
def host_cases() -> dict[str, str]:
    """Why a case does not run as one compiled function, by its name."""
    return _reasons(HOST_CASES)


def _reasons(path: Path) -> dict[str, str]:
    groups = tomllib.loads(path.read_text())
    return {case: group["reason"] for group in groups.values() for case in group["cases"]}


@cache
def tolerances() -> dict[str, float]:
    """Relative tolerance by case name, where the suite's own is too tight for a stated reason."""
    groups = tomllib.loads(TOLERANCES.read_text())
    return {case: group["rtol"] for group in groups.values() for case in group["cases"]}


def _read_all(folder: Path, kind: str, values: Any) -> list[Any]:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    return [_read(folder / f"{kind}_{i}.pb", values[i].type) for i in range(count)]


def _read(path: Path, declared: onnx.TypeProto) -> Any:
    which = declared.WhichOneof("value")
    if which == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))
    if which == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(path.read_bytes()))
    return _plain(onnx.TensorProto.FromString(path.read_bytes()))


def _plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SparseTensorProto):
        dense = np.zeros(tuple(value.dims), numpy_helper.to_array(value.values).dtype)
        dense.reshape(-1)[numpy_helper.to_array(value.indices)] = numpy_helper.to_array(value.values)
        return dense
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    return value


def _fed(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    stored = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in stored]


def _ramp(value: onnx.ValueInfoProto) -> np.ndarray:
    """The input that the outputs beside the light models were made from: 0 to 1 in equal steps."""
    shape = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in value.type.tensor_type.shape.dim]
    return (np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)).astype(np.float32)


def _read_beside(path: Path, model: onnx.ModelProto) -> list[Any]:
    names = (f"{path.stem}_output_{i}.pb" for i in range(len(model.graph.output)))
    return [_plain(onnx.TensorProto.FromString(path.with_name(name).read_bytes())) for name in names]
