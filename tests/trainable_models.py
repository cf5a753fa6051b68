"""What becomes of real models in training; `python -m tests.trainable_models` writes docs/trainable-models.md from it.

Each model is prepared and trained for three steps on the inputs that lie beside it. A classifier learns the class after
the one that it gives; any other model learns its own outputs, moved by their spread.
"""

from __future__ import annotations

import math
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
from onnxruntime import InferenceSession

import onnxtrain as ot
from onnxtrain.authoring.protos import FLOAT_TYPES, attribute_value
from onnxtrain.authoring.source import load
from onnxtrain.authoring.value_types import infer_types
from onnxtrain.errors import ModelWarning, OnnxTrainError
from tests.authoring.training_graphs import combined
from tests.test_real_models import COARSE_TOLERANCE, NAMES, TABLE, TOLERANCE, compare, read

DOCUMENT = Path(__file__).parents[1] / "docs" / "trainable-models.md"
STEPS = 3
LEARNING_RATE = 1e-4  # the weights are trained already; Adam moves each of them by as much in a step

PREFACE = """\
# Real models in training

Inference models from many exporters, each prepared by `make_trainable` with defaults but for the learning rate, 1e-4.
A classifier learns, by cross entropy, the class after the one that it gives; any other model learns, by mean squared
error, its own outputs moved by their spread. The losses are those of the first step and of the fourth.
Of every model in the first table it also holds that

- `ot.validate` and `onnx.checker` find nothing wrong with the training model, shape inference of the graph of a step
  included;
- a session on the saved file goes on bit for bit as the one that saved it;
- onnxruntime gives for the exported file what the session infers.

Written by `python -m tests.trainable_models`; do not edit.
"""


@dataclass(frozen=True)
class Task:
    """What a model is to learn; without a float output there is nothing that a loss can look at."""

    loss: str
    output: str | None
    model: onnx.ModelProto
    inputs: Mapping[str, Any]
    target: np.ndarray


@dataclass(frozen=True)
class Result:
    """A model that was trained."""

    name: str
    producer: str
    loss: str
    output: str | None
    tensors: int
    elements: int
    before: float
    after: float


@dataclass(frozen=True)
class Refusal:
    """A model that cannot be trained, and the reason that `make_trainable` gives."""

    name: str
    producer: str
    reason: str


def train(name: str) -> Result | Refusal:
    """Prepares a model, trains it and checks that what the preface promises holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        task = choose_task(name)
        producer = describe_producer(task.model)
        try:
            prepared = ot.make_trainable(task.model, loss=task.loss, output=task.output, learning_rate=LEARNING_RATE)
        except OnnxTrainError as error:
            return Refusal(name, producer, str(error))
        check_file(prepared)
        losses, session = run(prepared, task)
        check_export(session, task.inputs, 2 * COARSE_TOLERANCE if name in TABLE["coarse"] else TOLERANCE)
    trained = trained_sizes(prepared)
    return Result(name, producer, task.loss, task.output, len(trained), sum(trained), losses[0], losses[-1])


def choose_task(name: str) -> Task:
    """The loss that fits an output of a model, and labels for it."""
    model, inputs, expected = read(name)
    graph, types = load(model).graph, infer_types(model)
    floats = [value.name for value in graph.output if types.element_type(value.name) in FLOAT_TYPES]
    if not floats:
        return Task("mean_squared_error", None, model, inputs, np.zeros(0))
    output = TABLE["trained_output"].get(name, floats[0])
    values = np.asarray(expected[output])
    softmax = find_softmax(graph, output)
    if softmax is None and name not in TABLE["classifiers"]:
        return Task("mean_squared_error", output, model, inputs, values + values.dtype.type(values.std() or 1))
    axis = 1 if values.ndim >= 4 else -1
    if softmax is not None and output in softmax.output:
        axis = attribute_value(softmax, "axis", axis)
    classes = (values.argmax(axis) + 1) % values.shape[axis]
    return Task("softmax_cross_entropy", output, model, inputs, classes.astype(np.int64))


def find_softmax(graph: onnx.GraphProto, output: str) -> onnx.NodeProto | None:
    """The Softmax or LogSoftmax that an output comes from, with nothing but other shapes in between."""
    producers = {name: node for node in graph.node for name in node.output}
    node = producers.get(output)
    while node is not None and node.op_type in ("Identity", "Reshape", "Squeeze", "Flatten", "Transpose"):
        node = producers.get(node.input[0])
    return node if node is not None and node.op_type in ("Softmax", "LogSoftmax") else None


def describe_producer(model: onnx.ModelProto) -> str:
    """The exporter and the opset."""
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    producer = f"{model.producer_name} {model.producer_version}".strip() or "unnamed"
    return f"{producer}, opset {opset}" if opset else producer


def check_file(prepared: onnx.ModelProto) -> None:
    """The training model is right as a whole."""
    onnx.checker.check_model(prepared)
    onnx.checker.check_model(combined(prepared), full_check=True)
    assert ot.validate(prepared) == []


def run(prepared: onnx.ModelProto, task: Task) -> tuple[list[float], ot.TrainingSession]:
    """The losses of the steps and of one more, which a session on the saved file does alike."""
    (labels,) = prepared.training_info[0].algorithm.input
    fed = {**task.inputs, labels.name: task.target}
    session = ot.TrainingSession(prepared, seed=0)
    losses = [float(session.step(fed)["loss"]) for _ in range(STEPS)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved.onnx"
        session.save(path)
        resumed = ot.TrainingSession(path)
    losses.append(float(session.step(fed)["loss"]))
    assert float(resumed.step(fed)["loss"]) == losses[-1], "the resumed session has another loss"
    for variable, value in session.variables.items():
        np.testing.assert_array_equal(resumed.variables[variable], value, variable)
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0], f"the loss went from {losses[0]} to {losses[-1]}"
    return losses, session


def check_export(session: ot.TrainingSession, inputs: Mapping[str, Any], tolerance: float) -> None:
    """onnxruntime gives for the exported model what the session infers."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exported.onnx"
        session.export(path)
        exported = InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.infer(inputs)
    for output, expected in zip(exported.get_outputs(), exported.run(None, dict(inputs)), strict=True):
        compare(found[output.name], expected, tolerance, output.name)


def trained_sizes(prepared: onnx.ModelProto) -> list[int]:
    """The number of elements of each tensor that is trained."""
    (gradient,) = (node for node in prepared.training_info[0].algorithm.node if node.op_type == "Gradient")
    names = next(attribute.strings for attribute in gradient.attribute if attribute.name == "xs")
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in prepared.graph.initializer}
    return [sizes[name.decode()] for name in names]


def render(results: Sequence[Result | Refusal]) -> str:
    """The text of docs/trainable-models.md."""
    trained = [result for result in results if isinstance(result, Result)]
    refused = [result for result in results if isinstance(result, Refusal)]
    lines = [PREFACE, "| model | exporter | loss | output | trained tensors | trained numbers | loss before | after |"]
    lines.append("|---|---|---|---|--:|--:|--:|--:|")
    lines += [
        f"| {one.name} | {one.producer} | {one.loss} | `{one.output}` | {one.tensors} | {one.elements:,} "
        f"| {one.before:.3g} | {one.after:.3g} |"
        for one in trained
    ]
    lines += ["\n## What cannot be trained\n", "| model | exporter | what `make_trainable` says |", "|---|---|---|"]
    lines += [f"| {one.name} | {one.producer} | {one.reason} |" for one in refused]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Trains every model of the folder and writes the document."""
    with tempfile.TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)  # a resumed session compiles the same again
        results = []
        for name in NAMES:
            results.append(train(name))
            sys.stderr.write(f"{results[-1]}\n")
    DOCUMENT.write_text(render(results), encoding="utf-8")


if __name__ == "__main__":
    main()
