"""Freeing a fixed batch: each example's output stays what it was, or the error says why it cannot."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, shape_inference

from onnxtrain.authoring import free_batch
from onnxtrain.errors import ModelWarning, UnsupportedError
from tests.authoring.inference_models import as_ir_3, floats, integers, model_of, vector, weights
from tests.authoring.training_graphs import infer

node = helper.make_node


@dataclass(frozen=True)
class Case:
    """Nodes from x to y with a fixed batch, the shape of x, and the tensors."""

    name: str
    nodes: list[NodeProto]
    shape: tuple[int, ...]
    tensors: list[TensorProto] = field(default_factory=list)
    opset: int = 17

    def model(self) -> onnx.ModelProto:
        y = onnx.ValueInfoProto(name="y", type=onnx.TypeProto(tensor_type={"elem_type": TensorProto.FLOAT}))
        plain = model_of(self.nodes, [floats("x", *self.shape)], [y], self.tensors, opset=self.opset)
        return shape_inference.infer_shapes(plain)  # which declares the shape of y, batch included


IMAGE = (1, 2, 4, 4)
FREE = [
    Case("Reshape to rows", [node("Reshape", ["x", "s"], ["y"])], IMAGE, [integers("s", 1, 32)]),
    Case("Reshape with an inferred size", [node("Reshape", ["x", "s"], ["y"])], IMAGE, [integers("s", 1, -1)]),
    Case("Reshape that copies", [node("Reshape", ["x", "s"], ["y"])], IMAGE, [integers("s", 0, -1)]),
    Case("Reshape that infers the batch", [node("Reshape", ["x", "s"], ["y"])], IMAGE, [integers("s", -1, 32)]),
    Case(
        "Reshape that joins the batch with another axis and parts them again",
        [
            node("Reshape", ["x", "joined"], ["rows"]),
            node("MatMul", ["rows", "W"], ["products"]),
            node("Reshape", ["products", "parted"], ["y"]),
        ],
        (1, 3, 4),
        [integers("joined", 3, 4), weights("W", 4, 5), integers("parted", 1, 3, 5)],
    ),
    Case("Reshape of two examples", [node("Reshape", ["x", "s"], ["y"])], (2, 3, 4), [integers("s", 2, 12)]),
    Case(
        "Reshape to and from attention heads",
        [
            node("Reshape", ["x", "heads"], ["h"]),
            node("Transpose", ["h"], ["t"], perm=[0, 2, 1, 3]),
            node("Softmax", ["t"], ["p"], axis=-1),
            node("Transpose", ["p"], ["u"], perm=[0, 2, 1, 3]),
            node("Reshape", ["u", "flat"], ["y"]),
        ],
        (1, 3, 4),
        [integers("heads", 1, 3, 2, 2), integers("flat", 1, 3, 4)],
    ),
    Case(
        "one shape for two Reshapes",
        [
            node("Reshape", ["x", "s"], ["a"]),
            node("Reshape", ["W", "s"], ["b"]),
            node("Mul", ["a", "b"], ["y"]),
        ],
        (1, 2, 2),
        [integers("s", 1, 4), weights("W", 2, 2)],
    ),
    Case(
        "a convolutional network",
        [
            node("Conv", ["x", "K"], ["c"], pads=[1, 1, 1, 1]),
            node("BatchNormalization", ["c", "one", "zero", "zero", "one"], ["n"]),
            node("MaxPool", ["n"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
            node("Flatten", ["m"], ["f"]),
            node("Gemm", ["f", "W", "b"], ["y"]),
        ],
        IMAGE,
        [
            weights("K", 3, 2, 3, 3),
            vector("one", 1, 1, 1),
            vector("zero", 0, 0, 0),
            weights("W", 12, 5),
            weights("b", 5),
        ],
    ),
    Case("Flatten that joins", [node("Flatten", ["x"], ["f"], axis=2), node("Relu", ["f"], ["y"])], (1, 3, 4)),
    Case("Transpose", [node("Transpose", ["x"], ["y"], perm=[1, 0, 2])], (1, 3, 4)),
    Case(
        "Squeeze and Unsqueeze",
        [node("Squeeze", ["x", "a"], ["s"]), node("Unsqueeze", ["s", "b"], ["y"])],
        (1, 3, 1),
        [integers("a", 2), integers("b", 0)],
    ),
    Case("old Squeeze", [node("Squeeze", ["x"], ["y"], axes=[2])], (1, 3, 1), opset=11),
    Case("Concat", [node("Concat", ["x", "x"], ["y"], axis=1)], (1, 3)),
    Case(
        "Slice",
        [node("Slice", ["x", "s", "e", "a"], ["y"])],
        (1, 5),
        [integers("s", 1), integers("e", 4), integers("a", 1)],
    ),
    Case("old Slice", [node("Slice", ["x"], ["y"], starts=[0, 1], ends=[2**31 - 1, 4])], (1, 5), opset=9),
    Case("Gather along another axis", [node("Gather", ["x", "i"], ["y"], axis=1)], (1, 5), [integers("i", 0, 2)]),
    Case("ReduceMean", [node("ReduceMean", ["x"], ["y"], axes=[2], keepdims=0)], (1, 3, 4)),
    Case("ReduceSum", [node("ReduceSum", ["x", "a"], ["y"], keepdims=0)], (1, 3, 4), [integers("a", -1)]),
    Case("a bias with a leading axis", [node("Add", ["x", "b"], ["y"])], (1, 3), [weights("b", 1, 3)]),
    Case("old Softmax", [node("Softmax", ["x"], ["y"])], (1, 3), opset=9),
    Case("Pad", [node("Pad", ["x", "p"], ["y"])], (1, 3), [integers("p", 0, 1, 0, 2)]),
    Case("Resize", [node("Resize", ["x", "", "s"], ["y"])], IMAGE, [vector("s", 1, 1, 2, 2)]),
    Case(
        "LSTM",
        [
            node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
            node("LSTM", ["t", "W", "R"], ["", "last"], hidden_size=2),
            node("Squeeze", ["last", "a"], ["y"]),
        ],
        (1, 3, 4),
        [weights("W", 1, 8, 4), weights("R", 1, 8, 2), integers("a", 0)],
    ),
    Case("products from the left", [node("MatMul", ["W", "x"], ["y"])], (1, 3, 4), [weights("W", 2, 3)]),
]


@pytest.mark.parametrize("case", FREE, ids=lambda case: case.name)
def test_each_example_of_a_larger_batch_has_its_own_output(case):
    fixed, free = case.model(), free_batch(case.model())
    onnx.checker.check_model(free, full_check=True)
    size = case.shape[0]
    x = np.random.default_rng(0).normal(size=(3 * size, *case.shape[1:])).astype(np.float32)
    apart = [infer(fixed, {"x": part})[0] for part in np.split(x, 3)]
    (together,) = infer(free, {"x": x})
    # the batch lies on the one axis that grew
    grown = [axis for axis, length in enumerate(together.shape) if length != apart[0].shape[axis]]
    np.testing.assert_allclose(together, np.concatenate(apart, axis=grown[0]), rtol=1e-5, atol=1e-6)


REFUSED = [
    (Case("reduce", [node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=1)], (1, 3)), "along axis 0"),
    (Case("reduce all", [node("ReduceSum", ["x"], ["y"])], (1, 3)), "along axis 0"),
    (Case("concat", [node("Concat", ["x", "x"], ["y"], axis=0)], (1, 3)), "along axis 0"),
    (Case("token", [node("Concat", ["t", "x"], ["y"], axis=1)], (1, 3), [weights("t", 1, 2)]), "without a batch"),
    (Case("squeeze", [node("Squeeze", ["x"], ["y"], axes=[0])], (1, 3), opset=11), "removes the batch axis 0"),
    (Case("mix", [node("Reshape", ["x", "s"], ["y"])], (2, 3), [integers("s", 3, 2)]), "mixes the examples"),
    (Case("rows", [node("Add", ["x", "b"], ["y"])], (2, 3), [weights("b", 2, 3)]), "one row for each example"),
    (
        Case("sizes", [node("Resize", ["x", "", "", "s"], ["y"])], IMAGE, [integers("s", 1, 2, 8, 8)]),
        "the batch included",
    ),
    (Case("softmax", [node("Softmax", ["x"], ["y"], axis=0)], (1, 3)), "along axis 0"),
    (
        Case("unknown", [node("CumSum", ["x", "a"], ["y"])], (1, 3), [integers("a", 1)]),
        "CumSum",
    ),
]


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=lambda value: getattr(value, "name", ""))
def test_what_mixes_examples_or_is_not_known_is_refused_by_name(case, reason):
    with pytest.raises(UnsupportedError, match=reason):
        free_batch(case.model())


def test_a_free_batch_stays_as_it_is():
    model = model_of([node("Relu", ["x"], ["y"])], [floats("x", "N", 3)], [floats("y", "N", 3)])
    assert free_batch(model).SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


def test_the_declared_shapes_say_that_the_batch_is_free():
    model = model_of([node("Relu", ["x"], ["y"])], [floats("x", 1, 3)], [floats("y", 1, 3)])
    free = free_batch(model)
    for value in (free.graph.input[0], free.graph.output[0]):
        assert [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] == ["batch", 3]


def test_the_symbol_of_the_batch_is_a_new_one():
    model = model_of([node("Relu", ["x"], ["y"])], [floats("x", 1, "batch")], [floats("y", 1, "batch")])
    assert free_batch(model).graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch_1"


@pytest.mark.parametrize("name", ["Reshape to rows", "one shape for two Reshapes"])
def test_a_model_of_ir_3_stays_one(name):
    case = next(case for case in FREE if case.name == name)
    old = Case(case.name, case.nodes, case.shape, case.tensors, opset=8)
    free = free_batch(as_ir_3(old.model()))
    onnx.checker.check_model(free)
    assert free.ir_version == 3
    assert {tensor.name for tensor in free.graph.initializer} <= {value.name for value in free.graph.input}


CANNOT_BE_FREED = {
    "aecmos": "Slice",  # h0 has its batch on axis 1
    "attacut_c": "Reshape",  # joins the batch with a sequence of any length
    "caustic_painn_gnn": "Gather",  # a graph, no batch
    "fw_silero_vad_v6": "LSTM",  # its states have a row for each example
    "oww_hey_jarvis": "If",
    "silero_vad": "If",
    "silero_vad_16k_op15": "If",
    "silero_vad_half": "If",
    "swift_f0": "Pad",  # pads by a computed length
    "vfl_filter_int8": "Slice",  # states again
    "ort_logreg_iris": "LinearClassifier",
}


def test_real_models_are_freed_or_say_why_not(models_dir: Path, subtests):
    for path in sorted(models_dir.glob("*/model.onnx")):
        with subtests.test(path.parent.name), warnings.catch_warnings():
            warnings.simplefilter("ignore", ModelWarning)
            operator = CANNOT_BE_FREED.get(path.parent.name)
            if operator is not None:
                with pytest.raises(UnsupportedError, match=f"freed at {operator}"):
                    free_batch(path)
            else:
                onnx.checker.check_model(free_batch(path))


@pytest.mark.parametrize("name", ["mnist_cntk_op8", "gh_cifar_resnet20_op7", "espcn_subpixel", "gh_ultraface_rfb320"])
def test_real_models_give_each_example_its_own_output(models_dir: Path, name):
    path = models_dir / name / "model.onnx"
    fixed, free = onnx.load(path), free_batch(path)
    stored = {tensor.name for tensor in fixed.graph.initializer}
    (given,) = [value for value in fixed.graph.input if value.name not in stored]
    shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
    x = np.random.default_rng(0).normal(size=(3, *shape[1:])).astype(np.float32)
    apart = [infer(fixed, {given.name: part}) for part in np.split(x, 3)]
    for index, together in enumerate(infer(free, {given.name: x})):
        expected = np.concatenate([outputs[index] for outputs in apart])
        np.testing.assert_allclose(together, expected, rtol=1e-4, atol=1e-4)
