"""If, Loop, Scan and SequenceMap: graphs as attributes, run once, many times or not at all.

A loop is compiled once with `lax.scan` when every iteration is alike: a known number of them, and carried values
that keep their shapes and types. Otherwise its iterations are written out one after another, which also handles
sequences that grow, shapes that change, and counters that a body needs while tracing. A loop that ends by a
condition computed on the way becomes `lax.while_loop`; only that one has no gradient unless its trip count has a
bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import OperatorError, StaticValueError, UnsupportedError
from onnxtrain.lowering.registry import Array, Body, Ints, Value, op
from onnxtrain.lowering.static import StaticInputError, device_dtype, is_static, namespace, traced

# A loop over static values runs in numpy, so that shapes stay known; beyond this many iterations it is compiled.
MAX_STATIC_TRIPS = 1000
# The backward pass of a loop with a condition keeps every iteration that its trip count allows.
MAX_DIFFERENTIABLE_TRIPS = 10_000
MAX_UNROLLED_TRIPS = 100_000

_TRUE = np.asarray(True)

# (number of the iteration, carried values, elements of the scanned sequences) -> (goes on, carried values, outputs)
_Step = Callable[[Any, Sequence[Any], Sequence[Any]], tuple[Any, Sequence[Any], Sequence[Any]]]


class _IrregularError(Exception):
    """Iterations differ in the shapes or types that they carry, or carry what cannot be traced."""


class _TracedConditionError(Exception):
    """The condition to go on depends on traced values."""


@op("If")
def if_(cond: Array, *, then_branch: Body, else_branch: Body) -> tuple[Value, ...]:
    """A condition that is known while tracing picks its branch there; otherwise both must run and give alike values."""
    if is_static(cond):
        return (then_branch if _scalar(cond) else else_branch)()
    signatures = []

    def run(branch: Body) -> Any:
        try:
            values = _traced(branch())
        except (_IrregularError, OperatorError):
            # The branch that is not taken may be for inputs of other shapes than these.
            raise StaticInputError("cond", 0) from None
        signatures.append(_signature(values))
        if signatures[-1] != signatures[0]:
            raise StaticInputError("cond", 0)
        return values

    return jax.lax.cond(_scalar(cond), lambda: run(then_branch), lambda: run(else_branch))


@op("Loop")
def loop(m: Value = None, cond: Value = None, *v_initial: Value, body: Body) -> tuple[Value, ...]:
    """The number of rows of a scan output is the number of iterations, which must then be known while tracing."""
    count = len(v_initial)
    limit = math.inf if m is None else _scalar(m)
    going = _TRUE if cond is None else _scalar(cond)

    def step(i: Any, carried: Sequence[Any], _: Sequence[Any]) -> tuple[Any, Sequence[Any], Sequence[Any]]:
        # The body runs only while the condition holds, so it can be told that it does.
        goes_on, *values = body(i, _TRUE, *carried, iteration=i)
        return _TRUE if cond is None else _scalar(goes_on), values[:count], values[count:]

    if is_static(going) and not going:
        limit = 0
    if cond is None and is_static(limit) and limit == math.inf:
        raise OperatorError("It has neither a trip count nor a condition, so it would never end.")
    try:
        if is_static(limit) and limit != math.inf and is_static(going):
            return _flat(_repeat(step, v_initial, (), int(limit), inputs=(m, cond, *v_initial)))
        raise _TracedConditionError
    except _TracedConditionError:
        if len(body.output_names) == 1 + count:
            try:
                return tuple(_while(step, v_initial, limit, going))
            except (_IrregularError, StaticValueError):
                pass
        return _flat(_unroll(step, v_initial, (), limit, going, inputs=(m, cond, *v_initial)))


@op("Scan", since=9)
def scan(
    *initial_state_and_scan_inputs: Value,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: Ints = (),
    scan_input_directions: Ints = (),
    scan_output_axes: Ints = (),
    scan_output_directions: Ints = (),
) -> tuple[Value, ...]:
    count = len(initial_state_and_scan_inputs) - num_scan_inputs
    states, inputs = initial_state_and_scan_inputs[:count], initial_state_and_scan_inputs[count:]
    outputs = len(body.output_names) - count
    sequences = [
        _reversed(namespace(value).moveaxis(value, axis, 0), direction)
        for value, axis, direction in zip(
            inputs, scan_input_axes or (0,) * len(inputs), scan_input_directions or (0,) * len(inputs), strict=True
        )
    ]

    def step(i: Any, carried: Sequence[Any], elements: Sequence[Any]) -> tuple[Any, Sequence[Any], Sequence[Any]]:
        values = body(*carried, *elements, iteration=i)
        return _TRUE, values[:count], values[count:]

    carried, collected = _repeat(step, states, sequences, _common_length(sequences, axis=0))
    return *carried, *(
        namespace(value).moveaxis(_reversed(value, direction), 0, axis)
        for value, axis, direction in zip(
            collected, scan_output_axes or (0,) * outputs, scan_output_directions or (0,) * outputs, strict=True
        )
    )


@op("Scan")
def scan_batch(
    sequence_lens: Array | None = None,
    *initial_state_and_scan_inputs: Array,
    body: Body,
    num_scan_inputs: int,
    directions: Ints = (),
) -> tuple[Array, ...]:
    """Opset 8 scans axis 1 of a batch of sequences, each up to a length of its own.

    Undefined in ONNX: scan outputs beyond a sequence's length; they are 0 here.
    """
    values = [traced(value) for value in initial_state_and_scan_inputs]
    count = len(values) - num_scan_inputs
    length = _common_length(values[count:], axis=1)
    batch = values[count].shape[0]
    lengths = jnp.full(batch, length) if sequence_lens is None else traced(sequence_lens)

    def run(example: Any, own_length: Any, *values: Any) -> tuple[Any, ...]:
        positions = jnp.arange(length, dtype=own_length.dtype)
        backward = jnp.where(positions < own_length, own_length - 1 - positions, positions)
        sequences = [
            value[backward] if direction else value
            for value, direction in zip(values[count:], directions or (0,) * num_scan_inputs, strict=True)
        ]

        def step(i: Any, carried: Sequence[Any], elements: Sequence[Any]) -> tuple[Any, Sequence[Any], Sequence[Any]]:
            found = _traced(body(*carried, *elements, iteration=example * length + i))
            before = (*carried, *(jnp.zeros_like(value) for value in found[count:]))
            alive = i.astype(own_length.dtype) < own_length
            found = [jnp.where(alive, new, old) for new, old in zip(found, before, strict=True)]
            return _TRUE, found[:count], found[count:]

        return _flat(_scan(step, values[:count], sequences, length))

    return jax.vmap(run)(jnp.arange(batch), lengths, *values)


@op("SequenceMap")
def sequence_map(input_sequence: Value, *additional_inputs: Value, body: Body) -> tuple[list[Value], ...]:
    inputs = (input_sequence, *additional_inputs)
    rows = [
        body(*(value[i] if isinstance(value, list) else value for value in inputs), iteration=i)
        for i in range(len(input_sequence))
    ]
    return tuple([row[k] for row in rows] for k in range(len(body.output_names)))


def _repeat(
    step: _Step, carried: Sequence[Any], sequences: Sequence[Any], trips: int, inputs: Sequence[Any] = ()
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Runs a known number of iterations, or fewer when the condition, known while tracing, ends them."""
    if trips <= MAX_STATIC_TRIPS and _stays_static(step, carried, sequences, trips):
        return _unroll(step, carried, sequences, trips, inputs=inputs)
    try:
        return _scan(step, carried, sequences, trips)
    except (_IrregularError, StaticValueError):
        return _unroll(step, carried, sequences, trips, inputs=inputs)


def _stays_static(step: _Step, carried: Sequence[Any], sequences: Sequence[Any], trips: int) -> bool:
    """Whether an iteration over static values reads nothing traced from outside either."""
    if not (is_static(list(carried)) and is_static(list(sequences))):
        return False
    if not trips:
        return True
    found: list[Any] = []

    def first() -> None:
        found.extend(step(np.asarray(0, np.int64), carried, [sequence[0] for sequence in sequences]))

    jax.eval_shape(first)
    return all(is_static(list(values) if isinstance(values, Sequence) else values) for values in found)


def _scan(
    step: _Step, carried: Sequence[Any], sequences: Sequence[Any], trips: int
) -> tuple[Sequence[Any], Sequence[Any]]:
    initial = _traced(carried)
    signature = _signature(initial)

    def once(state: tuple[Any, Any], elements: Any) -> tuple[tuple[Any, Any], Any]:
        i, carried = state
        going, carried, outputs = step(i, carried, elements)
        if not is_static(going):
            raise _TracedConditionError
        carried = _traced(carried)
        if not going or _signature(carried) != signature:
            raise _IrregularError
        return (i + 1, carried), _traced(outputs)

    (_, carried), collected = jax.lax.scan(once, (_zero(), initial), _traced(sequences), length=trips)
    return carried, collected


def _unroll(
    step: _Step,
    carried: Sequence[Any],
    sequences: Sequence[Any],
    limit: Any,
    going: Any = _TRUE,
    inputs: Sequence[Any] = (),
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Writes the iterations out one after another; `inputs` are the node's, one of which is traced if `going` is."""
    rows: list[Sequence[Any]] = []
    initial = carried
    while True:
        if not (is_static(limit) and is_static(going)):
            raise _static_input(inputs)
        if not going or len(rows) >= limit:
            break
        if len(rows) >= MAX_UNROLLED_TRIPS:
            raise UnsupportedError(f"It has not ended after {MAX_UNROLLED_TRIPS} iterations while being traced.")
        i = len(rows)
        going, carried, outputs = step(np.asarray(i, np.int64), carried, [sequence[i] for sequence in sequences])
        rows.append(outputs)
    if not rows:
        return carried, _empty_outputs(step, initial, sequences)
    return carried, [_stack(column) for column in zip(*rows, strict=True)]


def _while(step: _Step, carried: Sequence[Any], limit: Any, going: Any) -> Sequence[Any]:
    """Runs iterations until a condition fails that is only known at run time."""
    initial = _traced(carried)
    signature = _signature(initial)

    def advance(i: Any, carried: Any) -> tuple[Any, Any]:
        going, carried, _ = step(i, carried, ())
        if is_static(going) and going and is_static(limit) and limit == math.inf:
            raise OperatorError("Its condition is always true and it has no trip count, so it would never end.")
        carried = _traced(carried)
        if _signature(carried) != signature:
            raise _IrregularError
        return traced(going), carried

    # Values from outside that are differentiated must be arguments of a function with a derivative of its own.
    closed, outside = jax.closure_convert(advance, _zero(), initial)

    @jax.custom_vjp
    def run(carried: Any, outside: Any, limit: Any, going: Any) -> Any:
        def goes_on(state: Any) -> Any:
            return state[1] & (state[0] < limit)

        def once(state: Any) -> Any:
            return (state[0] + 1, *closed(state[0], state[2], *outside))

        return jax.lax.while_loop(goes_on, once, (_zero(), going, carried))[2]

    def forward(carried: Any, outside: Any, _: Any, going: Any) -> Any:
        trips = _differentiable_trips(limit)
        return jax.vjp(lambda carried, outside: _bounded(closed, carried, outside, going, trips), carried, outside)

    def backward(pullback: Any, cotangents: Any) -> Any:
        return (*pullback(cotangents), None, None)

    run.defvjp(forward, backward)
    largest = np.iinfo(_zero().dtype).max
    bound = jnp.asarray(min(limit, largest), _zero().dtype) if is_static(limit) else limit.astype(_zero().dtype)
    return run(initial, outside, bound, traced(going))


def _differentiable_trips(limit: Any) -> int:
    if not is_static(limit):
        raise StaticInputError("M", 0)
    if limit > MAX_DIFFERENTIABLE_TRIPS:
        raise UnsupportedError(
            "A gradient through a loop that ends by a condition needs a trip count of at most "
            f"{MAX_DIFFERENTIABLE_TRIPS}, and it has {limit}. Give Loop a smaller input 'M'."
        )
    return int(limit)


def _bounded(advance: Callable[..., Any], carried: Any, outside: Any, going: Any, trips: int) -> Any:
    """The same as the while loop, in a number of iterations of which the ones after its end do nothing."""

    def once(state: Any, _: Any) -> tuple[Any, None]:
        i, going, carried = state
        going, carried = jax.lax.cond(
            going, lambda: advance(i, carried, *outside), lambda: (jnp.zeros_like(going), carried)
        )
        return (i + 1, going, carried), None

    return jax.lax.scan(once, (_zero(), going, carried), length=trips)[0][2]


def _traced(values: Any) -> Any:
    """A structure of values with every static array as a JAX array; text cannot be traced."""
    leaves, structure = jax.tree.flatten(tuple(values))
    if any(leaf.dtype.kind in "OUS" for leaf in leaves):
        raise _IrregularError
    return jax.tree.unflatten(structure, [traced(leaf) for leaf in leaves])


def _signature(values: Any) -> Any:
    leaves, structure = jax.tree.flatten(values)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _stack(values: Sequence[Any]) -> Any:
    if is_static(list(values)):
        return np.stack(values)
    return jnp.stack([traced(value) for value in values])


def _empty_outputs(step: _Step, carried: Sequence[Any], sequences: Sequence[Any]) -> list[np.ndarray]:
    """What an iteration that never runs would have put out, zero times."""

    def first() -> Any:
        elements = [jnp.zeros(sequence.shape[1:], sequence.dtype) for sequence in sequences]
        return _traced(step(np.asarray(0, np.int64), carried, elements)[2])

    return [np.zeros((0, *shaped.shape), shaped.dtype) for shaped in jax.eval_shape(first)]


def _static_input(inputs: Sequence[Any]) -> StaticValueError:
    """The error for a loop that must be written out, but whose length depends on a traced input."""
    names = ("M", "cond", *(f"v_initial {i}" for i in range(len(inputs))))
    for position, (name, value) in enumerate(zip(names, inputs, strict=False)):
        if not is_static(value):
            return StaticInputError(name, position)
    return StaticValueError(
        "The number of iterations must be known while tracing, because scan outputs or carried values take their "
        "shapes from it, but the condition depends on values that are only known at run time."
    )


def _scalar(value: Any) -> Any:
    """The one element of an array; trip counts and conditions come with shape [] or [1]."""
    return value.reshape(())


def _zero() -> jax.Array:
    return jnp.zeros((), device_dtype(np.int64))


def _reversed(value: Any, direction: int) -> Any:
    return namespace(value).flip(value, 0) if direction else value


def _common_length(sequences: Sequence[Any], axis: int) -> int:
    lengths = {sequence.shape[axis] for sequence in sequences}
    if len(lengths) != 1:
        raise OperatorError(f"Scanned inputs must have one length; they have {sorted(lengths)}.")
    return lengths.pop()


def _flat(results: tuple[Sequence[Any], Sequence[Any]]) -> tuple[Any, ...]:
    carried, collected = results
    return (*carried, *collected)
