"""Weights that local functions hold as constants are trained."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

import onnxtrain as ot
from onnxtrain.authoring import make_trainable
from tests.authoring.inference_models import floats, model_of, vector, weights
from tests.authoring.training_graphs import combined, infer, trained, updates

node = helper.make_node
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
NORMALIZATION = {"scale": (1, 2, 3), "bias": (0, 1, 0), "mean": (0, 0.5, 0), "variance": (1, 2, 1)}


def with_constants_in_functions() -> onnx.ModelProto:
    """Dense(x, b) has its kernel inside; Twice calls it two times; Normal holds a whole BatchNormalization."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    dense = [
        node("Constant", [], ["kernel"], value=weights("kernel", 4, 4)),
        node("Constant", [], ["two"], value=vector("two", 2)),
        node("MatMul", ["value", "kernel"], ["product"]),
        node("Add", ["product", "b"], ["moved"]),
        node("Div", ["moved", "two"], ["result"]),
    ]
    twice = [
        node("Constant", [], ["kernel"], value=weights("other", 4, 4)),
        node("Dense", ["value", "first"], ["inner"], domain="local"),
        node("Dense", ["inner", "second"], ["outer"], domain="local"),
        node("MatMul", ["outer", "kernel"], ["result"]),
    ]
    normal = [node("Constant", [], [name], value=vector(name, *values)) for name, values in NORMALIZATION.items()]
    normal.append(node("BatchNormalization", ["value", *NORMALIZATION], ["result"]))
    functions = [
        helper.make_function("local", "Normal", ["value"], ["result"], normal, opsets),
        helper.make_function("local", "Twice", ["value", "first", "second"], ["result"], twice, opsets),
        helper.make_function("local", "Dense", ["value", "b"], ["result"], dense, opsets),
    ]
    nodes = [
        node("Dense", ["x", "b1"], ["a"], domain="local"),
        node("Twice", ["a", "b2", "b3"], ["b"], domain="local"),
        node("MatMul", ["b", "W"], ["c"]),
        node("Normal", ["c"], ["scores"], domain="local"),
    ]
    tensors = [weights("b1", 4), weights("b2", 4), weights("b3", 4), weights("W", 4, 3)]
    return model_of(nodes, [floats("x", "N", 4)], [floats("scores", "N", 3)], tensors, functions=functions)


def test_constants_of_functions_become_weights_of_the_main_graph():
    prepared = make_trainable(with_constants_in_functions())
    onnx.checker.check_model(prepared)
    onnx.checker.check_model(combined(prepared), full_check=True)
    assert ot.validate(prepared) == []
    expected = infer(with_constants_in_functions(), {"x": X})[0]
    np.testing.assert_allclose(infer(prepared, {"x": X})[0], expected, rtol=1e-6)
    # Dense has one kernel, though it is called from three places
    kernels = {"Dense/kernel", "Twice/kernel", "W"}
    assert set(trained(prepared)) == kernels | {"b1", "b2", "b3", "Normal/scale", "Normal/bias"}
    assert {"Normal/mean", "Normal/variance"} <= set(updates(prepared))


def test_they_learn_and_are_exported(tmp_path):
    session = ot.TrainingSession(make_trainable(with_constants_in_functions()))
    labels = np.arange(6) % 3
    losses = [float(session.step({"x": X, "labels": labels})["loss"]) for _ in range(5)]
    assert losses[-1] < losses[0]
    session.export(tmp_path / "exported.onnx")
    exported = infer(onnx.load(tmp_path / "exported.onnx"), {"x": X})[0]
    np.testing.assert_allclose(exported, session.infer({"x": X})["scores"], rtol=1e-5, atol=1e-6)


def test_inputs_that_a_call_leaves_out_stay_left_out():
    opsets = [helper.make_opsetid("", 17)]
    body = [
        node("Constant", [], ["kernel"], value=weights("kernel", 3, 4)),
        node("Gemm", ["value", "kernel", "bias"], ["result"], transB=1),
    ]
    function = helper.make_function("local", "Dense", ["value", "bias"], ["result"], body, opsets)
    model = model_of(
        [node("Dense", ["x"], ["scores"], domain="local")],
        [floats("x", "N", 4)],
        [floats("scores", "N", 3)],
        functions=[function],
    )
    prepared = make_trainable(model)
    assert list(prepared.graph.node[0].input) == ["x", "", "Dense/kernel"]
    np.testing.assert_array_equal(infer(prepared, {"x": X})[0], infer(model, {"x": X})[0])


def test_a_constant_that_a_call_gives_as_an_attribute_stays_in_the_function():
    reference = onnx.AttributeProto(name="value", ref_attr_name="kernel", type=onnx.AttributeProto.TENSOR)
    constant = node("Constant", [], ["kernel"])
    constant.attribute.append(reference)
    body = [constant, node("MatMul", ["value", "kernel"], ["result"])]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function(
        "local", "Dense", ["value"], ["result"], body, opset_imports=opsets, attributes=["kernel"]
    )
    call = node("Dense", ["x"], ["hidden"], domain="local", kernel=weights("kernel", 4, 3))
    model = model_of(
        [call, node("MatMul", ["hidden", "W"], ["scores"])],
        [floats("x", "N", 4)],
        [floats("scores", "N", 3)],
        [weights("W", 3, 3)],
        functions=[function],
    )
    assert trained(make_trainable(model)) == ["W"]


def test_a_constant_that_is_a_list_of_numbers_is_trained():
    nodes = [
        node("Constant", [], ["b"], value_floats=[1.0, 2.0, 3.0]),
        node("MatMul", ["x", "W"], ["hidden"]),
        node("Add", ["hidden", "b"], ["scores"]),
    ]
    prepared = make_trainable(model_of(nodes, [floats("x", "N", 4)], [floats("scores", "N", 3)], [weights("W", 4, 3)]))
    assert trained(prepared) == ["W", "b"]
    (bias,) = (tensor for tensor in prepared.graph.initializer if tensor.name == "b")
    np.testing.assert_array_equal(numpy_helper.to_array(bias), np.asarray([1, 2, 3], np.float32))


def test_constants_in_the_branches_of_a_function_are_trained():
    def branch(seed: int) -> onnx.GraphProto:
        kernel = node("Constant", [], ["kernel"], value=weights("kernel", 4, 3, seed=seed))
        nodes = [kernel, node("MatMul", ["value", "kernel"], [f"product{seed}"])]
        return helper.make_graph(nodes, f"branch{seed}", [], [floats(f"product{seed}", "N", 3)])

    body = [node("If", ["choice"], ["result"], then_branch=branch(1), else_branch=branch(2))]
    function = helper.make_function(
        "local", "Either", ["choice", "value"], ["result"], body, [helper.make_opsetid("", 17)]
    )
    choice = helper.make_tensor_value_info("choice", onnx.TensorProto.BOOL, [])
    model = model_of(
        [node("Either", ["choice", "x"], ["scores"], domain="local")],
        [choice, floats("x", "N", 4)],
        [floats("scores", "N", 3)],
        functions=[function],
    )
    prepared = make_trainable(model)
    onnx.checker.check_model(prepared)
    assert ot.validate(prepared) == []
    assert len(trained(prepared)) == 2
    for chosen in (True, False):
        fed = {"choice": np.asarray(chosen), "x": X}
        np.testing.assert_array_equal(infer(prepared, fed)[0], infer(model, fed)[0])
