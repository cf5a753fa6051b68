"""The pure functions: they compose with JAX's transformations and follow its 64-bit setting."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from onnx import TensorProto, helper, parser

import onnxtrain as ot
from onnxtrain.errors import StaticValueError, UnsupportedError, UnsupportedOperatorError, ValidationError
from tests.graph.training_models import edited, floats, linear_with_sgd, mlp_with_momentum, tensor

X = np.array([[1, 2, 3], [0, 1, -1]], np.float32)
BATCH = {"x": X, "target": np.zeros((2, 2), np.float32)}


def one_node(op_type: str, inputs: dict[str, int], output: int, **attributes: Any) -> ot.Program:
    values = [helper.make_tensor_value_info(name, kind, None) for name, kind in inputs.items()]
    result = helper.make_tensor_value_info("y", output, None)
    graph = helper.make_graph([helper.make_node(op_type, list(inputs), ["y"], **attributes)], "g", values, [result])
    return ot.lower(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.spec("T-01")
def test_the_methods_are_pure() -> None:
    program = ot.lower(linear_with_sgd())
    state = program.initialize(jax.random.key(0))
    before = np.array(state.variables["W"])
    after, outputs = program.step(state, BATCH)
    assert list(outputs) == ["loss"]
    assert int(after.step) == 1
    np.testing.assert_array_equal(state.variables["W"], before)
    assert not np.array_equal(after.variables["W"], before)


@pytest.mark.spec("R-01")
def test_initialize_draws_from_the_key() -> None:
    program = ot.lower(linear_with_sgd())
    first, again, other = (program.initialize(jax.random.key(seed)).variables["W"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_step_compiles_under_jit_and_equals_the_plain_call() -> None:
    program = ot.lower(linear_with_sgd())
    state = program.initialize(jax.random.key(0))
    plain, _ = program.step(state, BATCH)
    compiled, _ = jax.jit(program.step)(state, BATCH)
    np.testing.assert_allclose(plain.variables["W"], compiled.variables["W"], rtol=1e-6)


def test_vmap_trains_an_ensemble() -> None:
    program = ot.lower(linear_with_sgd())
    keys = jax.random.split(jax.random.key(0), 3)
    states = jax.vmap(program.initialize)(keys)
    trained, outputs = jax.vmap(program.step, in_axes=(0, None))(states, BATCH)
    assert trained.variables["W"].shape == (3, 3, 2)
    alone, _ = program.step(program.initialize(keys[1]), BATCH)
    np.testing.assert_allclose(trained.variables["W"][1], alone.variables["W"], rtol=1e-6)
    assert outputs["loss"].shape == (3,)


def test_grad_takes_the_gradient_of_an_input() -> None:
    """Case B28: the gradient of a loss with respect to what is fed, in one call."""
    program = ot.lower(linear_with_sgd())
    state = program.stored_state(jax.random.key(0))
    gradient = jax.grad(lambda x: program.infer(state, {"x": x})["y"].sum())(jnp.asarray(X))
    np.testing.assert_allclose(gradient, np.broadcast_to(np.asarray(state.variables["W"]).sum(1), X.shape))


def test_many_steps_run_in_one_scan() -> None:
    program = ot.lower(linear_with_sgd())
    state = program.initialize(jax.random.key(0))
    batches = jax.tree.map(lambda value: jnp.stack([value] * 4), BATCH)
    scanned, _ = jax.lax.scan(program.step, state, batches)
    for _ in range(4):
        state, _ = program.step(state, BATCH)
    np.testing.assert_allclose(scanned.variables["W"], state.variables["W"], rtol=1e-5)


def test_large_constants_are_arguments_and_small_ones_are_not() -> None:
    program = ot.lower(mlp_with_momentum(hidden=64))
    state = program.initialize(jax.random.key(0))
    assert state.constants == {}
    frozen = edited(mlp_with_momentum(hidden=64), lambda model: model.training_info.pop())
    assert set(ot.lower(frozen).stored_state(jax.random.key(0)).constants) == {"W1", "W2"}


def test_a_shape_fed_as_numpy_is_static_and_under_jit_it_is_not() -> None:
    program = one_node("Reshape", {"x": TensorProto.FLOAT, "shape": TensorProto.INT64}, TensorProto.FLOAT)
    state = program.stored_state(jax.random.key(0))
    found = jax.jit(lambda x: program.infer(state, {"x": x, "shape": np.array([3, 2], np.int64)})["y"])(X)
    assert found.shape == (3, 2)
    with pytest.raises(StaticValueError, match="Feed 'shape' as a static value"):
        jax.jit(lambda inputs: program.infer(state, inputs))({"x": X, "shape": np.array([3, 2], np.int64)})


def test_without_64_bit_types_what_they_would_change_is_refused() -> None:
    program = one_node("Exp", {"x": TensorProto.DOUBLE}, TensorProto.DOUBLE)
    state = program.stored_state(jax.random.key(0))
    with pytest.raises(UnsupportedError, match="float64 value cannot be represented"):
        program.infer(state, {"x": np.float64(0.1)})
    whole = one_node("Abs", {"x": TensorProto.INT64}, TensorProto.INT64)
    found = jax.jit(lambda x: whole.infer(state, {"x": x}))(np.int64(-5))
    assert int(found["y"]) == 5
    product = one_node("MatMul", {"a": TensorProto.INT64, "b": TensorProto.INT64}, TensorProto.INT64)
    with pytest.raises(UnsupportedError, match="int64 value cannot be represented"):
        product.infer(state, {"a": np.array([2**40], np.int64), "b": np.array([1], np.int64)})


def test_all_operators_without_a_rule_are_named_in_one_message() -> None:
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["h"], domain="com.example", name="first"),
        helper.make_node("Unheard", ["h"], ["y"], domain="com.example", name="second"),
        helper.make_node("Unheard", ["x"], ["unused"], domain="com.example", name="third"),
    ]
    graph = helper.make_graph(nodes, "g", [floats("x")], [floats("y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    program = ot.lower(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    with pytest.raises(UnsupportedOperatorError) as caught:
        program.infer(program.stored_state(jax.random.key(0)), {"x": np.float32(1)})
    assert "Frobnicate (com.example 1) in graph 'g': 'first'" in str(caught.value)
    assert "Unheard (com.example 1) in graph 'g': 'second'" in str(caught.value)
    assert "third" not in str(caught.value)


def test_a_layout_for_one_machine_is_refused_with_the_level_to_optimize_at() -> None:
    nodes = [helper.make_node("ReorderInput", ["x"], ["y"], domain="com.microsoft.nchwc")]
    graph = helper.make_graph(nodes, "g", [floats("x", 1, 8, 2, 2)], [floats("y", 1, 8, 2, 2)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft.nchwc", 1)]
    program = ot.lower(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    with pytest.raises(UnsupportedOperatorError, match=r"ReorderInput(.|\n)*ORT_ENABLE_EXTENDED"):
        program.infer(program.stored_state(jax.random.key(0)), {"x": np.ones((1, 8, 2, 2), np.float32)})


def test_an_attribute_goes_through_nested_functions_under_other_names() -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 17, "local": 1]>
        g (int64 x) => (int64 y) { y = local.f <outer = 1> (x) }
        <domain: "local", opset_import: ["": 17, "local": 1]>
        f <outer> (x) => (y) { y = local.add <inner: int = @outer> (x) }
        <domain: "local", opset_import: ["": 17]>
        add <inner> (x) => (y) { c = Constant <value_int: int = @inner> () \n y = Add(x, c) }"""
    )
    program = ot.lower(model)
    with jax.enable_x64(True):
        found = program.infer(program.stored_state(jax.random.key(0)), {"x": np.int64(0)})
    assert found["y"] == 1


@pytest.mark.spec("T-10")
def test_what_only_training_needs_does_not_stand_in_the_way_of_inference() -> None:
    model = edited(
        linear_with_sgd(),
        lambda proto: proto.training_info[0].algorithm.node[0].MergeFrom(type(proto.graph.node[0])(domain="odd")),
        lambda proto: proto.opset_import.append(helper.make_opsetid("odd", 1)),
    )
    program = ot.lower(model)
    state = program.stored_state(jax.random.key(0))
    assert program.infer(state, {"x": X})["y"].shape == (2, 2)
    with pytest.raises(UnsupportedOperatorError, match=r"Sub \(odd 1\)"):
        program.step(state, BATCH)


def test_loading_a_broken_training_model_raises_all_problems_together() -> None:
    def change(model: object) -> None:
        binding = model.training_info[0].update_binding  # type: ignore[attr-defined]
        binding[0].value = "nowhere"
        binding.add(key="nothing", value="loss")

    with pytest.raises(ValidationError) as caught:
        ot.lower(edited(linear_with_sgd(), change))
    assert len(caught.value.problems) >= 2


def test_a_node_that_fails_says_where_and_on_what() -> None:
    program = one_node("MatMul", {"a": TensorProto.FLOAT, "b": TensorProto.FLOAT}, TensorProto.FLOAT)
    state = program.stored_state(jax.random.key(0))
    with pytest.raises(ValueError, match=r"MatMul \(unnamed\) in graph 'g' \(ai.onnx 17\) failed on \(float32\[2, 3\]"):
        program.infer(state, {"a": X, "b": X})


def test_a_float_constant_of_the_graph_can_be_overridden_where_the_ir_allows_it() -> None:
    node = helper.make_node("Mul", ["x", "scale"], ["y"])
    graph = helper.make_graph([node], "g", [floats("x"), floats("scale")], [floats("y")], [tensor("scale", 2.0)])
    program = ot.lower(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))
    state = program.stored_state(jax.random.key(0))
    slope = jax.grad(lambda scale: program.infer(state, {"x": np.float32(3), "scale": scale})["y"])(jnp.float32(2))
    assert slope == 3
