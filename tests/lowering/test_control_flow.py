from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain as ot
from onnxtrain.errors import OperatorError, StaticValueError, UnsupportedError

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
INT64_MAX = np.int64(2**63 - 1)


def value(name: str, kind: int = FLOAT, shape: Sequence[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    initializers: Sequence[onnx.TensorProto] = (),
) -> onnx.GraphProto:
    return helper.make_graph(nodes, "test", inputs, [value(name) for name in outputs], initializers)


node = helper.make_node


class Program:
    """The inference graph of nodes over named inputs, as a function of those that are traced."""

    def __init__(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[str],
        initializers: Sequence[onnx.TensorProto] = (),
        opset: int = 21,
    ):
        proto = helper.make_model(
            graph(nodes, inputs, outputs, initializers),
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=10,
        )
        self.program = ot.lower(proto)
        self.state = self.program.stored_state(jax.random.key(0))
        self.outputs = tuple(outputs)

    def __call__(self, fixed: dict[str, Any] | None = None, **fed: Any) -> Any:
        """The outputs under jit; `fixed` inputs are static."""
        found = jax.jit(lambda traced: self.traced({**(fixed or {}), **traced}))(fed)
        return found[0] if len(self.outputs) == 1 else found

    def traced(self, fed: dict[str, Any]) -> Any:
        found = self.program.infer(self.state, fed)
        return [found[name] for name in self.outputs]

    def total(self, fed: dict[str, Any]) -> Any:
        return sum(jnp.sum(output) for output in self.traced(fed) if jnp.issubdtype(output.dtype, jnp.floating))


# If


def branches(then: str, otherwise: str, static_condition: bool = False) -> Program:
    """If(condition, op(x), op(x)), where x is an outer value."""
    choice = node(
        "If",
        ["condition"],
        ["y"],
        then_branch=graph([node(then, ["x"], ["a"])], [], ["a"]),
        else_branch=graph([node(otherwise, ["x"], ["b"])], [], ["b"]),
    )
    condition = [constant("condition", True)] if static_condition else []
    inputs = [value("x", FLOAT, ["n"])] + ([] if static_condition else [value("condition", BOOL, [])])
    return Program([choice], inputs, ["y"], condition)


X = np.array([1.0, 4.0], np.float32)


@pytest.mark.spec("M-03")
def test_if_runs_the_branch_of_a_traced_condition() -> None:
    program = branches("Exp", "Sqrt")
    np.testing.assert_allclose(program(x=X, condition=np.array(True)), np.exp(X), rtol=1e-6)
    np.testing.assert_allclose(program(x=X, condition=np.array(False)), [1, 2])


def test_if_with_a_known_condition_leaves_the_other_branch_out() -> None:
    program = branches("Exp", "Shape", static_condition=True)
    np.testing.assert_allclose(program(x=X), np.exp(X), rtol=1e-6)


def test_gradients_flow_through_the_branch_that_runs_and_only_that() -> None:
    program = branches("Exp", "Sqrt")
    zero = np.zeros(2, np.float32)  # where the derivative of Sqrt is infinite
    gradient = jax.grad(lambda x: program.total({"x": x, "condition": jnp.asarray(True)}))(zero)
    np.testing.assert_array_equal(gradient, [1, 1])


def test_a_branch_may_return_an_outer_value_as_it_is() -> None:
    choice = node(
        "If",
        ["condition"],
        ["y"],
        then_branch=graph([], [], ["x"]),
        else_branch=graph([node("Neg", ["x"], ["b"])], [], ["b"]),
    )
    program = Program([choice], [value("x", FLOAT, [2]), value("condition", BOOL, [])], ["y"])
    np.testing.assert_array_equal(program(x=X, condition=np.array(True)), X)
    np.testing.assert_array_equal(program({"condition": np.array(True)}, x=X), X)


def test_branches_of_different_shapes_need_a_known_condition() -> None:
    choice = node(
        "If",
        ["condition"],
        ["y"],
        then_branch=graph([node("Exp", ["x"], ["a"])], [], ["a"]),
        else_branch=graph([node("ReduceSum", ["x"], ["b"], keepdims=0)], [], ["b"]),
    )
    program = Program([choice], [value("x", FLOAT, [2]), value("condition", BOOL, [])], ["y"])
    assert program({"condition": np.array(False)}, x=X).shape == ()
    with pytest.raises(StaticValueError, match=r"'cond' must be known while tracing.*depends on 'condition'"):
        program(x=X, condition=np.array(True))


def test_a_branch_for_other_shapes_needs_a_known_condition_and_is_then_left_out() -> None:
    choice = node(
        "If",
        ["condition"],
        ["y"],
        then_branch=graph([node("Exp", ["x"], ["a"])], [], ["a"]),
        else_branch=graph([node("MatMul", ["x", "w"], ["b"])], [], ["b"], [constant("w", np.ones(3, np.float32))]),
    )
    program = Program([choice], [value("x", FLOAT, [2]), value("condition", BOOL, [])], ["y"])
    np.testing.assert_allclose(program({"condition": np.array(True)}, x=X), np.exp(X), rtol=1e-6)
    with pytest.raises(StaticValueError, match="'cond' must be known while tracing"):
        program(x=X, condition=np.array(True))
    with pytest.raises(OperatorError, match="MatMul"):
        program({"condition": np.array(False)}, x=X)


@pytest.mark.spec("M-03")
def test_bodies_see_outer_values_two_levels_up_whatever_they_are_called() -> None:
    inner = node(
        "If",
        ["condition"],
        ["inner:0"],
        then_branch=graph([node("Mul", ["i:0", "samples:0"], ["t/0"])], [], ["t/0"]),
        else_branch=graph([node("Add", ["i:0", "samples:0"], ["e/0"])], [], ["e/0"]),
    )
    body = graph(
        [node("Cast", ["i"], ["i:0"], to=FLOAT), inner, node("Add", ["sum", "inner:0"], ["sum out"])],
        [value("i", INT64, []), value("go", BOOL, []), value("sum", FLOAT, [2])],
        ["go", "sum out"],
    )
    program = Program(
        [node("Loop", ["count", "", "start"], ["y"], body=body)],
        [value("samples:0", FLOAT, [2]), value("condition", BOOL, [])],
        ["y"],
        [constant("count", np.int64(3)), constant("start", np.zeros(2, np.float32))],
    )
    fed = {"samples:0": X, "condition": np.array(True)}
    np.testing.assert_array_equal(program(**fed), 3 * X)
    gradient = jax.grad(lambda x: program.total({"samples:0": x, "condition": jnp.asarray(True)}))(X)
    np.testing.assert_array_equal(gradient, [3, 3])


# Loop


def power_loop(count: Any, condition: Any = None, last: float | None = None) -> Program:
    """state = state * x, until `count` or until the state reaches `last`; each state is a row of a scan output."""
    nodes = [node("Mul", ["state", "x"], ["product"]), node("Identity", ["product"], ["row"])]
    nodes += (
        [node("Identity", ["go"], ["goes on"])]
        if last is None
        else [node("ReduceMax", ["product"], ["largest"], keepdims=0), node("Less", ["largest", "last"], ["goes on"])]
    )
    body = graph(
        nodes,
        [value("i", INT64, []), value("go", BOOL, []), value("state", FLOAT, [2])],
        ["goes on", "product", "row"],
        [] if last is None else [constant("last", np.float32(last))],
    )
    initializers = [constant("start", np.ones(2, np.float32))]
    if count is not None:
        initializers.append(constant("count", np.int64(count)))
    if condition is not None:
        initializers.append(constant("condition", condition))
    names = ["" if count is None else "count", "" if condition is None else "condition", "start"]
    return Program(
        [node("Loop", names, ["y", "rows"], body=body)], [value("x", FLOAT, [2])], ["y", "rows"], initializers
    )


@pytest.mark.parametrize("condition", [None, True])
def test_loop_with_a_known_count_gives_its_last_state_and_every_row(condition: bool | None) -> None:
    y, rows = power_loop(3, condition)(x=X)
    np.testing.assert_array_equal(y, X**3)
    np.testing.assert_array_equal(rows, [X, X**2, X**3])


@pytest.mark.parametrize(("count", "condition"), [(0, None), (0, True), (3, False)])
def test_loop_that_never_runs_returns_its_initial_values_and_no_rows(count: int, condition: bool | None) -> None:
    y, rows = power_loop(count, condition)(x=X)
    np.testing.assert_array_equal(y, [1, 1])
    assert (rows.shape, rows.dtype) == ((0, 2), np.float32)


def test_the_gradient_of_a_loop_is_that_of_its_iterations_written_out() -> None:
    program = power_loop(3)
    gradient = jax.jit(jax.grad(lambda x: program.total({"x": x})))(X)
    np.testing.assert_allclose(gradient, 1 + 2 * X + 2 * 3 * X**2, rtol=1e-6)


def test_a_long_loop_is_compiled_once_and_not_written_out() -> None:
    program = power_loop(5000)
    jaxpr = jax.make_jaxpr(lambda x: program.traced({"x": x}))(X)
    assert len(jaxpr.eqns) < 20


def test_the_condition_of_a_body_is_ignored_when_the_node_has_none() -> None:
    y, _ = power_loop(3, None, last=0.0)(x=X)
    np.testing.assert_array_equal(y, X**3)


def while_loop(count: Any, last: float = 20.0) -> Program:
    """The same without rows: state = state * x until the largest element reaches `last`."""
    body = graph(
        [
            node("Mul", ["state", "x"], ["product"]),
            node("ReduceMax", ["product"], ["largest"], keepdims=0),
            node("Less", ["largest", "last"], ["goes on"]),
        ],
        [value("i", INT64, []), value("go", BOOL, []), value("state", FLOAT, [2])],
        ["goes on", "product"],
        [constant("last", np.float32(last))],
    )
    initializers = [constant("condition", True)]
    if count is not None:
        initializers.append(constant("count", np.int64(count)))
    names = ["" if count is None else "count", "condition", "start"]
    inputs = [value("x", FLOAT, [2]), value("start", FLOAT, [2])]
    return Program([node("Loop", names, ["y"], body=body)], inputs, ["y"], initializers)


ONES = np.ones(2, np.float32)


@pytest.mark.parametrize(("count", "trips"), [(None, 3), (INT64_MAX, 3), (10, 3), (2, 2)])
def test_loop_ends_when_its_condition_fails_at_run_time(count: Any, trips: int) -> None:
    with jax.enable_x64(True):
        np.testing.assert_array_equal(while_loop(count)(x=X, start=ONES), X**trips)


def test_a_loop_without_64_bit_types_may_have_the_largest_trip_count() -> None:
    np.testing.assert_array_equal(while_loop(INT64_MAX)(x=X, start=ONES), X**3)


@pytest.mark.parametrize(("count", "trips"), [(10, 3), (2, 2)])
def test_gradients_flow_through_a_loop_that_ends_at_run_time_if_its_count_has_a_bound(count: int, trips: int) -> None:
    program = while_loop(count)
    by_x, by_start = jax.jit(jax.grad(lambda x, start: program.total({"x": x, "start": start}), (0, 1)))(X, ONES)
    np.testing.assert_allclose(by_x, trips * X ** (trips - 1), rtol=1e-6)
    np.testing.assert_allclose(by_start, X**trips, rtol=1e-6)


def test_second_derivatives_flow_through_a_loop_that_ends_at_run_time() -> None:
    program = while_loop(10)

    def slope(x: Any) -> Any:
        return jnp.sum(jax.grad(lambda x: program.total({"x": x, "start": ONES}))(x))

    np.testing.assert_allclose(jax.grad(slope)(X), 6 * X, rtol=1e-6)


def test_no_gradient_flows_through_a_loop_without_a_bound() -> None:
    program = while_loop(None)
    with pytest.raises(UnsupportedError, match="needs a trip count of at most"):
        jax.grad(lambda x: program.total({"x": x, "start": ONES}))(X)


def counted_loop() -> Program:
    """state = state * x, `count` times, where the count is an input."""
    body = graph(
        [node("Mul", ["state", "x"], ["product"])],
        [value("i", INT64, []), value("go", BOOL, []), value("state", FLOAT, [2])],
        ["go", "product"],
    )
    return Program(
        [node("Loop", ["count", "", "start"], ["y"], body=body)],
        [value("x", FLOAT, [2]), value("count", INT64, [])],
        ["y"],
        [constant("start", np.ones(2, np.float32))],
    )


def test_a_trip_count_may_be_traced(x64: None) -> None:
    np.testing.assert_array_equal(counted_loop()(x=X, count=np.int64(4)), X**4)


def test_a_gradient_needs_the_trip_count_to_be_known(x64: None) -> None:
    program = counted_loop()
    gradient = jax.grad(lambda x: program.total({"x": x, "count": np.int64(2)}))(X)
    np.testing.assert_array_equal(gradient, 2 * X)
    with pytest.raises(StaticValueError, match=r"'M' must be known while tracing.*depends on 'count'"):
        jax.grad(lambda x: program.total({"x": x, "count": jnp.int64(2)}))(X)


def test_rows_of_a_loop_that_ends_at_run_time_need_a_known_end() -> None:
    program = power_loop(10, True, last=20.0)
    with pytest.raises(StaticValueError, match="number of iterations must be known"):
        program(x=X)


def test_loop_without_count_and_condition_is_refused() -> None:
    with pytest.raises(OperatorError, match="never end"):
        power_loop(None)(x=X)


def test_loop_that_can_never_end_is_refused() -> None:
    body = graph(
        [node("Mul", ["state", "x"], ["product"])],
        [value("i", INT64, []), value("go", BOOL, []), value("state", FLOAT, [2])],
        ["go", "product"],
    )
    program = Program(
        [node("Loop", ["", "condition", "x"], ["y"], body=body)],
        [value("x", FLOAT, [2])],
        ["y"],
        [constant("condition", True)],
    )
    with pytest.raises(OperatorError, match="never end"):
        program(x=X)


def test_a_loop_whose_shapes_grow_is_written_out() -> None:
    body = graph(
        [node("Concat", ["state", "x"], ["longer"], axis=0)],
        [value("i", INT64, []), value("go", BOOL, []), value("state", FLOAT, ["n"])],
        ["go", "longer"],
    )
    program = Program(
        [node("Loop", ["count", "", "x"], ["y"], body=body)],
        [value("x", FLOAT, [2])],
        ["y"],
        [constant("count", np.int64(3))],
    )
    np.testing.assert_array_equal(program(x=X), np.tile(X, 4))
    np.testing.assert_array_equal(jax.grad(lambda x: program.total({"x": x}))(X), [4, 4])


def test_a_loop_whose_body_needs_its_counter_while_tracing_is_written_out() -> None:
    body = graph(
        [
            node("Add", ["i", "one"], ["end"]),
            node("Unsqueeze", ["end", "zero"], ["ends"]),
            node("Slice", ["x", "zero", "ends"], ["start of x"]),
            node("ReduceSum", ["start of x"], ["row"], keepdims=0),
        ],
        [value("i", INT64, []), value("go", BOOL, [])],
        ["go", "row"],
        [constant("one", np.int64(1)), constant("zero", np.zeros(1, np.int64))],
    )
    program = Program(
        [node("Loop", ["count", ""], ["y"], body=body)],
        [value("x", FLOAT, [2])],
        ["y"],
        [constant("count", np.int64(2))],
    )
    np.testing.assert_array_equal(program(x=X), [1, 5])


def test_a_loop_over_known_values_stays_known() -> None:
    body = graph(
        [node("Mul", ["state", "two"], ["double"])],
        [value("i", INT64, []), value("go", BOOL, []), value("state", INT64, [1])],
        ["go", "double"],
        [constant("two", np.array([2], np.int64))],
    )
    program = Program(
        [
            node("Loop", ["count", "", "one"], ["size"], body=body),
            node("Expand", ["x", "size"], ["y"]),
        ],
        [value("x", FLOAT, [1])],
        ["y"],
        [constant("count", np.int64(3)), constant("one", np.array([1], np.int64))],
    )
    assert program(x=X[:1]).shape == (8,)


def test_a_counter_beyond_32_bits_is_not_cut_off() -> None:
    body = graph(
        [node("Mul", ["state", "two"], ["double"])],
        [value("i", INT64, []), value("go", BOOL, []), value("state", INT64, [])],
        ["go", "double"],
        [constant("two", np.int64(2))],
    )
    program = Program(
        [node("Loop", ["count", "", "one"], ["y"], body=body)],
        [],
        ["y"],
        [constant("count", np.int64(40)), constant("one", np.int64(1))],
    )
    assert program.traced({})[0] == np.int64(2**40)


@pytest.mark.spec("R-01")
def test_random_nodes_draw_anew_in_every_iteration() -> None:
    body = graph(
        [node("RandomNormal", [], ["row"], shape=[8]), node("Dropout", ["x", "", "true"], ["kept"])],
        [value("i", INT64, []), value("go", BOOL, [])],
        ["go", "row", "kept"],
        [constant("true", True)],
    )
    program = Program(
        [node("Loop", ["count", ""], ["rows", "kept"], body=body)],
        [value("x", FLOAT, [64])],
        ["rows", "kept"],
        [constant("count", np.int64(4))],
    )
    for rows in program(x=np.ones(64, np.float32)):
        assert len({row.tobytes() for row in np.asarray(rows)}) == 4


# Scan


def running_sum(opset: int = 21, **attributes: Any) -> Program:
    body = graph(
        [node("Add", ["sum", "x_t"], ["sum_out"]), node("Identity", ["sum_out"], ["row"])],
        [value("sum", FLOAT, [3]), value("x_t", FLOAT, [3])],
        ["sum_out", "row"],
    )
    names = ["", "start", "x"] if opset == 8 else ["start", "x"]
    return Program(
        [node("Scan", names, ["y", "rows"], body=body, num_scan_inputs=1, **attributes)],
        [value("x", FLOAT, None), value("start", FLOAT, None)],
        ["y", "rows"],
        opset=opset,
    )


ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)
START = np.zeros(3, np.float32)


@pytest.mark.parametrize("input_axis", [0, 1, -1])
@pytest.mark.parametrize("output_axis", [0, 1, -1])
@pytest.mark.parametrize("backward", [0, 1])
@pytest.mark.parametrize("prepended", [0, 1])
def test_scan_reads_and_writes_along_any_axis_in_both_directions(
    input_axis: int, output_axis: int, backward: int, prepended: int
) -> None:
    program = running_sum(
        scan_input_axes=[input_axis],
        scan_output_axes=[output_axis],
        scan_input_directions=[backward],
        scan_output_directions=[prepended],
    )
    y, rows = program(x=ROWS if input_axis == 0 else ROWS.T, start=START)
    expected = np.cumsum(ROWS[::-1] if backward else ROWS, axis=0)
    np.testing.assert_array_equal(y, ROWS.sum(axis=0))
    expected = expected[::-1] if prepended else expected
    np.testing.assert_array_equal(rows, expected if output_axis == 0 else expected.T)


def test_gradients_flow_through_scan() -> None:
    program = running_sum()
    gradient = jax.grad(lambda x: program.total({"x": x, "start": START}))(ROWS)
    np.testing.assert_array_equal(gradient, np.repeat([[5], [4], [3], [2]], 3, axis=1))


def test_scan_over_no_elements_gives_no_rows() -> None:
    y, rows = running_sum()(x=ROWS[:0], start=START)
    np.testing.assert_array_equal(y, START)
    assert rows.shape == (0, 3)


def test_scanned_inputs_of_different_lengths_are_refused() -> None:
    body = graph([node("Add", ["a", "b"], ["row"])], [value("a", FLOAT, [3]), value("b", FLOAT, [3])], ["row"])
    program = Program(
        [node("Scan", ["x", "y"], ["rows"], body=body, num_scan_inputs=2)],
        [value("x", FLOAT, None), value("y", FLOAT, None)],
        ["rows"],
    )
    with pytest.raises(OperatorError, match=r"\[3, 4\]"):
        program(x=ROWS, y=ROWS[:3])


@pytest.mark.parametrize("backward", [0, 1])
def test_scan_of_opset_8_stops_each_sequence_of_a_batch_at_its_length(backward: int) -> None:
    body = graph(
        [node("Add", ["sum", "x_t"], ["sum_out"]), node("Mul", ["sum_out", "x_t"], ["row"])],
        [value("sum", FLOAT, [3]), value("x_t", FLOAT, [3])],
        ["sum_out", "row"],
    )
    program = Program(
        [node("Scan", ["lens", "start", "x"], ["y", "rows"], body=body, num_scan_inputs=1, directions=[backward])],
        [value("lens", INT64, [2]), value("x", FLOAT, None), value("start", FLOAT, None)],
        ["y", "rows"],
        opset=8,
    )
    batch = np.stack([ROWS, ROWS + 1])
    lengths = [4, 2]
    with jax.enable_x64(True):
        y, rows = program(lens=np.array(lengths, np.int64), x=batch, start=np.stack([START, START]))
    for i, length in enumerate(lengths):
        read = batch[i, :length][::-1] if backward else batch[i, :length]
        np.testing.assert_array_equal(y[i], read.sum(axis=0))
        np.testing.assert_array_equal(rows[i, :length], np.cumsum(read, axis=0) * read)
        assert not np.any(rows[i, length:])


def test_scan_of_opset_8_without_lengths_reads_whole_sequences() -> None:
    y, rows = running_sum(opset=8)(x=np.stack([ROWS, ROWS + 1]), start=np.stack([START, START]))
    np.testing.assert_array_equal(y[1], (ROWS + 1).sum(axis=0))
    np.testing.assert_array_equal(rows[1], np.cumsum(ROWS + 1, axis=0))


# SequenceMap


@pytest.mark.spec("M-03")
def test_sequence_map_zips_sequences_and_shares_tensors_and_outer_values() -> None:
    body = graph(
        [node("Mul", ["a", "b"], ["ab"]), node("Add", ["ab", "c"], ["abc"]), node("Add", ["abc", "outer"], ["row"])],
        [value("a"), value("b"), value("c")],
        ["row"],
    )
    program = Program(
        [
            node("SequenceConstruct", ["x", "two"], ["s"]),
            node("SequenceMap", ["s", "s", "x"], ["mapped"], body=body),
            node("ConcatFromSequence", ["mapped"], ["y"], axis=0, new_axis=1),
        ],
        [value("x", FLOAT, [2]), value("outer", FLOAT, [2])],
        ["y"],
        [constant("two", np.array([2, 2], np.float32))],
    )
    np.testing.assert_array_equal(program(x=X, outer=ONES), [X * X + X + 1, 4 + X + 1])
    gradient = jax.grad(lambda x: program.total({"x": x, "outer": ONES}))(X)
    np.testing.assert_array_equal(gradient, 2 * X + 2)
