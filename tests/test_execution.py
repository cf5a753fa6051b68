"""Models whose shapes depend on data: compiled before and after, with the node between on the host."""

from __future__ import annotations

import jax
import numpy as np
import onnx
import pytest
from onnx import helper, parser

import onnxtrain as ot
from onnxtrain.errors import StateError, StaticValueError
from tests.graph.training_models import edited, floats, linear_with_sgd, tensor, training_info, training_model

HEADER = '<ir_version: 10, opset_import: ["": 18, "ai.onnx.preview.training": 1]>\n'

POSITIVE = """g (float[N, 3] x) => (float[K] doubled, int64[2, K] where) {
  e = Exp(x)
  big = Greater(e, x)
  zero = Constant <value = float {0.0}> ()
  positive = Greater(x, zero)
  both = And(big, positive)
  where = NonZero(both)
  at = Transpose(where)
  kept = GatherND(x, at)
  doubled = Add(kept, kept)
}"""


def model_of(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEADER + text)


def test_a_count_that_depends_on_data_runs_with_compiled_parts_around_it() -> None:
    session = ot.TrainingSession(model_of(POSITIVE))
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(50, 3)).astype(np.float32)
        found = session.infer({"x": x})
        np.testing.assert_array_equal(found["doubled"], 2 * x[x > 0])
        np.testing.assert_array_equal(found["where"], np.nonzero(x > 0))


def test_the_same_count_is_not_compiled_again() -> None:
    session = ot.TrainingSession(model_of(POSITIVE))
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    session.infer({"x": x})
    before = len(session._execution._compiled)
    session.infer({"x": np.roll(x, 7)})
    assert len(session._execution._compiled) == before


def test_pure_functions_refuse_it_with_the_path_of_values() -> None:
    program = ot.lower(model_of(POSITIVE))
    state = program.stored_state(jax.random.key(0))
    with pytest.raises(StaticValueError, match=r"x -> Exp 'e' -> Greater 'big' -> And 'both' -> x"):
        jax.jit(lambda x: program.infer(state, {"x": x}))(np.ones((2, 3), np.float32))


def test_a_computed_shape_becomes_a_constant_of_the_next_part() -> None:
    session = ot.TrainingSession(
        model_of(
            """g (float[N] x) => (float[K] y) {
            whole = Cast <to = 7> (x)
            length = ReduceMax <keepdims = 1> (whole)
            one = Constant <value = float[1] {1.0}> ()
            y = Expand(one, length)
        }"""
        )
    )
    for length in (3, 7, 3):
        assert session.infer({"x": np.full(100, length, np.float32)})["y"].shape == (length,)


def test_several_cuts_follow_from_each_other() -> None:
    session = ot.TrainingSession(
        model_of(
            """g (float[N] x) => (float[K] values, float[K] ones) {
            moved = Add(x, x)
            values, first, inverse, counts = Unique(moved)
            size = Shape(values)
            sum = ReduceSum <keepdims = 1> (counts)
            half = Constant <value = int64[1] {2}> ()
            length = Div(sum, half)
            one = Constant <value = float[1] {1.0}> ()
            ones = Expand(one, length)
        }"""
        )
    )
    found = session.infer({"x": np.repeat(np.arange(100, dtype=np.float32), 3)})
    np.testing.assert_array_equal(found["values"], 2 * np.arange(100))
    assert found["ones"].shape == (150,)


def test_what_training_does_not_need_never_stands_in_its_way() -> None:
    """A detector's choice of boxes: the loss does not depend on it, so the step stays one compiled function."""

    def choose(model: onnx.ModelProto) -> None:
        model.graph.node.append(helper.make_node("NonZero", ["y"], ["chosen"]))
        model.graph.output.append(helper.make_tensor_value_info("chosen", onnx.TensorProto.INT64, [2, "K"]))

    session = ot.TrainingSession(edited(linear_with_sgd(), choose))
    batch = {"x": np.ones((40, 3), np.float32), "target": np.zeros((40, 2), np.float32)}
    session.step(batch)
    assert all(not plan.cuts for plan in session._execution._plans.values())
    assert session.infer({"x": batch["x"]})["chosen"].shape == (2, 80)


def test_a_gradient_flows_around_a_choice_that_depends_on_data() -> None:
    """The mean of the chosen rows: the condition is fetched from the device, and the rows keep their gradient."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])], "g", [floats("x", "N")], [floats("y", "N")], [tensor("w", 3.0)]
    )
    algorithm = helper.make_graph(
        [
            helper.make_node("Greater", ["y", "zero"], ["positive"]),
            helper.make_node("Compress", ["y", "positive"], ["kept"], axis=0),
            helper.make_node("ReduceSum", ["kept"], ["loss"], keepdims=0),
            helper.make_node("Gradient", ["w"], ["dw"], domain="ai.onnx.preview.training", xs=["w"], y="loss"),
            helper.make_node("Sub", ["w", "dw"], ["w_new"]),
        ],
        "step",
        [],
        [floats("loss"), floats("w_new")],
        [tensor("zero", 0.0)],
    )
    session = ot.TrainingSession(training_model(graph, training_info(algorithm, {"w": "w_new"})))
    x = np.linspace(-1, 1, 101).astype(np.float32)
    found = session.step({"x": x}, outputs=["loss", "dw"])
    np.testing.assert_allclose(found["dw"], x[x > 0].sum(), rtol=1e-5)
    np.testing.assert_allclose(session.variables["w"], 3 - x[x > 0].sum(), rtol=1e-5)


def two_algorithms_with_noise(kept: str) -> onnx.ModelProto:
    """`a` grows by noise; `b` becomes `a` with other noise and the sum of `kept`, what is left of `y = a x`."""
    graph = parser.parse_graph("affine (float[N] x) => (float[N] y) { y = Mul(x, a) }")
    graph.initializer.extend([tensor("a", 1.0), tensor("b", 0.0)])
    first = parser.parse_graph(
        """grow () => (float a_new, float seen) {
            noise = RandomUniform <shape = [1]> ()
            scalar = Squeeze(noise)
            seen = Identity(a)
            a_new = Add(a, scalar)
        }"""
    )
    second = parser.parse_graph(
        f"""gather () => (float b_new, float seen) {{
            zero = Constant <value = float {{0.0}}> ()
            positive = Greater(x, zero)
            kept = {kept}
            sum = ReduceSum <keepdims = 0> (kept)
            noise = RandomUniform <shape = [1]> ()
            scalar = Squeeze(noise)
            seen = Identity(a)
            noisy = Add(scalar, a)
            b_new = Add(sum, noisy)
        }}"""
    )
    return training_model(graph, training_info(first, {"a": "a_new"}), training_info(second, {"b": "b_new"}))


def test_a_step_over_several_algorithms_may_have_cuts_and_is_the_same_step() -> None:
    """One iteration, the same noise, values from the last algorithm that computes them."""
    cut = ot.TrainingSession(two_algorithms_with_noise("Compress(y, positive)"), seed=3)
    whole = ot.TrainingSession(two_algorithms_with_noise("Where(positive, y, zero)"), seed=3)
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=101).astype(np.float32)
        found, expected = (session.step({"x": x}, outputs=["seen", "noise"]) for session in (cut, whole))
        assert found == expected
        for name in ("a", "b"):
            np.testing.assert_allclose(cut.variables[name], whole.variables[name], rtol=1e-5)
        assert found["seen"] == cut.variables["a"]
    assert cut.step_count == whole.step_count == 3
    assert len(cut._execution._in_turn) == 1
    assert not whole._execution._in_turn


def test_a_step_over_several_algorithms_that_fails_in_a_later_one_changes_nothing() -> None:
    def make_the_second_fail(model: onnx.ModelProto) -> None:
        """Its update has as many elements as x has positive ones."""
        model.training_info[1].algorithm.node[-1].input[0] = "kept"

    session = ot.TrainingSession(edited(two_algorithms_with_noise("Compress(y, positive)"), make_the_second_fail))
    before = dict(session.variables)
    with pytest.raises(StateError, match="b"):
        session.step({"x": np.ones(5, np.float32)})
    assert dict(session.variables) == before
    assert session.step_count == 0


@pytest.mark.parametrize("columns", [256, 8192], ids=["static", "made at run time"])
def test_a_mean_over_a_product_with_a_uniform_matrix_is_right(columns: int) -> None:
    """The CPU compiler of jaxlib 0.10.2 gets it wrong by default where it knows that the matrix is uniform."""
    model = model_of(
        f"""g (float[1, 25, 64] x) => (float[N, M] mean) {{
            shape = Constant <value = int64[2] {{64, {columns}}}> ()
            w = ConstantOfShape <value = float[1] {{0.02}}> (shape)
            product = MatMul(x, w)
            positive = Relu(product)
            axis = Constant <value = int64[1] {{1}}> ()
            mean = ReduceMean <keepdims = 0> (positive, axis)
        }}"""
    )
    x = np.random.default_rng(0).standard_normal((1, 25, 64)).astype(np.float32)
    expected = np.maximum(0.02 * x.sum(axis=2), 0).mean(axis=1)
    found = ot.TrainingSession(model).infer({"x": x})["mean"]
    np.testing.assert_allclose(found, np.broadcast_to(expected, (1, columns)), rtol=1e-4)
