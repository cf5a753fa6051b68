"""Gradient to the letter of the specification: values against derivatives worked out by hand."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

import onnxtrain as ot
from onnxtrain.errors import ModelWarning, OperatorError

HEADER = '<ir_version: 10, opset_import: ["": 18, "ai.onnx.preview.training": 1, "local": 1]>\n'


def infer(text: str, **inputs: Any) -> dict[str, np.ndarray]:
    """Runs a model in ONNX's text form; its name for the operator is written `Gradient`."""
    return run(model_of(text), **inputs)


def model_of(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEADER + re.sub(r"\bGradient\b", "ai.onnx.preview.training.Gradient", text))


def run(model: onnx.ModelProto, **inputs: Any) -> dict[str, np.ndarray]:
    session = ot.TrainingSession(model)
    fed = {name: np.asarray(value, np.float32) for name, value in inputs.items()}
    return {name: np.asarray(value) for name, value in session.infer(fed).items()}


@pytest.mark.spec("G-01")
def test_gradient_of_a_sum_is_one_for_each_term() -> None:
    found = infer(
        """g (float a, float b) => (float c, float da, float db) {
        c = Add(a, b)
        da, db = Gradient <xs = ["a", "b"], y = "c"> (a, b)
        }""",
        a=2,
        b=3,
    )
    assert found == {"c": 5, "da": 1, "db": 1}


@pytest.mark.spec("G-01")
def test_gradient_of_add_and_mul_is_the_one_in_the_public_suite() -> None:
    found = infer(
        """g (float a, float b) => (float d, float da, float db) {
        c = Add(a, b)
        d = Mul(c, a)
        da, db = Gradient <xs = ["a", "b"], y = "d"> (a, b)
        }""",
        a=2,
        b=3,
    )
    assert found == {"d": 10, "da": 7, "db": 2}


@pytest.mark.spec("G-01")
def test_an_output_without_a_name_is_skipped() -> None:
    model = model_of(
        """g (float a, float b) => (float db) {
        d = Mul(a, b)
        skipped, db = Gradient <xs = ["a", "b"], y = "d"> (a, b)
        }"""
    )
    model.graph.node[1].output[0] = ""
    assert run(model, a=2, b=3) == {"db": 2}


@pytest.mark.spec("G-02")
def test_zs_are_independent_and_not_differentiated() -> None:
    found = infer(
        """g (float x) => (float free, float held) {
        z = Mul(x, x)
        y = Mul(x, z)
        free = Gradient <xs = ["x"], y = "y"> (x)
        held = Gradient <xs = ["x"], zs = ["z"], y = "y"> (x, z)
        }""",
        x=3,
    )
    assert found == {"free": 27, "held": 9}  # d(x * x * x)/dx, and x times z with z held at 9


@pytest.mark.spec("G-02")
def test_what_is_neither_x_nor_z_is_a_constant_of_the_surrounding_scope() -> None:
    found = infer(
        """g (float x, float k) => (float dx) {
        y = Mul(x, k)
        dx = Gradient <xs = ["x"], y = "y"> (x)
        }""",
        x=2,
        k=5,
    )
    assert found == {"dx": 5}


@pytest.mark.spec("G-03")
def test_other_tensors_than_the_named_ones_are_substituted() -> None:
    found = infer(
        """g (float x, float at) => (float y, float here, float there) {
        square = Mul(x, x)
        y = Mul(square, x)
        here = Gradient <xs = ["x"], y = "y"> (x)
        there = Gradient <xs = ["x"], y = "y"> (at)
        }""",
        x=2,
        at=10,
    )
    assert found == {"y": 8, "here": 12, "there": 300}


@pytest.mark.spec("G-03")
def test_a_substituted_z_is_held_at_the_fed_tensor() -> None:
    found = infer(
        """g (float x, float z, float at, float held) => (float dx) {
        y = Mul(x, z)
        dx = Gradient <xs = ["x"], zs = ["z"], y = "y"> (at, held)
        }""",
        x=2,
        z=3,
        at=5,
        held=7,
    )
    assert found == {"dx": 7}


@pytest.mark.spec("G-04")
def test_an_intermediate_x_cuts_the_graph() -> None:
    found = infer(
        """g (float x) => (float dh, float dx_with_h_cut, float dx) {
        h = Mul(x, x)
        y = Mul(h, x)
        dh, dx_with_h_cut = Gradient <xs = ["h", "x"], y = "y"> (h, x)
        dx = Gradient <xs = ["x"], y = "y"> (x)
        }""",
        x=3,
    )
    assert found == {"dh": 3, "dx_with_h_cut": 9, "dx": 27}


@pytest.mark.spec("G-05")
def test_second_and_third_derivatives() -> None:
    found = infer(
        """g (float x) => (float first, float second, float third) {
        square = Mul(x, x)
        y = Mul(square, square)
        first = Gradient <xs = ["x"], y = "y"> (x)
        second = Gradient <xs = ["x"], y = "first"> (x)
        third = Gradient <xs = ["x"], y = "second"> (x)
        }""",
        x=2,
    )
    assert found == {"first": 32, "second": 48, "third": 48}


@pytest.mark.spec("G-05")
def test_the_mixed_derivative_of_a_product_with_another_variable() -> None:
    found = infer(
        """g (float x, float w) => (float mixed) {
        square = Mul(x, x)
        y = Mul(square, w)
        dx = Gradient <xs = ["x"], y = "y"> (x)
        mixed = Gradient <xs = ["w"], y = "dx"> (w)
        }""",
        x=3,
        w=5,
    )
    assert found == {"mixed": 6}


SHARED = """g (float[2] x, float[2] w) => (float loss, float[2] dx, float[2] dw) {
        e = Exp(x)
        p = Mul(e, w)
        loss = ReduceSum <keepdims = 0> (p)
        dx = Gradient <xs = ["x"], y = "loss"> (x)
        dw = Gradient <xs = ["w"], y = "loss"> (w)
        }"""


@pytest.mark.spec("G-06")
def test_the_forward_pass_runs_once_for_the_outputs_and_all_gradients() -> None:
    program = ot.lower(model_of(SHARED))
    state = program.stored_state(jax.random.key(0))
    fed = {"x": jax.numpy.ones(2), "w": jax.numpy.ones(2)}
    traced = str(jax.make_jaxpr(lambda inputs: program.infer(state, inputs))(fed))
    assert len(re.findall(r"= exp\b", traced)) == 1


@pytest.mark.spec("G-06")
def test_gradients_that_share_a_pass_have_the_right_values() -> None:
    found = infer(SHARED, x=[0, 1], w=[2, 3])
    np.testing.assert_allclose(found["loss"], 2 + 3 * np.e, rtol=1e-6)
    np.testing.assert_allclose(found["dx"], [2, 3 * np.e], rtol=1e-6)
    np.testing.assert_allclose(found["dw"], [1, np.e], rtol=1e-6)


@pytest.mark.spec("G-07")
def test_a_y_that_is_no_scalar_is_summed_with_a_warning() -> None:
    text = """g (float[3] x) => (float[3] dx) {
        y = Mul(x, x)
        dx = Gradient <xs = ["x"], y = "y"> (x)
        }"""
    with pytest.warns(ModelWarning, match="'y' has shape"):
        found = infer(text, x=[1, 2, 3])
    np.testing.assert_array_equal(found["dx"], [2, 4, 6])


@pytest.mark.spec("G-07")
def test_no_path_from_x_to_y_gives_zeros() -> None:
    found = infer(
        """g (float x, float[2, 3] unrelated) => (float[2, 3] gradient) {
        y = Mul(x, x)
        gradient = Gradient <xs = ["unrelated"], y = "y"> (unrelated)
        }""",
        x=1,
        unrelated=np.ones((2, 3)),
    )
    np.testing.assert_array_equal(found["gradient"], np.zeros((2, 3), np.float32))


@pytest.mark.spec("G-07")
def test_an_integer_that_is_only_found_at_run_time_is_an_error() -> None:
    model = model_of(
        """g (float x) => (float dx) {
        i = Cast <to = 7> (x)
        f = Cast <to = 1> (i)
        y = Mul(f, x)
        dx = Gradient <xs = ["i"], y = "y"> (i)
        }"""
    )
    with pytest.raises(OperatorError, match="int64, and only floating-point"):
        run(model, x=1)


@pytest.mark.spec("G-07")
def test_bfloat16_has_a_gradient_in_bfloat16() -> None:
    model = model_of(
        """g (bfloat16 x) => (bfloat16 dx) {
        y = Mul(x, x)
        dx = Gradient <xs = ["x"], y = "y"> (x)
        }"""
    )
    (found,) = ot.TrainingSession(model).infer({"x": jax.numpy.asarray(3, jax.numpy.bfloat16)}).values()
    assert found == 6
    assert found.dtype == jax.numpy.bfloat16


@pytest.mark.spec("G-08")
def test_gradient_inside_a_function_body_means_the_bodys_own_names() -> None:
    model = model_of("g (float a, float b) => (float slope) { slope = local.slope(b) }")
    body = [
        helper.make_node("Mul", ["a", "a"], ["y"]),
        helper.make_node("Gradient", ["a"], ["dy"], domain="ai.onnx.preview.training", xs=["a"], y="y"),
    ]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.preview.training", 1)]
    model.functions.append(helper.make_function("local", "slope", ["a"], ["dy"], body, opsets))
    assert run(model, a=100, b=4) == {"slope": 8}


@pytest.mark.spec("G-08")
def test_gradient_through_a_function_call() -> None:
    model = model_of(
        """g (float x) => (float dx) {
        y = local.cube(x)
        dx = Gradient <xs = ["x"], y = "y"> (x)
        }"""
    )
    body = [helper.make_node("Mul", ["v", "v"], ["s"]), helper.make_node("Mul", ["s", "v"], ["c"])]
    model.functions.append(helper.make_function("local", "cube", ["v"], ["c"], body, [helper.make_opsetid("", 18)]))
    assert run(model, x=2) == {"dx": 12}


@pytest.mark.spec("G-08", "M-03")
def test_gradient_in_a_branch_reaches_values_of_the_graph_around_it() -> None:
    branches = [
        helper.make_graph(
            [
                helper.make_node("Mul", ["h", factor], ["y"]),
                helper.make_node("Gradient", ["x"], ["g"], domain="ai.onnx.preview.training", xs=["x"], y="y"),
            ],
            "branch",
            [],
            [helper.make_tensor_value_info("g", TensorProto.FLOAT, [])],
        )
        for factor in ("x", "two")
    ]
    model = model_of(
        """g (float x, bool flag) => (float g) <float two = {2}> {
        h = Mul(x, x)
        g = Identity(x)
        }"""
    )
    model.graph.node[1].CopyFrom(
        helper.make_node("If", ["flag"], ["result"], then_branch=branches[0], else_branch=branches[1])
    )
    model.graph.output[0].name = "result"
    session = ot.TrainingSession(model)
    for flag, expected in ((True, 27), (False, 12)):
        found = session.infer({"x": np.float32(3), "flag": np.bool_(flag)})
        assert float(found["result"]) == expected


@pytest.mark.spec("G-09")
def test_a_tensor_that_is_read_several_times_accumulates_every_contribution() -> None:
    found = infer(
        """g (float[2, 2] x, float[2, 2] w) => (float[2, 2] dw) {
        a = MatMul(x, w)
        t = Transpose <perm = [1, 0]> (w)
        b = MatMul(a, t)
        loss = ReduceSum <keepdims = 0> (b)
        dw = Gradient <xs = ["w"], y = "loss"> (w)
        }""",
        x=[[1, 2], [3, 4]],
        w=[[1, -1], [2, 0]],
    )
    step, base = 1e-3, np.array([[1.0, -1], [2, 0]])

    def loss(w: np.ndarray) -> float:
        return float((np.array([[1.0, 2], [3, 4]]) @ w @ w.T).sum())

    for i in np.ndindex(2, 2):
        moved = np.zeros((2, 2))
        moved[i] = step
        measured = (loss(base + moved) - loss(base - moved)) / (2 * step)
        np.testing.assert_allclose(found["dw"][i], measured, rtol=1e-5)


def test_gradient_of_an_updated_weight_sees_the_update() -> None:
    """Two losses in one algorithm: the second is taken at the weight that the first one moved."""
    found = infer(
        """g (float w, float rate) => (float moved, float second) {
        first_loss = Mul(w, w)
        slope = Gradient <xs = ["w"], y = "first_loss"> (w)
        change = Mul(slope, rate)
        moved = Sub(w, change)
        second_loss = Mul(moved, moved)
        second = Gradient <xs = ["moved"], y = "second_loss"> (moved)
        }""",
        w=4,
        rate=0.25,
    )
    assert found == {"moved": 2, "second": 4}


def test_gradient_through_an_update_differentiates_the_inner_gradient() -> None:
    """d/dw of (w - r * 2w)^2 with r = 1/4 is w / 2: learning through a step of learning."""
    found = infer(
        """g (float w, float rate) => (float meta) {
        first_loss = Mul(w, w)
        slope = Gradient <xs = ["w"], y = "first_loss"> (w)
        change = Mul(slope, rate)
        moved = Sub(w, change)
        second_loss = Mul(moved, moved)
        meta = Gradient <xs = ["w"], y = "second_loss"> (w)
        }""",
        w=4,
        rate=0.25,
    )
    assert found == {"meta": 2}
