"""Branches and loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax.extend.core import ClosedJaxpr
from onnx import GraphProto, helper

from onnxtrain.authoring.jax_functions.elementwise import compare
from onnxtrain.authoring.jax_functions.shapes import sliced
from onnxtrain.authoring.jax_functions.writer import Equation, TensorType, Writer, rule

_ITERATION = TensorType(np.dtype(np.int64), ())
_FLAG = TensorType(np.dtype(np.bool_), ())


@rule("call", "closed_call", "custom_jvp_call", "custom_vjp_call", "jit", "remat2")
def called(writer: Writer, equation: Equation, *inputs: str) -> list[str]:
    """A function that is called is written in its place."""
    params = equation.params
    body = params["call_jaxpr"] if "call_jaxpr" in params else params["jaxpr"]
    return writer.inline(body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ()), inputs)


@rule("cond")
def conditional(writer: Writer, equation: Equation, which: str, *operands: str) -> Sequence[str]:
    """If; with more than two branches, one inside the other."""
    branches, kind = equation.params["branches"], equation.inputs[0]
    return _choose(writer, branches, 0, which, kind, operands, equation.outputs)


def _choose(
    writer: Writer,
    branches: Sequence[ClosedJaxpr],
    first: int,
    which: str,
    kind: TensorType,
    operands: Sequence[str],
    outputs: Sequence[TensorType],
) -> Sequence[str]:
    if len(branches) == first + 1:
        return writer.inline(branches[first], operands)
    if kind.dtype == np.bool_:
        is_later = which
    else:
        is_later = compare(writer, "Greater", kind.dtype, which, writer.constant(first, kind.dtype))
    early, late = writer.nested(), writer.nested()
    found = early.inline(branches[first], operands)
    rest = _choose(late, branches, first + 1, which, kind, operands, outputs)
    graphs = {"else_branch": _graph(early, "first", [], found, outputs)}
    graphs["then_branch"] = _graph(late, "later", [], rest, outputs)
    return writer.ops("If", (is_later,), len(outputs), **graphs)


@rule("while")
def repeated(writer: Writer, equation: Equation, *operands: str) -> Sequence[str]:
    """Loop without a limit; whether it goes on is computed at its end."""
    params = equation.params
    split = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    of_condition, of_body, carried = operands[: split[0]], operands[split[0] : split[1]], operands[split[1] :]
    goes_on = writer.inline(params["cond_jaxpr"], [*of_condition, *carried])[0]
    body = writer.nested()
    names = [_fresh(body) for _ in carried]
    results = body.inline(params["body_jaxpr"], [*of_body, *names])
    goes_on_after = body.inline(params["cond_jaxpr"], [*of_condition, *results])[0]
    inputs = [(_fresh(body), _ITERATION), (_fresh(body), _FLAG), *zip(names, equation.outputs, strict=True)]
    graph = _graph(body, "body", inputs, [goes_on_after, *results], [_FLAG, *equation.outputs])
    return writer.ops("Loop", ("", goes_on, *carried), len(carried), body=graph)


@rule("scan")
def scanned(writer: Writer, equation: Equation, *operands: str) -> Sequence[str]:
    """Loop over the first axis of some operands, from either end."""
    params = equation.params
    length, first, count = params["length"], params["num_consts"], params["num_carry"]
    constants, carried, sequences = (
        operands[:first],
        operands[first : first + count],
        operands[first + count :],
    )
    body = writer.nested()
    iteration, flag, names = _fresh(body), _fresh(body), [_fresh(body) for _ in carried]
    place = iteration
    if params["reverse"]:
        place = body.op("Sub", body.op("Sub", body.size(length), body.integers(1)), iteration)
    elements = [body.op("Gather", sequence, place, axis=0) for sequence in sequences]
    results = body.inline(params["jaxpr"], [*constants, *names, *elements])
    collected = [TensorType(kind.dtype, kind.shape[1:]) for kind in equation.outputs[count:]]
    kinds = equation.outputs[:count]
    inputs = [(iteration, _ITERATION), (flag, _FLAG), *zip(names, kinds, strict=True)]
    graph = _graph(body, "body", inputs, [flag, *results], [_FLAG, *kinds, *collected])
    found = writer.ops("Loop", (writer.size(length), "", *carried), len(equation.outputs), body=graph)
    if not params["reverse"]:
        return found
    ends = [sliced(writer, name, [-1], [-(2**31 - 1)], [0], [-1]) for name in found[count:]]
    return [*found[:count], *ends]


def _fresh(writer: Writer) -> str:
    return writer.builder.names.fresh(f"{writer.label}/carried")


def _graph(
    writer: Writer,
    name: str,
    inputs: Sequence[tuple[str, TensorType]],
    outputs: Sequence[str],
    kinds: Sequence[TensorType],
) -> GraphProto:
    """The graph of what a nested writer wrote; an output of its own for each value, also one from outside."""
    own = [writer.op("Identity", value) for value in outputs]
    return helper.make_graph(
        writer.builder.nodes,
        name,
        [writer.declaration(name, kind) for name, kind in inputs],
        [writer.declaration(name, kind) for name, kind in zip(own, kinds, strict=True)],
    )
