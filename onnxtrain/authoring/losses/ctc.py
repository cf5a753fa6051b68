"""Connectionist temporal classification (Graves et al., 2006): labels without their places in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.losses.rule import SOFTMAX, Fed, Prediction, single, words
from onnxtrain.errors import ModelError, UnsupportedError

_OLDEST_OPSET = 11  # GatherElements
_NEVER = -1e30  # the logarithm of a probability of 0, as a finite number, so that gradients are finite


@dataclass(frozen=True)
class Ctc:
    """Minus the logarithm of the probability of the label sequences, over all their places in time.

    The output holds class scores [N, T, C]. A step is fed `labels` int64 [N, S], padded with anything, and
    `labels_lengths` int64 [N]: how many of them count. As in PyTorch, each example's loss is divided by its number of
    labels, and the loss is the mean over examples. A sequence that does not fit into T steps counts as 0.

    Attributes:
      blank: the class that stands for no label.
      time_first: whether the output is [T, N, C].
      input_lengths: whether the input `labels_input_lengths` int64 [N] says how many steps of each example count.
    """

    blank: int = 0
    time_first: bool = False
    input_lengths: bool = False

    replaces = SOFTMAX

    def write(self, builder: GraphBuilder, predictions: Sequence[Prediction], fed: Fed, labels: str) -> str:
        """Adds the nodes: the forward recursion over the steps, as a Scan in logarithms."""
        return _Recursion(self, builder, single(predictions, self), fed, labels).write()


class _Recursion:
    """The forward variables of labels with blanks between them, [N, 2 S + 1], step by step."""

    def __init__(self, loss: Ctc, builder: GraphBuilder, prediction: Prediction, fed: Fed, labels: str):
        if builder.opset < _OLDEST_OPSET:
            raise UnsupportedError(
                f"The loss 'ctc' needs operators of opset {_OLDEST_OPSET}, and the model imports {builder.opset}. "
                "Convert it first (onnx.version_converter)."
            )
        dims = prediction.known_dims()
        if len(dims) != 3:
            raise ModelError(
                f"The loss 'ctc' needs scores [N, T, C], but {prediction.output!r} has the shape {words(dims)}."
            )
        batch = dims[1] if loss.time_first else dims[0]
        self._loss, self._builder, self._type = loss, builder, prediction.working_type
        self._labels = fed.input(labels, TensorProto.INT64, (batch, None))
        self._lengths = fed.input(f"{labels}_lengths", TensorProto.INT64, (batch,))
        self._steps = fed.input(f"{labels}_input_lengths", TensorProto.INT64, (batch,)) if loss.input_lengths else None
        value = prediction.working_value(builder)
        scores = value if loss.time_first else self._op("Transpose", value, name="scores", perm=[1, 0, 2])
        self._log_probability = self._op("LogSoftmax", scores, name="log_probability", axis=2)

    def write(self) -> str:
        """Adds all nodes."""
        states = self._with_blanks()
        emitted = self._emissions(states)
        first = self._op("Gather", emitted, self._ints("first", 0), name="emission/first", axis=0)
        start = self._op("Where", self._below(states, 2), first, self._float("never", _NEVER), name="start")
        rest = self._slice(emitted, 0, 1, None, "emission/rest")
        scanned = [rest] if self._steps is None else [rest, self._running(emitted)]
        body = self._body(self._may_skip(states), with_running=self._steps is not None)
        last = self._builder.add(
            "Scan", (start, *scanned), "loss/ctc/last", name="loss/ctc", body=body, num_scan_inputs=len(scanned)
        )
        return self._mean(last)

    def _with_blanks(self) -> str:
        """The states of the recursion: a blank, the first label, a blank, and so on, [N, 2 S + 1]."""
        size = self._op("Shape", self._labels, name="labels/shape")
        count = self._op("Gather", size, self._ints("axis", 1), name="labels/count", axis=0)
        places = self._op("Range", self._ints("none", 0), count, self._ints("one", 1), name="labels/places")
        column = self._op("Unsqueeze", self._lengths, name="lengths/column", axes=[1])
        counts = self._op("Less", places, column, name="labels/counts")
        blank = self._ints("blank", self._loss.blank)
        labels = self._op("Where", counts, self._labels, blank, name="labels/padded")
        blanks = self._op("Expand", blank, size, name="blanks")
        pairs = self._op(
            "Concat",
            self._op("Unsqueeze", blanks, name="blanks/column", axes=[2]),
            self._op("Unsqueeze", labels, name="labels/column", axes=[2]),
            name="pairs",
            axis=2,
        )
        # 0 keeps the size of the batch
        flat = self._op("Reshape", pairs, self._ints("flat", (0, -1)), name="pairs/flat")
        column = self._op("Expand", blank, self._op("Shape", column, name="column/shape"), name="blank/last")
        return self._op("Concat", flat, column, name="states", axis=1)

    def _emissions(self, states: str) -> str:
        """The logarithm of the probability of each state at each step, [T, N, 2 S + 1]."""
        shape = self._op("Shape", self._log_probability, name="log_probability/shape")
        steps = self._slice(shape, 0, 0, 1, "steps")
        size = self._op("Concat", steps, self._op("Shape", states, name="states/shape"), name="emission/shape", axis=0)
        index = self._op("Expand", states, size, name="states/each_step")
        return self._op("GatherElements", self._log_probability, index, name="emission", axis=2)

    def _may_skip(self, states: str) -> str:
        """Where a state may follow the one before the last: at a label that differs from the label before."""
        before = self._shifted(states, 2, self._ints("nothing", -1), "states/before")
        is_same = self._op("Equal", states, before, name="states/same")
        is_blank = self._op("Equal", states, self._ints("blank_state", self._loss.blank), name="states/blank")
        return self._op("Not", self._op("Or", is_same, is_blank, name="states/stay"), name="states/may_skip")

    def _running(self, emitted: str) -> str:
        """Whether each step after the first counts, [T - 1, N, 1]."""
        shape = self._op("Shape", emitted, name="emission/size")
        steps = self._op("Gather", shape, self._ints("time", 0), name="steps/count", axis=0)
        numbers = self._op("Range", self._ints("second", 1), steps, self._ints("each", 1), name="steps/numbers")
        column = self._op("Unsqueeze", numbers, name="steps/column", axes=[1, 2])
        assert self._steps is not None
        limit = self._op("Unsqueeze", self._steps, name="steps/limit", axes=[1])
        return self._op("Less", column, limit, name="steps/running")

    def _body(self, may_skip: str, *, with_running: bool) -> onnx.GraphProto:
        """One step: the logarithm of the sum over staying, moving on by one, and skipping a blank."""
        outer, names = self._builder, self._builder.names
        self._builder = outer.nested()
        before, emission = names.fresh("loss/ctc/before"), names.fresh("loss/ctc/emission/step")
        running = names.fresh("loss/ctc/running")
        never = self._float("never", _NEVER)
        moved = self._shifted(before, 1, never, "moved")
        skipped = self._op("Where", may_skip, self._shifted(before, 2, never, "skipped"), never, name="skipped/allowed")
        largest = self._op("Max", before, moved, skipped, name="largest")
        parts = [
            self._op("Exp", self._op("Sub", part, largest, name="part"), name="part/exp")
            for part in (before, moved, skipped)
        ]
        logarithm = self._op("Log", self._op("Sum", *parts, name="sum"), name="log")
        after = self._op("Add", self._op("Add", largest, logarithm, name="total"), emission, name="after")
        if with_running:
            after = self._op("Where", running, after, before, name="after/held")
        inner, self._builder = self._builder, outer
        inputs = [helper.make_tensor_value_info(name, self._type, [None, None]) for name in (before, emission)]
        outputs = [helper.make_tensor_value_info(after, self._type, [None, None])]
        if with_running:
            inputs.append(helper.make_tensor_value_info(running, TensorProto.BOOL, [None, 1]))
        return helper.make_graph(inner.nodes, "ctc_step", inputs, outputs)

    def _mean(self, last: str) -> str:
        """The mean over examples of what the last two states of each have, divided by its number of labels."""
        two, one = self._ints("two", 2), self._ints("one_label", 1)
        column = self._op("Unsqueeze", self._lengths, name="lengths/end", axes=[1])
        end = self._op("Mul", column, two, name="end")
        at_blank = self._op("GatherElements", last, end, name="end/blank", axis=1)
        some = self._op("Greater", column, self._ints("no_label", 0), name="end/some")
        label = self._op("Where", some, self._op("Sub", end, one, name="end/before"), end, name="end/index")
        at_label = self._op("GatherElements", last, label, name="end/label", axis=1)
        at_label = self._op("Where", some, at_label, self._float("never", _NEVER), name="end/label/some")
        largest = self._op("Max", at_blank, at_label, name="end/largest")
        parts = [
            self._op("Exp", self._op("Sub", part, largest, name="end/part"), name="end/part/exp")
            for part in (at_blank, at_label)
        ]
        logarithm = self._op("Log", self._op("Sum", *parts, name="end/sum"), name="end/log")
        total = self._op("Add", largest, logarithm, name="end/total")
        fits = self._op("Greater", total, self._float("impossible", _NEVER / 2), name="end/fits")
        total = self._op("Where", fits, total, self._float("nothing_lost", 0.0), name="end/fitting")
        count = self._op("Where", some, column, one, name="end/count")
        each = self._op("Div", total, self._builder.cast(count, self._type, "loss/ctc/end/divisor"), name="end/each")
        return self._builder.add("Neg", (self._builder.mean(each, "loss/ctc/mean"),), "loss")

    def _below(self, states: str, limit: int) -> str:
        """Whether a state has an index below this, [2 S + 1]."""
        shape = self._op("Shape", states, name="states/size")
        count = self._op("Gather", shape, self._ints("states_axis", 1), name="states/count", axis=0)
        indices = self._op("Range", self._ints("start", 0), count, self._ints("by", 1), name="states/index")
        return self._op("Less", indices, self._ints("limit", limit), name="states/first")

    def _shifted(self, value: str, by: int, fill: str, name: str) -> str:
        """The states moved up by some places, [N, 2 S + 1], with `fill` in front."""
        pads = self._ints(f"{name}/pads", (0, by, 0, 0))
        padded = self._op("Pad", value, pads, fill, name=f"{name}/padded")
        return self._slice(padded, 1, 0, -by, name)

    def _slice(self, value: str, axis: int, start: int, end: int | None, name: str) -> str:
        limits = (start, np.iinfo(np.int64).max if end is None else end, axis)
        parts = ("start", "end", "axis")
        inputs = [self._ints(f"{name}/{word}", (limit,)) for word, limit in zip(parts, limits, strict=True)]
        return self._op("Slice", value, *inputs, name=name)

    def _op(self, op_type: str, *inputs: str, name: str, **attributes: Any) -> str:
        axes = attributes.pop("axes", None)
        if isinstance(axes, list):  # of Unsqueeze: an input since opset 13
            if self._builder.opset >= 13:
                inputs = (*inputs, self._ints(f"{name}/axes", axes))
            else:
                attributes["axes"] = axes
        return self._builder.add(op_type, inputs, f"loss/ctc/{name}", **attributes)

    def _ints(self, name: str, value: int | Sequence[int]) -> str:
        return self._builder.integers(f"loss/ctc/{name}", value)

    def _float(self, name: str, value: float) -> str:
        return self._builder.initializer(f"loss/ctc/{name}", value, self._type)
