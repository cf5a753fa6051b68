"""What is exported after training infers in other runtimes what the session infers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from onnxtrain import TrainingSession
from tests.parity import models


@dataclass(frozen=True)
class Case:
    """A training model, the inputs of its inference graph, and those that only its algorithms read."""

    build: Callable[[], onnx.ModelProto]
    inputs: dict[str, tuple[int, ...]]
    training_inputs: dict[str, tuple[int, ...]]


CASES = {
    "mlp": Case(lambda: models.mlp_with_momentum("standard"), {"x": (6, 12)}, {"labels": (6,)}),
    "lenet": Case(models.lenet_with_adam, {"image": (2, 1, 28, 28)}, {"labels": (2,)}),
    "generator": Case(models.adversarial, {"noise": (6, 4)}, {"real": (6, 2)}),
    "dropout": Case(models.classifier_with_dropout, {"x": (6, 12)}, {"labels": (6,)}),
}


def draw(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        name: generator.integers(0, 5, shape) if name == "labels" else generator.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }


@pytest.mark.spec("T-01", "T-10", "M-08")
@pytest.mark.parametrize("name", CASES)
def test_an_exported_model_infers_the_same_in_other_runtimes(name: str, tmp_path: Path) -> None:
    case, path = CASES[name], tmp_path / "inference.onnx"
    session, inputs = TrainingSession(case.build()), draw(case.inputs)
    untrained = session.infer(inputs)
    for _ in range(3):
        session.step({**inputs, **draw(case.training_inputs)})
    outputs = session.infer(inputs)
    session.export(path)
    onnx.checker.check_model(path, full_check=True)
    names = list(outputs)
    ort = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for found in (ort.run(names, inputs), ReferenceEvaluator(str(path)).run(names, inputs)):
        for name, value in zip(names, found, strict=True):
            np.testing.assert_allclose(np.asarray(value), outputs[name], rtol=1e-5, atol=1e-5)
            assert np.abs(np.asarray(value) - untrained[name]).max() > 1e-3
