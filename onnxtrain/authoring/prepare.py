"""From an inference model to a training model: the steps, one after the other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx

from onnxtrain.authoring import batch, rewrites, tying
from onnxtrain.authoring.adapters import LoRA, adapter_names, fresh_adapters, insert_adapters
from onnxtrain.authoring.clipping import Clip, ClipByGlobalNorm
from onnxtrain.authoring.groups import Group
from onnxtrain.authoring.initializers import Initialization
from onnxtrain.authoring.insertion import insert_normalization
from onnxtrain.authoring.learning_rate import FedRate
from onnxtrain.authoring.loss_scaling import LossScale
from onnxtrain.authoring.losses import Loss, LossLike, Term, as_terms, find_loss
from onnxtrain.authoring.names import Names
from onnxtrain.authoring.optimizers import Optimizer, choose_rate, find_optimizer
from onnxtrain.authoring.prediction import Source, choose_output, find_source
from onnxtrain.authoring.readiness import check_can_be_prepared, drop_inputs, make_ready
from onnxtrain.authoring.schedules import Schedule
from onnxtrain.authoring.schemes import KEEP
from onnxtrain.authoring.selection import patterns_of
from onnxtrain.authoring.source import load
from onnxtrain.authoring.training_info import Recipe, add_training_info
from onnxtrain.authoring.updates import UpdatePlan
from onnxtrain.authoring.value_types import Types, infer_types
from onnxtrain.authoring.weights import choose_weights

if TYPE_CHECKING:
    from optax import GradientTransformation


def make_trainable(
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    loss: LossLike = "softmax_cross_entropy",
    optimizer: str | Optimizer | GradientTransformation = "adam",
    learning_rate: float | Schedule | FedRate | None = None,
    clip: float | Clip | None = None,
    accumulate: int = 1,
    average: float | None = None,
    loss_scale: LossScale | None = None,
    groups: Sequence[Group] = (),
    trainable: str | Sequence[str] | None = None,
    frozen: str | Sequence[str] | None = None,
    output: str | None = None,
    class_axis: int | None = None,
    initialize: Initialization = KEEP,
    seed: int | None = 0,
    free_batch: bool = False,
    dropout: Mapping[str, float] | None = None,
    normalize: str | Sequence[str] | None = None,
    tie: bool = False,
    keep_constants: bool = False,
    dequantize: bool = False,
    adapters: LoRA | None = None,
) -> onnx.ModelProto:
    """Adds training information to an inference model: plain ONNX in, plain ONNX out.

    The result infers what the model infers. Its one `TrainingInfoProto` holds an algorithm that reads the model's
    inputs and one more, `labels`, and computes the scalar `loss`, its gradients by the operator `Gradient`, and the
    next weights; all of it in operators of the model's own opset. Where the model has BatchNormalization or Dropout,
    the algorithm holds a training-mode copy of the forward pass. The running statistics, the optimizer's state, the
    step counter and the `learning_rate` are state variables like the weights, so that a saved model resumes exactly.

    Args:
      model: a file or a `ModelProto`, which is not changed.
      loss: a name of `onnxtrain.authoring.losses.LOSSES`, or a loss from there with options of its own.
        `"softmax_cross_entropy"` takes int64 class numbers as labels, of the shape of the output without its class
        axis. At the end of a model, a Softmax or LogSoftmax is part of the loss: it starts from the logits; so is a
        Sigmoid of `"binary_cross_entropy"`. `"mean_squared_error"` takes labels of the type and shape of the output.
        An ONNX model, by its file too, or a JAX function of predictions and labels can be a loss, and several `Term`s
        add up.
      optimizer: `"sgd"`, `"momentum"`, `"nesterov"`, `"adagrad"`, `"rmsprop"`, `"adam"`, `"adamw"`, `"nadam"`,
        `"radam"`, `"lamb"`, `"lion"`, `"adafactor"`, or an optimizer of `onnxtrain.authoring` with coefficients of its
        own; or any `optax.GradientTransformation`, which sees the weights as a dict by name, becomes ONNX as a whole,
        and has its own learning rate.
      learning_rate: what the state variable `learning_rate` starts with, by default 1e-3; or a schedule of
        `onnxtrain.authoring.schedules`, whose value a step then gives as the output `learning_rate`; or a `FedRate`,
        for an input of that name.
      clip: `ClipByGlobalNorm`, for which a number will do, `ClipByNorm` or `ClipByValue`.
      accumulate: how many steps make one update, which is that of their batches taken together.
      average: the decay of a moving average of every weight, which starts at the weight: 0.999, for example.
        `session.export(path, averaged=True)` writes it.
      loss_scale: `LossScale()` scales the loss of a float16 model dynamically.
      groups: `Group`s of weights, with their share of the learning rate and a weight decay of their own.
      trainable: patterns; only the weights that match are trained. `"encoder.*"` is a glob over the names of weights,
        `"node:conv*"` means the weights of nodes by name, `"last:3"` and `"first:3"` those of so many layers from
        either end. A full name may also be that of a float tensor that is no weight by its place, such as a scalar.
        By default all weights that influence the output are trained: every float tensor that a layer uses as one, no
        constants of plain arithmetic.
      frozen: patterns, likewise; weights that match are not trained. A BatchNormalization whose scale and bias are
        both not trained keeps its running statistics and goes on using them.
      output: the output that the loss looks at; needed when there are several float outputs.
      class_axis: the axis of the class scores; by default axis 1 of images (rank 4 and more), else the last.
      initialize: what the initialization graph does with the weights: `"keep"` leaves them at their stored values; a
        scheme of `onnxtrain.authoring.schemes`, or its name, such as `"he_normal"`, `"orthogonal"` or `"normal:0.02"`,
        draws kernels and embeddings anew and sets biases to 0 and scales to 1; `"zeros"`, `"ones"` and
        `"constant:VALUE"` fill all of them. A mapping says it by pattern, the first that matches: `{"last:1":
        "glorot_uniform"}` draws the last layer and keeps the others.
      seed: fixes what is drawn; None leaves it to the seed of the session.
      dropout: shares of values that training drops, by pattern: a glob over the names of values, or `"node:..."` over
        those of nodes. Where the model has a Dropout, this is its ratio. What the model infers stays the same.
      normalize: patterns, as in `trainable`; every Conv, ConvTranspose and Gemm whose kernel matches gets back the
        BatchNormalization that its exporter folded into it. It starts as the identity when the model infers; training
        takes the statistics of the batch from the first step on, and export folds it again.
      adapters: trains a low-rank adapter (`LoRA`) beside each chosen weight, instead of the weight. Of a model with
        adapters, these alone are trained, and what `trainable` names. `session.export` adds them to the weights, and
        `save_adapters` writes them to a file of their own.
      tie: trains kernels and embeddings of equal values, transposed or not, as one weight: an exporter that folds a
        Transpose stores one twice. `onnxtrain inspect` lists them.
      keep_constants: lets weights that the file holds in Constant nodes be Constant nodes again when the model is
        exported.
      dequantize: turns weights that stand as integers behind a DequantizeLinear into floats, which can be trained.
      free_batch: first lets the model take any batch size where its author fixed one (`free_batch`).

    Raises:
      ModelError: the model has no such output, a pattern matches no weight, or there is nothing to train.
      UnsupportedError: a name that is not known, or a model that cannot be trained as it stands.
    """
    clip = ClipByGlobalNorm(clip) if isinstance(clip, int | float) else clip
    chosen = find_optimizer(optimizer)
    rate = choose_rate(chosen, learning_rate)
    updates = UpdatePlan(chosen, rate, clip, accumulate, loss_scale, average, tuple(groups))
    terms = [(term, find_loss(term.loss)) for term in as_terms(loss, output)]
    recipe = Recipe(terms, updates, initialize, seed, dropout or {})
    proto = load(model)
    check_can_be_prepared(proto)
    if free_batch:
        batch.free_in_place(proto)
    names = Names(proto)
    constants = rewrites.constant_nodes(proto.graph)
    make_ready(proto, names, dequantize=dequantize)
    types = infer_types(proto)
    if tie:
        tying.tie(proto, tying.find_ties(proto, types))
    if normalize is not None:
        insert_normalization(proto, names, types, patterns_of(normalize))
    if tie or normalize is not None:
        types = infer_types(proto)
    sources = [_find_sources(proto.graph, types, term, loss, class_axis) for term, loss in terms]
    values = {source.value for group in sources for source in group}
    if adapters is not None:
        insert_adapters(proto, names, adapters, values, seed or 0)
        types = infer_types(proto)
    wanted = (*adapter_names(proto.graph, values), *patterns_of(trainable or ())) or None
    weights = choose_weights(proto, types, values, wanted, patterns_of(frozen or ()))
    rewrites.promote_constants(proto.graph, {weight.name for weight in weights})
    drop_inputs(proto.graph, {weight.name for weight in weights})
    trained = {weight.name for weight in weights}
    recipe = replace(recipe, initialize=fresh_adapters(proto.graph, trained, initialize))
    add_training_info(proto, names, types, sources, weights, recipe)
    if keep_constants:
        rewrites.remember_constants(proto, constants)
    return proto


def _find_sources(
    graph: onnx.GraphProto, types: Types, term: Term, loss: Loss, class_axis: int | None
) -> Sequence[Source]:
    """What a term of the loss looks at."""
    named = [term.outputs] if term.outputs is None or isinstance(term.outputs, str) else term.outputs
    sources = [find_source(graph, choose_output(graph, types, name), before=loss.replaces) for name in named]
    return sources if class_axis is None else [replace(source, class_axis=class_axis) for source in sources]
