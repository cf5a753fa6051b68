"""A new last layer for another number of classes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain as ot
from onnxtrain.authoring import make_trainable, replace_head
from onnxtrain.errors import ModelError, UnsupportedError
from tests.authoring.inference_models import (
    as_ir_3,
    convolutional,
    floats,
    integers,
    mlp,
    model_of,
    vector,
    weights,
    with_constant_nodes,
)
from tests.authoring.training_graphs import infer

node = helper.make_node


def dense_softmax_in_parts() -> onnx.ModelProto:
    model = mlp()
    model.graph.node.extend(
        [
            node("Exp", ["scores"], ["powers"]),
            node("ReduceSum", ["powers", "axes"], ["sum"]),
            node("Div", ["powers", "sum"], ["probabilities"]),
        ]
    )
    model.graph.initializer.append(integers("axes", 1))
    model.graph.output[0].name = "probabilities"
    return model


def matmul_and_add() -> onnx.ModelProto:
    nodes = [
        node("Relu", ["x"], ["active"]),
        node("MatMul", ["active", "W"], ["product"]),
        node("Mul", ["product", "temperature"], ["warm"]),
        node("Add", ["b", "warm"], ["scores"]),
        node("Softmax", ["scores"], ["probabilities"], axis=-1),
    ]
    tensors = [weights("W", 4, 3), vector("temperature", 0.5), weights("b", 1, 3)]
    return model_of(nodes, [floats("x", "N", 4)], [floats("probabilities", "N", 3)], tensors)


def pooled_convolution() -> onnx.ModelProto:
    """As SqueezeNet ends: a convolution makes the scores, and the average of each map is taken."""
    nodes = [
        node("Conv", ["x", "kernel", "b"], ["maps"]),
        node("Relu", ["maps"], ["active"]),
        node("GlobalAveragePool", ["active"], ["pooled"]),
        node("Reshape", ["pooled", "shape"], ["flat"]),
        node("Softmax", ["flat"], ["probabilities"], axis=1),
    ]
    tensors = [weights("kernel", 3, 4, 1, 1), weights("b", 3), integers("shape", -1, 3)]
    return model_of(nodes, [floats("x", "N", 4, 5, 5)], [floats("probabilities", "N", 3)], tensors)


def upsampled_convolution() -> onnx.ModelProto:
    """A segmentation network: each pixel has scores."""
    nodes = [node("ConvTranspose", ["x", "kernel", "b"], ["scores"], strides=[2, 2])]
    tensors = [weights("kernel", 4, 3, 2, 2), weights("b", 3)]
    return model_of(nodes, [floats("x", "N", 4, 5, 5)], [floats("scores", "N", 3, 10, 10)], tensors)


def turned_kernel() -> onnx.ModelProto:
    nodes = [node("Transpose", ["W"], ["turned"], perm=[1, 0]), node("MatMul", ["x", "turned"], ["scores"])]
    return model_of(nodes, [floats("x", "N", 4)], [floats("scores", "N", 3)], [weights("W", 3, 4)])


def stable_softmax_in_parts() -> onnx.ModelProto:
    """As jax2tf writes it: the maximum is taken off first."""
    model = dense_softmax_in_parts()
    model.graph.node[3].input[0] = "shifted"
    for added in (
        node("Sub", ["scores", "spread"], ["shifted"]),
        node("Identity", ["bounded"], ["spread"]),
        node("Max", ["lowest", "maximum"], ["bounded"]),
        node("ReduceMax", ["scores"], ["maximum"], axes=[1]),
    ):
        model.graph.node.insert(3, added)
    model.graph.initializer.append(vector("lowest", -np.inf))
    return model


def reshaped_kernel() -> onnx.ModelProto:
    """As CNTK writes it: the kernel is stored in the shape of the maps that it is applied to."""
    nodes = [
        node("Reshape", ["x", "flat_shape"], ["flat"]),
        node("Reshape", ["W", "matrix"], ["kernel"]),
        node("MatMul", ["flat", "kernel"], ["product"]),
        node("Add", ["product", "b"], ["scores"]),
    ]
    tensors = [weights("W", 2, 2, 2, 3), weights("b", 1, 3), integers("flat_shape", -1, 8), integers("matrix", 8, 3)]
    return model_of(nodes, [floats("x", "N", 2, 2, 2)], [floats("scores", "N", 3)], tensors)


HEADS: dict[str, Callable[[], onnx.ModelProto]] = {
    "Gemm": mlp,
    "Gemm and Softmax": lambda: mlp(softmax=True),
    "Gemm and Softmax in parts": dense_softmax_in_parts,
    "Gemm and stable Softmax in parts": stable_softmax_in_parts,
    "reshaped kernel": reshaped_kernel,
    "reshaped kernel, IR 3": lambda: as_ir_3(reshaped_kernel()),
    "MatMul, Mul and Add": matmul_and_add,
    "convolution and pooling": pooled_convolution,
    "transposed convolution": upsampled_convolution,
    "turned kernel": turned_kernel,
    "after convolutions": convolutional,
    "Constant nodes": lambda: with_constant_nodes(mlp()),
    "IR 3": lambda: as_ir_3(mlp(opset=8)),
}


def some_input(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    stored = {tensor.name for tensor in model.graph.initializer}
    (value,) = (value for value in model.graph.input if value.name not in stored)
    dims = [dim.dim_value or 2 for dim in value.type.tensor_type.shape.dim]
    return {value.name: np.random.default_rng(0).normal(size=dims).astype(np.float32)}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("classes", [2, 7])
def test_the_output_has_the_new_number_of_classes(head, classes):
    model = replace_head(head(), classes)
    onnx.checker.check_model(model, full_check=True)
    dims = [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim]
    assert dims[1] == classes
    (found,) = infer(model, some_input(model))
    assert found.shape[1] == classes
    assert found.std() > 0


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_the_new_model_is_trained(head):
    model = replace_head(head(), 5)
    session = ot.TrainingSession(make_trainable(model, learning_rate=0.01))
    inputs = some_input(model)
    shape = np.delete(infer(model, inputs)[0].shape, 1)
    inputs["labels"] = np.random.default_rng(0).integers(5, size=shape)
    losses = [float(session.step(inputs)["loss"]) for _ in range(5)]
    assert losses[-1] < losses[0]


def test_all_but_the_head_is_byte_identical():
    before, after = convolutional(), replace_head(convolutional(), 10)
    assert before.graph.node == after.graph.node
    for old, new in zip(before.graph.initializer, after.graph.initializer, strict=True):
        assert old.name == new.name
        assert (old == new) == (old.name not in ("W", "b"))
    for tensor in (*before.graph.initializer, *after.graph.initializer):
        tensor.ClearField("raw_data")
    after.graph.initializer[-2].dims[:], after.graph.initializer[-1].dims[:] = [8, 3], [3]
    after.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 3
    assert before == after


def test_the_new_bias_is_zero_and_the_new_kernel_is_drawn_by_the_scheme():
    model = replace_head(mlp(), 400, initialize="normal:0.5", seed=3)
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert not values["b2"].any()
    assert values["W2"].shape == (400, 5)
    assert values["W2"].std() == pytest.approx(0.5, rel=0.05)


def test_the_seed_fixes_what_is_drawn():
    same, again, other = (replace_head(mlp(), 10, seed=seed) for seed in (1, 1, 2))
    assert same == again
    assert same != other


def test_a_tied_kernel_stays_for_its_other_readers():
    nodes = [
        node("Gather", ["words", "x"], ["embedded"]),
        node("Transpose", ["words"], ["turned"]),
        node("MatMul", ["embedded", "turned"], ["scores"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.INT64, ["N"])]
    model = model_of(nodes, inputs, [floats("scores", "N", 6)], [weights("words", 6, 4)])
    changed = replace_head(model, 3)
    onnx.checker.check_model(changed, full_check=True)
    assert changed.graph.initializer[0] == model.graph.initializer[0]
    assert infer(changed, {"x": np.array([0, 5])})[0].shape == (2, 3)


def test_a_shape_that_others_read_too_is_not_changed_for_them():
    model = pooled_convolution()
    model.graph.node.append(node("Reshape", ["x", "shape"], ["other"]))
    model.graph.output.append(floats("other", "M", 3))
    changed = replace_head(model, 5, output="probabilities")
    onnx.checker.check_model(changed, full_check=True)
    probabilities, other = infer(changed, {"x": np.ones((3, 4, 5, 5), np.float32)})
    assert (probabilities.shape, other.shape) == ((3, 5), (100, 3))


def test_every_output_after_the_head_is_declared_anew():
    model = mlp()
    model.graph.node.append(node("Softmax", ["scores"], ["probabilities"]))
    model.graph.output.append(floats("probabilities", "batch", 3))
    changed = replace_head(model, 4, output="probabilities")
    assert [value.type.tensor_type.shape.dim[1].dim_value for value in changed.graph.output] == [4, 4]


def test_a_table_of_classes_after_the_head_is_refused():
    model = mlp()
    model.graph.node.append(node("MatMul", ["scores", "costs"], ["cost"]))
    model.graph.output.append(floats("cost", "batch", 2))
    model.graph.initializer.append(weights("costs", 3, 2))
    with pytest.raises(ModelError, match="reads 'costs', which has an entry for each of the 3 classes"):
        replace_head(model, 4, output="scores")


@pytest.mark.parametrize(
    ("nodes", "tensors", "message"),
    [
        ([node("Relu", ["x"], ["y"])], [], "the input 'x' of the model"),
        (
            [node("MatMul", ["x", "W"], ["h"]), node("Concat", ["h", "x"], ["y"], axis=1)],
            [weights("W", 4, 3)],
            "what stands there is Concat",
        ),
        ([node("MatMul", ["x", "x"], ["y"])], [], "what stands there is MatMul"),
    ],
)
def test_a_model_without_a_last_layer_is_refused(nodes, tensors, message):
    model = model_of(nodes, [floats("x", 4, 4)], [floats("y", 4, "C")], tensors)
    with pytest.raises(ModelError, match=message):
        replace_head(model, 3)


@pytest.mark.parametrize(
    ("layer", "kernel", "bias", "dims"),
    [
        ([node("Conv", ["x", "W", "b"], ["y"])], (1, 4, 1, 1), (1,), ["N", 4, 5, 5]),
        ([node("Gemm", ["x", "W", "b"], ["y"])], (4, 1), (1,), ["N", 4]),
        ([node("MatMul", ["x", "W"], ["h"]), node("Add", ["h", "b"], ["y"])], (4, 1), (1,), ["N", 4]),
        ([node("Conv", ["x", "W"], ["h"]), node("Add", ["b", "h"], ["y"])], (1, 4, 1, 1), (1, 1, 1), ["N", 4, 5, 5]),
    ],
)
def test_a_single_output_becomes_several_with_a_bias_each(layer, kernel, bias, dims):
    model = model_of(
        layer, [floats("x", *dims)], [floats("y", "N", 1, *dims[2:])], [weights("W", *kernel), weights("b", *bias)]
    )
    changed = replace_head(model, 3)
    onnx.checker.check_model(changed, full_check=True)
    assert infer(changed, some_input(changed))[0].shape[1] == 3
    assert numpy_helper.to_array(changed.graph.initializer[1]).size == 3


def test_a_kernel_in_another_shape_is_dropped_with_what_shaped_it():
    changed = replace_head(reshaped_kernel(), 5)
    assert [one.op_type for one in changed.graph.node] == ["Reshape", "MatMul", "Add"]
    assert [tensor.name for tensor in changed.graph.initializer] == ["b", "flat_shape", "kernel/head"]


@pytest.mark.parametrize(
    ("after", "declared"),
    [
        (node("Reshape", ["logit", "flat"], ["y"]), ["M"]),
        (node("Squeeze", ["logit", "last"], ["y"]), ["N"]),
        (node("ReduceMean", ["logit"], ["y"], axes=[1], keepdims=0), ["N"]),
    ],
)
def test_a_single_output_that_becomes_no_axis_of_classes_is_refused(after, declared):
    nodes = [node("MatMul", ["x", "W"], ["logit"]), after]
    tensors = [weights("W", 4, 1), integers("flat", -1), integers("last", 1)]
    model = model_of(nodes, [floats("x", "N", 4)], [floats("y", *declared)], tensors)
    with pytest.raises(ModelError, match="something else than an axis of classes"):
        replace_head(model, 3)


def test_a_training_model_is_refused():
    with pytest.raises(ModelError, match="Export it for inference first"):
        replace_head(make_trainable(mlp()), 5)


@pytest.mark.parametrize("initialize", ["keep", "nonsense"])
def test_a_scheme_that_draws_nothing_is_refused(initialize):
    with pytest.raises(UnsupportedError):
        replace_head(mlp(), 5, initialize=initialize)


def test_the_given_model_is_never_changed():
    model = pooled_convolution()
    before = model.SerializeToString(deterministic=True)
    replace_head(model, 9)
    assert model.SerializeToString(deterministic=True) == before
