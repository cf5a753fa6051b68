"""Which tensors are trained: those that a layer uses as weights, whatever form they take on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxtrain.authoring import make_trainable
from onnxtrain.errors import ModelError
from tests.authoring.inference_models import (
    convolutional,
    deduplicated,
    floats,
    integers,
    mlp,
    model_of,
    vector,
    weights,
    with_branches,
    with_constant_nodes,
    with_function,
)
from tests.authoring.training_graphs import attributes, node_of, nodes_of, trained, updates

node = helper.make_node


def scalar(name: str, value: float) -> TensorProto:
    return numpy_helper.from_array(np.asarray(value, np.float32), name)


@dataclass(frozen=True)
class Case:
    """A network from x [N, 4] to scores, its tensors, and which of them are trained."""

    name: str
    nodes: list[NodeProto]
    tensors: list[TensorProto]
    expected: set[str]
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    opset: int = 17

    def prepared(self, **options: object) -> onnx.ModelProto:
        inputs = [*(self.inputs or [floats("x", "N", 4)])]
        scores = onnx.ValueInfoProto(name="scores", type=onnx.TypeProto(tensor_type={"elem_type": TensorProto.FLOAT}))
        model = model_of(self.nodes, inputs, [scores], self.tensors, opset=self.opset)
        return make_trainable(model, loss="mean_squared_error", **options)  # pyright: ignore[reportArgumentType]


DENSE = node("MatMul", ["x", "W"], ["hidden"])
KERNEL = weights("W", 4, 3)

CASES = [
    Case(
        "a bias is added after a layer",
        [DENSE, node("Add", ["hidden", "b"], ["scores"])],
        [KERNEL, weights("b", 3)],
        {"W", "b"},
    ),
    Case(
        "a bias on the left",
        [DENSE, node("Add", ["b", "hidden"], ["scores"])],
        [KERNEL, weights("b", 1, 3)],
        {"W", "b"},
    ),
    Case(
        "numbers of plain arithmetic stay",
        [DENSE, node("Mul", ["hidden", "half"], ["y"]), node("Add", ["y", "one"], ["scores"])],
        [KERNEL, scalar("half", 0.5), vector("one", 1.0)],
        {"W"},
    ),
    Case(
        "the bias of a layer with one output is a weight",
        [node("MatMul", ["x", "w"], ["hidden"]), node("Add", ["hidden", "b"], ["scores"])],
        [weights("w", 4, 1), vector("b", 0.5)],
        {"w", "b"},
    ),
    Case(
        "the bias of a convolution with one filter is a weight",
        [node("Conv", ["x", "w"], ["hidden"]), node("Add", ["hidden", "b"], ["scores"])],
        [weights("w", 1, 2, 3), weights("b", 1, 1, 1)],
        {"w", "b"},
        [floats("x", "N", 2, 5)],
    ),
    Case(
        "preprocessing before the first layer stays",
        [
            node("Sub", ["x", "average"], ["centred"]),
            node("Mul", ["centred", "inverse"], ["normal"]),
            node("MatMul", ["normal", "W"], ["scores"]),
        ],
        [weights("average", 4), weights("inverse", 4), KERNEL],
        {"W"},
    ),
    Case(
        "what is divided by stays",
        [DENSE, node("Div", ["hidden", "d"], ["scores"])],
        [KERNEL, weights("d", 3)],
        {"W"},
    ),
    Case(
        "exponents, bounds and floors stay",
        [
            DENSE,
            node("Pow", ["hidden", "exponent"], ["power"]),
            node("Clip", ["power", "low", "high"], ["clipped"]),
            node("Max", ["clipped", "floor"], ["scores"]),
        ],
        [KERNEL, vector("exponent", 2, 2, 2), scalar("low", -1), scalar("high", 1), vector("floor", 0, 0, 0)],
        {"W"},
    ),
    Case(
        "a mask that is added stays",
        [
            node("MatMul", ["x", "W"], ["hidden"]),
            node("Add", ["hidden", "mask"], ["scores"]),
        ],
        [weights("W", 3, 3), numpy_helper.from_array(np.triu(np.full((3, 3), -1e4, np.float32), 1), "mask")],
        {"W"},
        [floats("x", 3, 3)],
    ),
    Case(
        "a table of positions that is added is a weight",
        [
            node("Gather", ["words", "x"], ["embedded"]),
            node("Add", ["embedded", "positions"], ["scores"]),
        ],
        [weights("words", 10, 4), weights("positions", 1, 5, 4)],
        {"words", "positions"},
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["N", 5])],
    ),
    Case(
        "a token that is joined to the data is a weight",
        [
            node("Shape", ["x"], ["shape"]),
            node("Slice", ["shape", "zero", "one"], ["batch"]),
            node("Concat", ["batch", "rest"], ["target"], axis=0),
            node("Expand", ["token", "target"], ["tokens"]),
            node("Concat", ["tokens", "x"], ["joined"], axis=1),
            node("MatMul", ["joined", "W"], ["scores"]),
        ],
        [weights("token", 1, 1, 4), integers("zero", 0), integers("one", 1), integers("rest", 1, 4), KERNEL],
        {"token", "W"},
        [floats("x", "N", 2, 4)],
    ),
    Case(
        "a block of zeros that is joined to the data is padding",
        [node("Concat", ["x", "zeros"], ["joined"], axis=1), node("MatMul", ["joined", "W"], ["scores"])],
        [numpy_helper.from_array(np.zeros((2, 1), np.float32), "zeros"), weights("W", 5, 3)],
        {"W"},
        [floats("x", 2, 4)],
    ),
    Case(
        "a weight is found behind every form that it takes",
        [
            node("Identity", ["stored"], ["a"]),
            node("Transpose", ["a"], ["b"]),
            node("Reshape", ["b", "shape"], ["c"]),
            node("Cast", ["c"], ["d"], to=TensorProto.FLOAT),
            node("QuantizeLinear", ["d", "step"], ["q"]),
            node("DequantizeLinear", ["q", "step"], ["e"]),
            node("MatMul", ["x", "e"], ["scores"]),
        ],
        [weights("stored", 6, 2, dtype="float64"), integers("shape", 4, 3), scalar("step", 0.01)],
        {"stored"},
    ),
    Case(
        "a weight that is scaled by a constant is found",
        [node("Mul", ["stored", "gain"], ["W"]), node("MatMul", ["x", "W"], ["scores"])],
        [weights("stored", 4, 3), scalar("gain", 2.0)],
        {"stored"},
    ),
    Case(
        "a shared weight is trained once",
        [
            node("Gather", ["W", "x"], ["embedded"]),
            node("Transpose", ["W"], ["turned"]),
            node("MatMul", ["embedded", "turned"], ["scores"]),
        ],
        [weights("W", 6, 4)],
        {"W"},
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["N"])],
    ),
    Case(
        "integer tensors are never trained",
        [node("Reshape", ["x", "shape"], ["y"]), node("MatMul", ["y", "W"], ["scores"])],
        [integers("shape", -1, 2), weights("W", 2, 3)],
        {"W"},
    ),
    Case(
        "scales of Resize and values of Pad stay",
        [
            node("Conv", ["x", "W"], ["hidden"]),
            node("Resize", ["hidden", "", "scales"], ["larger"]),
            node("Pad", ["larger", "pads", "value"], ["scores"]),
        ],
        [weights("W", 2, 1, 1), vector("scales", 1, 1, 2), integers("pads", 0, 0, 1, 0, 0, 1), scalar("value", 0)],
        {"W"},
        [floats("x", "N", 1, 4)],
    ),
    Case(
        "the weights of an LSTM are trained, its initial state is not",
        [
            node("LSTM", ["x", "W", "R", "B", "", "h", "c"], ["y", "last"], hidden_size=2),
            node("Squeeze", ["last", "first"], ["scores"]),
        ],
        [
            weights("W", 1, 8, 4),
            weights("R", 1, 8, 2),
            weights("B", 1, 16),
            weights("h", 1, 2, 2),
            weights("c", 1, 2, 2),
            integers("first", 0),
        ],
        {"W", "R", "B"},
        [floats("x", "T", 2, 4)],
    ),
    Case(
        "what does not influence the output is not trained",
        [DENSE, node("MatMul", ["hidden", "V"], ["other"]), node("Relu", ["hidden"], ["scores"])],
        [KERNEL, weights("V", 3, 3)],
        {"W"},
    ),
    Case(
        "what influences it only through integers is not trained",
        [
            node("MatMul", ["x", "V"], ["votes"]),
            node("ArgMax", ["votes"], ["winner"], axis=1, keepdims=0),
            node("Gather", ["table", "winner"], ["scores"]),
        ],
        [weights("V", 4, 3), weights("table", 3, 2)],
        {"table"},
    ),
    Case(
        "what stands before integers is trained, and what makes floats of them is not",
        [
            node("MatMul", ["x", "V"], ["hidden"]),
            node("DynamicQuantizeLinear", ["hidden"], ["q", "step", "zero"]),
            node("MatMulInteger", ["q", "W", "zero"], ["product"]),
            node("Cast", ["product"], ["floats"], to=TensorProto.FLOAT),
            node("Mul", ["step", "W_step"], ["steps"]),
            node("Mul", ["floats", "steps"], ["scaled"]),
            node("Add", ["scaled", "b"], ["scores"]),
        ],
        [
            weights("V", 4, 5),
            numpy_helper.from_array(np.arange(15, dtype=np.int8).reshape(5, 3), "W"),
            weights("W_step", 3),
            weights("b", 3),
        ],
        {"V", "b"},
    ),
    Case(
        "the weights that a Loop carries unchanged are found",
        [
            node(
                "Loop",
                ["count", "", "x", "W"],
                ["scores", "W_after"],
                body=helper.make_graph(
                    [
                        node("Identity", ["go"], ["go_on"]),
                        node("MatMul", ["value", "matrix"], ["next"]),
                        node("Identity", ["matrix"], ["same"]),
                    ],
                    "body",
                    [
                        helper.make_tensor_value_info("index", TensorProto.INT64, []),
                        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
                        floats("value", "N", 4),
                        floats("matrix", 4, 4),
                    ],
                    [
                        helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
                        floats("next", "N", 4),
                        floats("same", 4, 4),
                    ],
                ),
            )
        ],
        [numpy_helper.from_array(np.asarray(2, np.int64), "count"), weights("W", 4, 4)],
        {"W"},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_weights_are_told_from_other_constants(case):
    assert set(trained(case.prepared())) == case.expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_constant_nodes_are_treated_like_initializers(case):
    constants = [node("Constant", [], [tensor.name], value=tensor) for tensor in case.tensors]
    with_nodes = Case(case.name, [*constants, *case.nodes], [], case.expected, case.inputs, case.opset)
    prepared = with_nodes.prepared()
    assert set(trained(prepared)) == case.expected
    # only what is trained becomes an initializer
    assert {tensor.name for tensor in prepared.graph.initializer} == case.expected


def test_running_statistics_are_no_weights_even_when_they_are_named():
    prepared = make_trainable(convolutional())
    assert not {"mean1", "variance1", "mean2", "variance2"} & set(trained(prepared))
    with pytest.raises(ModelError, match="matches no weight"):
        make_trainable(convolutional(), trainable="mean1")


def test_weights_inside_branches_move_to_the_main_graph():
    prepared = make_trainable(with_branches())
    names = trained(prepared)
    assert len(names) == len(set(names)) == 5
    assert set(names) <= {tensor.name for tensor in prepared.graph.initializer}


def test_a_weight_of_one_branch_moves_under_a_name_that_the_other_does_not_use():
    model = with_branches()
    other = model.graph.node[0].attribute[1].g
    gemm = other.node[1]
    gemm.input[1] = other.initializer[0].name = "V"
    gemm.output[0] = "W"  # what the first branch calls its kernel
    other.output[0].name = "W"
    prepared = make_trainable(model)
    onnx.checker.check_model(prepared, full_check=True)
    assert "W_1" in trained(prepared)


def test_weights_that_a_function_uses_are_found():
    assert set(trained(make_trainable(with_function()))) == {"W1", "W2", "scale", "bias"}


def test_vectors_that_an_exporter_shares_for_their_values_are_trained_apart():
    prepared = make_trainable(deduplicated())
    assert set(trained(prepared)) == {"W1", "W2", "W3", "scale1", "bias1", "scale2", "bias2"}
    assert {"mean1", "mean2", "variance1", "variance2"} <= set(updates(prepared))


def test_statistics_that_are_shared_without_identity_are_kept_apart_too():
    model = deduplicated()
    source = {identity.output[0]: identity.input[0] for identity in model.graph.node if identity.op_type == "Identity"}
    nodes = [one for one in model.graph.node if one.op_type != "Identity"]
    for one in nodes:
        one.input[:] = [source.get(name, name) for name in one.input]
    merged = model_of(nodes, model.graph.input, model.graph.output, list(model.graph.initializer))
    prepared = make_trainable(merged)
    norms = [one for one in prepared.graph.node if one.op_type == "BatchNormalization"]
    statistics = [name for norm in norms for name in norm.input[3:]]
    assert len(set(statistics)) == 4
    assert not set(statistics) & set(trained(prepared))
    assert set(statistics) <= set(updates(prepared))


def two_normal_layers(*tensors: TensorProto, second: str) -> onnx.ModelProto:
    """Two LayerNormalizations: the first reads scale and bias, the second reads `second` and bias."""
    nodes = [
        node("MatMul", ["x", "W"], ["a"]),
        node("LayerNormalization", ["a", "scale", "bias"], ["b"], "first"),
        node("MatMul", ["b", "V"], ["c"]),
        node("LayerNormalization", ["c", second, "bias"], ["scores"], "second"),
    ]
    stored = [weights("W", 4, 3), weights("V", 3, 3), weights("bias", 3), *tensors]
    return model_of(nodes, [floats("x", "N", 4)], [floats("scores", "N", 3)], stored)


def test_layers_of_a_fresh_network_that_read_one_scale_are_trained_apart():
    prepared = make_trainable(two_normal_layers(vector("scale", 1, 1, 1), second="scale"))
    assert set(trained(prepared)) == {"W", "V", "scale", "second/scale", "bias"}


def test_a_layer_that_is_applied_twice_has_one_scale():
    # its values differ, so no exporter took them for those of another layer
    assert set(trained(make_trainable(two_normal_layers(vector("scale", 1, 2, 1), second="scale")))) == {
        "W",
        "V",
        "scale",
        "bias",
    }
    # an equal vector beside it shows that the exporter does not share tensors for their values
    fresh = two_normal_layers(vector("scale", 1, 1, 1), vector("other", 1, 1, 1), second="scale")
    assert set(trained(make_trainable(fresh))) == {"W", "V", "scale", "bias"}


def test_a_module_that_is_applied_twice_keeps_one_set_of_statistics():
    parameters = ["scale", "bias", "mean", "variance"]
    nodes = [
        node("MatMul", ["x", "W"], ["a"]),
        node("BatchNormalization", ["a", *parameters], ["b"]),
        node("MatMul", ["b", "V"], ["c"]),
        node("BatchNormalization", ["c", *parameters], ["scores"]),
    ]
    tensors = [weights("W", 4, 3), weights("V", 3, 3), vector("scale", 1, 1, 1), weights("bias", 3)]
    tensors += [weights("mean", 3), vector("variance", 1, 2, 3)]
    prepared = make_trainable(model_of(nodes, [floats("x", "N", 4)], [floats("scores", "N", 3)], tensors))
    first, second = nodes_of(prepared, "BatchNormalization")
    assert list(first.input[3:]) == ["mean", "variance"]
    assert list(second.input[3:]) == list(first.output[1:])
    assert updates(prepared)["mean"] == second.output[1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"trainable": "W*"}, ["W1", "W2"]),
        ({"trainable": ["b1", "W2"]}, ["b1", "W2"]),
        ({"frozen": "*1"}, ["W2", "b2"]),
        ({"trainable": "?2", "frozen": ["b2"]}, ["W2"]),
    ],
)
def test_patterns_choose_among_the_weights(options, expected):
    assert trained(make_trainable(mlp(), **options)) == expected


def test_a_name_with_brackets_means_itself():
    model = mlp()
    model.graph.initializer[0].name = model.graph.node[0].input[1] = "layers[0].weight"
    assert trained(make_trainable(model, trainable="layers[0].weight")) == ["layers[0].weight"]


def test_a_constant_is_trained_when_its_name_is_given():
    case = next(case for case in CASES if case.name == "numbers of plain arithmetic stay")
    assert set(trained(case.prepared(trainable=["half", "W"]))) == {"half", "W"}


def test_a_model_without_weights_is_refused_with_what_it_has():
    case = Case("", [node("Mul", ["x", "half"], ["scores"])], [scalar("half", 0.5)], set())
    with pytest.raises(ModelError, match=r"nothing to train.*'half', none of them used as a weight"):
        case.prepared()


def test_a_weight_in_every_small_type_is_trained():
    for dtype in ("float16", "float64"):
        assert trained(make_trainable(mlp(dtype=dtype))) == ["W1", "b1", "W2", "b2"]


def test_a_model_of_constant_nodes_has_the_same_bindings():
    assert updates(make_trainable(with_constant_nodes(convolutional()))) == updates(make_trainable(convolutional()))


def test_the_gradient_is_taken_at_the_stored_tensor_and_not_at_its_form():
    case = next(case for case in CASES if case.name == "a weight is found behind every form that it takes")
    assert attributes(node_of(case.prepared(), "Gradient"))["xs"] == ["stored"]
