"""Measuring a session on data without changing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from onnxtrain.errors import StaticValueError
from onnxtrain.graph.combine import algorithm_graph, data_inputs
from onnxtrain.graph.model import Graph, Model, Node
from onnxtrain.graph.order import TRAINING_DOMAIN, needed_nodes, own_names, reads
from onnxtrain.program import lower
from onnxtrain.state import TrainingState
from onnxtrain.training.data import (
    Arrays,
    check_first_batch,
    choose_batch_size,
    inference_inputs,
    match_inputs,
    training_inputs,
    whole_batches,
)
from onnxtrain.training.metrics import RunningMeans, accuracy, is_measure, matches_classes

if TYPE_CHECKING:
    from onnxtrain.session import TrainingSession

# How `make_trainable` names the counterpart of an inference value in the training-mode forward pass.
TRAINING_TWIN = "/training"


class Evaluator:
    """Measures a session on held-out data: calling it gives the means over all examples, by name.

    These are the scalar outputs of the algorithms that depend on the data and on no gradient, such as the loss, and
    `accuracy` where the labels are class ids: integers [N] that only an algorithm reads, beside an inference output
    [N, classes].

    The outputs are computed from the current values, with no update and for each algorithm by itself. Where
    `make_trainable` gave the algorithm a training-mode forward pass, its values are those of the inference graph
    instead, so that neither Dropout nor the statistics of the batch enter. Training information that was written
    otherwise is evaluated as it stands.

    Args:
      session: what is measured; it does not change.
      data: one array for each input, labels included, with the examples along the first axis.
      batch_size: examples a call; 32 by default, or what the model's inputs fix.
      source: what the data is called in messages.

    Raises:
      InputError: the arrays do not fit the inputs of the model.
      ModelError: the model has no training information, so that no loss is known.
    """

    def __init__(
        self, session: TrainingSession, data: Arrays, batch_size: int | None = None, *, source: str = "the data"
    ):
        model = session.model
        inputs = training_inputs(session)
        self.session = session
        self.dataset = match_inputs(data, inputs, source=source)
        self.batch_size = choose_batch_size(batch_size, inputs)
        self.examples = whole_batches(self.dataset.size, self.batch_size, inputs)
        check_first_batch(session, self.dataset, self.batch_size)
        inferred = {value.name for value in inference_inputs(session)}
        self._labels = [name for name in self.dataset.arrays if name not in inferred]
        self._programs = [lower(evaluation_model(model, index)) for index in range(len(model.training_info))]
        self._compiled = jax.jit(self._measure)

    def __call__(self) -> dict[str, float]:
        """The means over all examples, with the values that the session has now."""
        means = RunningMeans()
        state = self.session.state
        for count, batch in self.dataset.batches(self.batch_size, np.arange(self.examples)):
            means.add(count, self._run(state, batch))
        return dict(sorted(means.fetch().items(), key=lambda measure: measure[0] == "accuracy"))

    def _run(self, state: TrainingState, batch: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        with jax.enable_x64(True):
            if any(array.dtype.kind in "OSU" for array in batch.values()):
                return self._measure(state, batch)
            try:
                return self._compiled(state, batch)
            except StaticValueError:
                # A shape depends on what is fed: fed arrays are known where nothing is compiled.
                return self._measure(state, batch)

    def _measure(self, state: TrainingState, batch: Mapping[str, Any]) -> dict[str, Any]:
        measures: dict[str, Any] = {}
        for index, program in enumerate(self._programs):
            fed = {name: value for name, value in batch.items() if name in program.infer_inputs}
            values = program.infer(state, fed)
            names = measured_outputs(self.session.model, index)
            measures.update((name, values[name]) for name in names if is_measure(values[name]))
            scores = [values[name] for name in self.session.model.graph.output_names]
            for share in _accuracies(scores, [batch[name] for name in self._labels]):
                measures.setdefault("accuracy", share)
        return measures


def _accuracies(scores: list[Any], labels: list[Any]) -> Iterator[jax.Array]:
    tensors = [value for value in scores if hasattr(value, "dtype")]
    return (accuracy(one, other) for other in labels for one in tensors if matches_classes(one, other))


def evaluation_model(model: Model, index: int) -> Model:
    """A model that infers what one algorithm computes, and what the inference graph does, without any update."""
    algorithm = model.training_info[index].algorithm
    graph = _without_training_mode(algorithm_graph(model, index), own_names(model.graph))
    names = measured_outputs(model, index)
    measured = tuple(value for value in algorithm.outputs if value.name in names)
    outputs = {value.name: value for value in (*model.graph.outputs, *measured)}
    nodes = needed_nodes(graph.nodes, tuple(outputs))
    return replace(model, graph=replace(graph, nodes=nodes, outputs=tuple(outputs.values())), training_info=())


def measured_outputs(model: Model, index: int) -> tuple[str, ...]:
    """The outputs of an algorithm that say how good the model is: they depend on data, and on no gradient.

    Others, such as a learning rate or the length of the gradient, tell of the step that is not taken.
    """
    info, graph = model.training_info[index], algorithm_graph(model, index)
    bound = {output for _, output in info.update_binding}
    fed = {value.name for value in data_inputs(model, graph) if value.required}
    found = []
    for name in info.algorithm.output_names:
        nodes = needed_nodes(graph.nodes, (name,))
        is_gradient = any(node.op_type == "Gradient" and node.domain == TRAINING_DOMAIN for node in nodes)
        if name not in bound and not is_gradient and any(fed & reads(node) for node in nodes):
            found.append(name)
    return tuple(found)


def _without_training_mode(combined: Graph, inference: frozenset[str]) -> Graph:
    """The combined graph with each training-mode twin standing for the value that it is the twin of."""
    produced = (name for node in combined.nodes for name in node.outputs)
    twins = {name: name.removesuffix(TRAINING_TWIN) for name in produced if name.endswith(TRAINING_TWIN)}
    twins = {twin: name for twin, name in twins.items() if name in inference and twin not in inference}
    nodes: list[Node] = []
    for node in combined.nodes:
        copied = [name for name in node.outputs if name in twins]
        nodes += [Node("Identity", "", "", (twins[name],), (name,)) for name in copied] or [node]
    return replace(combined, nodes=tuple(nodes))
