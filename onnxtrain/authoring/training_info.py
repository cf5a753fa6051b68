"""Writes the `TrainingInfoProto`: one step of training, and the initialization of its state."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from onnxtrain.authoring.builder import TRAINING_DOMAIN, GraphBuilder
from onnxtrain.authoring.forward import TrainingForward
from onnxtrain.authoring.initializers import (
    Initialization,
    find_schemes,
    write_constants,
    write_copies,
    write_derived,
    write_weights,
)
from onnxtrain.authoring.insertion import choose_dropouts
from onnxtrain.authoring.losses import Loss, Prediction, Term, WrittenLoss, describe, write_terms
from onnxtrain.authoring.names import Names
from onnxtrain.authoring.prediction import Source
from onnxtrain.authoring.protos import default_opset, needed_nodes, stored_tensors
from onnxtrain.authoring.state import Update
from onnxtrain.authoring.updates import UpdatePlan, UpdateWriter
from onnxtrain.authoring.value_types import Types
from onnxtrain.authoring.weights import Weight, listed
from onnxtrain.graph.write import AVERAGES_KEY

FUNCTIONS_IR_VERSION = 8  # the first in which a model may have local functions

Sources = Sequence[Sequence[Source]]  # for each term of the loss, what it looks at


@dataclass(frozen=True)
class Recipe:
    """How a model is to be trained.

    Attributes:
      terms: what is minimized: each with its loss.
      updates: how gradients become updates.
      initialize: which weights get new values, and how.
      seed: fixes what is drawn; None to leave it to the session.
      dropout: shares of values to drop, by pattern.
    """

    terms: Sequence[tuple[Term, Loss]]
    updates: UpdatePlan
    initialize: Initialization
    seed: int | None
    dropout: Mapping[str, float]


def add_training_info(
    model: onnx.ModelProto, names: Names, types: Types, sources: Sources, weights: Sequence[Weight], recipe: Recipe
) -> None:
    """Adds one `TrainingInfoProto` to an inference model whose weights are initializers.

    Args:
      model: takes the training information, and the functions that it calls.
      names: gives fresh names.
      types: the types of the values of the inference graph.
      sources: what each term of the loss looks at.
      weights: what is trained.
      recipe: how.
    """
    builder = GraphBuilder(names, default_opset(model), model.functions)
    trained = {weight.name for weight in weights}
    targets = _read_by_loss(sources)
    dropouts = choose_dropouts(model.graph, types, targets, recipe.dropout)
    forward = TrainingForward(model, types, targets, trained, builder, dropouts)
    loss = _write_loss(builder, types, sources, forward.renamed, recipe)
    writer = UpdateWriter(builder, recipe.updates, weights, stored_tensors(model.graph))
    target = writer.to_differentiate(loss.value, loss.element_type)
    gradients = _write_gradients(builder, weights, _data_inputs(model.graph, targets), loss, target)
    updates = [*writer.write(gradients), *forward.statistics]

    info = model.training_info.add()
    info.algorithm.CopyFrom(_algorithm(builder, loss, updates))
    info.algorithm.value_info.extend(_declared_gradients(weights, gradients))
    info.algorithm.doc_string = _description(sources, weights, loss, forward, recipe)
    info.update_binding.extend(_binding({update.variable: update.value for update in updates}))
    _add_initialization(info, GraphBuilder(names, builder.opset), weights, updates, forward, recipe)
    if writer.averages:
        model.metadata_props.add(key=AVERAGES_KEY, value=json.dumps(writer.averages))
    _add_functions(model, builder.functions[len(model.functions) :])
    _import(model, TRAINING_DOMAIN)


def _add_functions(model: onnx.ModelProto, functions: Iterable[onnx.FunctionProto]) -> None:
    for function in functions:
        model.ir_version = max(model.ir_version, FUNCTIONS_IR_VERSION)
        model.functions.append(function)
        _import(model, function.domain)


def _import(model: onnx.ModelProto, domain: str) -> None:
    if all(entry.domain != domain for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(domain, 1))


def _read_by_loss(sources: Sources) -> set[str]:
    every = [source for group in sources for source in group]
    shapes = (name for source in every for node in source.tail for name in node.input[1:] if name)
    return {*(source.value for source in every), *shapes}


def _data_inputs(graph: onnx.GraphProto, targets: Collection[str]) -> list[str]:
    """The inputs that the loss depends on and that are fed: those with no value in the file."""
    stored = {tensor.name for tensor in graph.initializer}
    stored |= {sparse.values.name for sparse in graph.sparse_initializer}
    _, read = needed_nodes(graph.node, targets)
    return [value.name for value in graph.input if value.name in read and value.name not in stored]


def _write_loss(
    builder: GraphBuilder, types: Types, sources: Sources, renamed: Mapping[str, str], recipe: Recipe
) -> WrittenLoss:
    predictions = [[_predict(builder, types, source, renamed) for source in group] for group in sources]
    return write_terms(builder, recipe.terms, predictions)


def _predict(builder: GraphBuilder, types: Types, source: Source, renamed: Mapping[str, str]) -> Prediction:
    value = source.write_tail(builder, renamed.get(source.value, source.value), renamed)
    element_type, dims = types.element_type(source.output), types.dimensions(source.output)
    return Prediction(source.output, value, element_type, dims, source.class_axis)


def _write_gradients(
    builder: GraphBuilder, weights: Sequence[Weight], data_inputs: Sequence[str], loss: WrittenLoss, target: str
) -> tuple[str, ...]:
    xs = [weight.name for weight in weights]
    zs = [*data_inputs, *(value.name for value in loss.inputs)]
    outputs = [f"{name}/gradient" for name in xs]
    return builder.add_node(
        "Gradient", [*xs, *zs], outputs, name="gradient", domain=TRAINING_DOMAIN, xs=xs, zs=zs, y=target
    )


def _declared_gradients(weights: Sequence[Weight], gradients: Sequence[str]) -> list[onnx.ValueInfoProto]:
    """The types of the gradients, which no type inference knows: ONNX has none for this operator."""
    return [
        helper.make_tensor_value_info(name, weight.element_type, weight.dims)
        for weight, name in zip(weights, gradients, strict=True)
    ]


def _algorithm(builder: GraphBuilder, loss: WrittenLoss, updates: Iterable[Update]) -> onnx.GraphProto:
    outputs = [helper.make_tensor_value_info(loss.value, loss.element_type, []), *builder.outputs]
    outputs += [helper.make_tensor_value_info(update.value, update.element_type, update.dims) for update in updates]
    return helper.make_graph(
        builder.nodes, "training_step", [*loss.inputs, *builder.inputs], outputs, builder.initializers
    )


def _add_initialization(
    info: onnx.TrainingInfoProto,
    builder: GraphBuilder,
    weights: Sequence[Weight],
    updates: Sequence[Update],
    forward: TrainingForward,
    recipe: Recipe,
) -> None:
    drawn = write_weights(builder, weights, find_schemes(recipe.initialize, weights), recipe.seed)
    kept = [update for update in forward.statistics if drawn.keys().isdisjoint(forward.normalized[update.variable])]
    initial = write_constants(builder, [update for update in updates if update not in kept])
    initial |= {**drawn, **write_copies(builder, updates, drawn), **write_derived(builder, updates, drawn)}
    if not initial:
        return
    shapes = {update.variable: update for update in updates}
    outputs = [
        helper.make_tensor_value_info(value, shapes[variable].element_type, shapes[variable].dims)
        for variable, value in initial.items()
    ]
    graph = helper.make_graph(builder.nodes, "initialization", [], outputs, builder.initializers)
    what = f"Gives {len(drawn)} of {len(weights)} weights new values" if drawn else "Keeps the weights"
    graph.doc_string = f"{what} and sets the state of the optimizer back to zero."
    info.initialization.CopyFrom(graph)
    info.initialization_binding.extend(_binding(initial))


def _binding(pairs: Mapping[str, str]) -> list[onnx.StringStringEntryProto]:
    return [onnx.StringStringEntryProto(key=key, value=value) for key, value in pairs.items()]


def _description(
    sources: Sources, weights: Sequence[Weight], loss: WrittenLoss, forward: TrainingForward, recipe: Recipe
) -> str:
    """What whoever opens the file needs to know of the algorithm."""
    mode = "The forward pass is the inference graph's."
    if forward.renamed:
        mode = "The nodes training/... are the forward pass with BatchNormalization and Dropout in training mode."
    terms = " + ".join(
        f"{'' if term.weight == 1.0 else f'{term.weight} times '}{describe(kind)} of {_describe_sources(group)}"
        for (term, kind), group in zip(recipe.terms, sources, strict=True)
    )
    fed = f", against {listed(value.name for value in loss.inputs)}" if loss.inputs else ""
    names = [weight.name for weight in weights]
    return (
        f"One step of training. {loss.value!r} is {terms}{fed}. {mode} "
        f"{type(recipe.updates.optimizer).__name__} trains {len(names)} tensors: {listed(names)}. "
        f"{recipe.updates.describe()}"
    )


def _describe_sources(sources: Sequence[Source]) -> str:
    return ", ".join(
        f"{one.output!r}"
        if one.value == one.output
        else f"{one.output!r} (from {one.value!r}, before its last activation)"
        for one in sources
    )
