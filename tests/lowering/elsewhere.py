"""Runs one node in onnxruntime, as `one_node` runs it here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
from onnx import helper

from tests.lowering.one_node import run_node


@dataclass(frozen=True)
class Case:
    """A node of an operator at an opset, fed floats of these shapes or the arrays that stand in their place."""

    op_type: str
    opset: int
    inputs: Sequence[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    static_inputs: tuple[int, ...] = ()
    domain: str = ""

    @property
    def name(self) -> str:
        words = (f"{key}={value}" for key, value in self.attributes.items() if not isinstance(value, tuple))
        return f"{self.op_type}-{self.opset} {' '.join(words)}".strip()

    def values(self) -> list[Any]:
        random = np.random.default_rng(len(self.inputs) + self.opset)
        return [
            random.standard_normal(item).astype(np.float32) if isinstance(item, tuple) else item for item in self.inputs
        ]


def assert_equal_to_onnxruntime(case: Case, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Values, shapes and element types of all outputs."""
    values = case.values()
    found = run_node(
        case.op_type,
        values,
        opset=case.opset,
        domain=case.domain,
        outputs=case.outputs,
        static_inputs=case.static_inputs,
        attributes=case.attributes,
    )
    for result, expected in zip(found, run_in_onnxruntime(case, values), strict=True):
        result = np.asarray(result)
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(result, expected, rtol=rtol, atol=atol)


def run_in_onnxruntime(case: Case, values: Sequence[Any]) -> list[np.ndarray]:
    """The outputs of the case's node."""
    names = [f"input{i}" if value is not None else "" for i, value in enumerate(values)]
    fed = {name: np.asarray(value) for name, value in zip(names, values, strict=True) if name}
    results = [f"output{i}" for i in range(case.outputs)]
    graph = helper.make_graph(
        [helper.make_node(case.op_type, names, results, domain=case.domain, **case.attributes)],
        "one",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in fed.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in results],
    )
    opsets = {"": 17, case.domain: case.opset}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1  # some kernels quantize what each thread computes on its own
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(results, fed)]
