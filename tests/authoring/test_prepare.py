"""What `make_trainable` writes: at every opset, for every loss and optimizer, standard ONNX that infers as before."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain as ot
from onnxtrain.authoring import Adam, Momentum, make_trainable
from onnxtrain.authoring.losses import SOFTMAX
from onnxtrain.authoring.optimizers import OPTIMIZERS
from onnxtrain.authoring.prediction import find_source
from onnxtrain.errors import ModelError, ModelWarning, UnsupportedError
from tests.authoring.inference_models import (
    OPSETS,
    as_ir_3,
    convolutional,
    deduplicated,
    floats,
    mlp,
    model_of,
    weights,
    with_branches,
    with_constant_nodes,
    with_function,
)
from tests.authoring.training_graphs import (
    algorithm,
    attributes,
    combined,
    infer,
    initial_values,
    node_of,
    nodes_of,
    trained,
    updates,
)

NETWORKS = {
    "dense": mlp,
    "convolutional": convolutional,
    "branches": with_branches,
    "function": with_function,
    "deduplicated": deduplicated,
    "constant nodes": lambda: with_constant_nodes(convolutional()),
    "IR 3": lambda: as_ir_3(convolutional(opset=8)),
}


def check_training_model(model: onnx.ModelProto) -> None:
    """The file is right as a whole, as ONNX's checker and our validator see it, and so is the graph of a step."""
    onnx.checker.check_model(model)
    onnx.checker.check_model(combined(model), full_check=True)
    assert ot.validate(model) == []


def sample_inputs(model: onnx.ModelProto, batch: int = 2) -> dict[str, np.ndarray]:
    stored = {tensor.name for tensor in model.graph.initializer}
    generator = np.random.default_rng(0)
    samples = {}
    for value in model.graph.input:
        if value.name not in stored:
            shape = [dim.dim_value or batch for dim in value.type.tensor_type.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            samples[value.name] = np.asarray(generator.normal(size=shape)).astype(dtype)
    return samples


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("network", [mlp, convolutional])
@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "mean_squared_error", "binary_cross_entropy"])
def test_the_training_model_is_right_at_every_opset(opset, network, loss):
    check_training_model(make_trainable(network(opset), loss=loss))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_every_optimizer_is_written_for_every_element_type(optimizer, dtype):
    check_training_model(make_trainable(mlp(dtype=dtype), optimizer=optimizer))


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_the_training_model_infers_what_the_model_inferred(network):
    model = network()
    inputs = sample_inputs(model)
    prepared = make_trainable(network())
    check_training_model(prepared)
    for before, after in zip(infer(model, inputs), infer(prepared, inputs), strict=True):
        np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_the_given_model_is_never_changed(network):
    model = network()
    before = model.SerializeToString(deterministic=True)
    make_trainable(model, free_batch=True, initialize="he_normal")
    assert model.SerializeToString(deterministic=True) == before


def test_the_operators_are_those_of_the_models_own_opset():
    prepared = make_trainable(mlp(opset=11))
    assert [(entry.domain, entry.version) for entry in prepared.opset_import] == [
        ("", 11),
        ("ai.onnx.preview.training", 1),
    ]


def test_an_import_of_the_training_domain_is_not_repeated():
    model = mlp()
    model.opset_import.append(helper.make_opsetid("ai.onnx.preview.training", 1))
    domains = [entry.domain for entry in make_trainable(model).opset_import]
    assert domains == ["", "ai.onnx.preview.training"]


@pytest.mark.parametrize("opset", [8, 11, 17])
@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "mean_squared_error", "binary_cross_entropy"])
def test_the_loss_comes_first_and_is_the_one_output_that_nothing_assigns(opset, loss):
    prepared = make_trainable(mlp(opset), loss=loss)
    outputs = [value.name for value in algorithm(prepared).output]
    assert outputs[0] == "loss"
    assert set(outputs[1:]) == set(updates(prepared).values())


def test_the_gradient_names_the_weights_and_the_data():
    gradient = node_of(make_trainable(mlp()), "Gradient")
    assert attributes(gradient) == {"xs": ["W1", "b1", "W2", "b2"], "zs": ["x", "labels"], "y": "loss"}
    assert list(gradient.input) == ["W1", "b1", "W2", "b2", "x", "labels"]


def test_inputs_that_the_loss_does_not_need_are_not_named_in_the_gradient():
    model = mlp()
    model.graph.input.append(floats("y", "batch", 2))
    model.graph.node.append(helper.make_node("Neg", ["y"], ["minus_y"]))
    model.graph.output.append(floats("minus_y", "batch", 2))
    assert attributes(node_of(make_trainable(model, output="scores"), "Gradient"))["zs"] == ["x", "labels"]


@pytest.mark.parametrize(
    ("loss", "element_type", "shape"),
    [("softmax_cross_entropy", TensorProto.INT64, ["batch"]), ("mean_squared_error", TensorProto.FLOAT, ["batch", 3])],
)
def test_the_labels_are_declared(loss, element_type, shape):
    (labels,) = algorithm(make_trainable(mlp(), loss=loss)).input
    dims = [dim.dim_param or dim.dim_value for dim in labels.type.tensor_type.shape.dim]
    assert (labels.name, labels.type.tensor_type.elem_type, dims) == ("labels", element_type, shape)


@pytest.mark.parametrize(
    ("shape", "asked", "expected"),
    [
        (["N", 5], None, ["N"]),
        (["N", "T", 5], None, ["N", "T"]),
        (["N", 5, "T"], 1, ["N", "T"]),
        (["N", 5, 4, 4], None, ["N", 4, 4]),
        (["N", 4, 4, 5], -1, ["N", 4, 4]),
    ],
)
@pytest.mark.parametrize("opset", [7, 11, 12])
def test_labels_have_the_shape_of_the_output_without_its_class_axis(shape, asked, expected, opset):
    fixed = [5 if size == 5 else size for size in shape]
    model = model_of(
        [helper.make_node("PRelu", ["x", "slope"], ["scores"])],
        [floats("x", *fixed)],
        [floats("scores", *fixed)],
        [weights("slope", 1)],
        opset=opset,
    )
    prepared = make_trainable(model, class_axis=asked)
    check_training_model(prepared)
    (labels,) = algorithm(prepared).input
    assert [dim.dim_param or dim.dim_value for dim in labels.type.tensor_type.shape.dim] == expected


@pytest.mark.parametrize("opset", [8, 12, 17])
def test_a_softmax_at_the_end_is_part_of_the_loss(opset):
    prepared = make_trainable(mlp(opset, softmax=True))
    check_training_model(prepared)
    read = {name for node in algorithm(prepared).node for name in node.input}
    assert "scores" in read
    assert "probabilities" not in read
    assert "before its last activation" in algorithm(prepared).doc_string


@pytest.mark.parametrize(("axes", "is_softmax"), [([-1], True), ([1], True), ([0], True), ([0, 1], False)])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_softmax_in_parts_is_part_of_the_loss(axes, is_softmax, keepdims):
    model = mlp()
    model.graph.node.extend(
        [
            helper.make_node("Exp", ["scores"], ["powers"]),
            helper.make_node("ReduceSum", ["powers", "axes"], ["sum"], keepdims=keepdims),
            helper.make_node("Shape", ["powers"], ["shape"]),
            helper.make_node("Expand", ["sum", "shape"], ["sums"]),
            helper.make_node("Div", ["powers", "sums"], ["probabilities"]),
        ]
    )
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(axes, np.int64), "axes"))
    model.graph.output[0].name = "probabilities"
    expected = "scores" if is_softmax else "probabilities"
    assert find_source(model.graph, "probabilities", before=SOFTMAX).value == expected
    assert find_source(model.graph, "probabilities", before=()).value == "probabilities"


def test_what_reshapes_after_the_softmax_is_done_to_the_logits():
    nodes = [
        helper.make_node("Conv", ["x", "W"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
        helper.make_node("Squeeze", ["probabilities"], ["classes"], axes=[2, 3]),
    ]
    model = model_of(
        nodes, [floats("x", "N", 2, 1, 1)], [floats("classes", "N", 3)], [weights("W", 3, 2, 1, 1)], opset=12
    )
    prepared = make_trainable(model)
    check_training_model(prepared)
    assert node_of(prepared, "Squeeze").input[0] == "scores"
    (labels,) = algorithm(prepared).input
    assert len(labels.type.tensor_type.shape.dim) == 1


def test_a_softmax_stays_where_the_loss_is_no_cross_entropy():
    read = {
        name
        for node in algorithm(make_trainable(mlp(softmax=True), loss="mean_squared_error")).node
        for name in node.input
    }
    assert "probabilities" in read


def test_adam_is_written_with_every_coefficient():
    node = nodes_of(make_trainable(mlp(), optimizer=Adam(beta1=0.8, epsilon=1e-6)), "Adam")[0]
    assert node.name == "adam/W1"
    assert attributes(node) == pytest.approx(
        {"alpha": 0.8, "beta": 0.999, "epsilon": 1e-6, "norm_coefficient": 0.0, "norm_coefficient_post": 0.0}
    )


@pytest.mark.parametrize(("nesterov", "mode"), [(False, "standard"), (True, "nesterov")])
def test_momentum_is_written_with_every_coefficient(nesterov, mode):
    node = nodes_of(make_trainable(mlp(), optimizer=Momentum(decay=0.5, nesterov=nesterov)), "Momentum")[0]
    found = attributes(node)
    assert found.pop("mode") == mode
    assert found == {"alpha": 0.5, "beta": 1.0, "norm_coefficient": 0.0}


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [
        ("sgd", set()),
        ("momentum", {"step", "W1/momentum"}),
        ("adam", {"step", "W1/first_moment", "W1/second_moment"}),
    ],
)
def test_the_state_of_the_optimizer_is_bound_and_starts_at_zero(optimizer, state):
    prepared = make_trainable(mlp(), optimizer=optimizer, trainable="W1")
    assert set(updates(prepared)) == {"W1", "learning_rate", *state}
    assert set(initial_values(prepared)) == state
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in algorithm(prepared).initializer}
    assert all(not stored[name].any() for name in state)


def test_the_learning_rate_is_a_state_variable():
    prepared = make_trainable(mlp(), learning_rate=0.125)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in algorithm(prepared).initializer}
    assert stored["learning_rate"] == np.float32(0.125)
    assert "learning_rate" in updates(prepared)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_names_of_the_model_are_never_taken(optimizer):
    plain = make_trainable(convolutional(opset=11), optimizer=optimizer)
    written = {name for node in algorithm(plain).node for name in (node.name, *node.output)}
    written |= {tensor.name for tensor in algorithm(plain).initializer} | {"labels"}
    # the same model, in which every name that was written belongs to a tensor of the user
    crowded = convolutional(opset=11)
    for name in sorted(written - {""}):
        crowded.graph.initializer.append(numpy_helper.from_array(np.ones((), np.float32), name))
    prepared = make_trainable(crowded, optimizer=optimizer)
    check_training_model(prepared)
    kept = {tensor.name for tensor in prepared.graph.initializer}
    assert written - {""} <= kept
    assert algorithm(prepared).input[0].name == "labels_1"


@pytest.mark.spec("T-17", "T-19")
def test_a_model_of_ir_3_keeps_its_initializers_constant():
    prepared = make_trainable(as_ir_3(convolutional(opset=8)))
    assert prepared.ir_version == 7
    assert [value.name for value in prepared.graph.input] == ["x"]


def test_a_state_variable_is_no_input():
    model = mlp()
    model.graph.input.append(floats("W1", 4, 5))
    assert [value.name for value in make_trainable(model).graph.input] == ["x"]


def test_small_element_types_are_updated_in_float32():
    prepared = make_trainable(mlp(dtype="float16"), trainable="W1")
    types = {tensor.name: tensor.data_type for tensor in algorithm(prepared).initializer}
    assert types["W1/first_moment"] == TensorProto.FLOAT
    assert "W1/residual" in updates(prepared)


def test_a_model_is_read_with_its_external_data(tmp_path: Path):
    path = tmp_path / "network.onnx"
    onnx.save_model(mlp(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    prepared = make_trainable(path)
    check_training_model(prepared)
    expected = [numpy_helper.to_array(tensor) for tensor in mlp().graph.initializer]
    for tensor, value in zip(prepared.graph.initializer, expected, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), value)


def test_nodes_may_stand_in_any_order():
    model = mlp()
    backwards = model_of(
        list(reversed(model.graph.node)), model.graph.input, model.graph.output, list(model.graph.initializer)
    )
    prepared = make_trainable(backwards)
    check_training_model(prepared)
    assert trained(prepared) == ["W1", "b1", "W2", "b2"]


def test_whoever_opens_the_file_finds_it_explained():
    text = algorithm(make_trainable(mlp(), frozen="*1")).doc_string
    for part in ("softmax cross entropy", "'scores'", "'labels'", "Adam", "'W2', 'b2'", "learning rate"):
        assert part in text


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"loss": "hinge"}, UnsupportedError, "'softmax_cross_entropy', 'mean_squared_error'"),
        ({"optimizer": "adan"}, UnsupportedError, "'sgd', 'momentum', 'nesterov', 'adagrad', 'rmsprop', 'adam'"),
        ({"initialize": "xavier"}, UnsupportedError, "'keep', 'glorot_uniform'"),
        ({"output": "score"}, ModelError, "Its outputs are \\['scores'\\]"),
        ({"trainable": ["w1"]}, ModelError, "Did you mean .*'W1'"),
        ({"frozen": ["encoder.*"]}, ModelError, "The weights are 'W1', 'b1', 'W2', 'b2'"),
        ({"frozen": "*"}, ModelError, "is frozen"),
        ({"class_axis": 0}, ModelError, "one of the axes 1 to 1"),
        ({"class_axis": 2}, ModelError, "one of the axes 1 to 1"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_there_is(change, error, words):
    with pytest.raises(error, match=words):
        make_trainable(mlp(), **change)


def test_a_model_with_training_information_is_not_prepared_again():
    with pytest.raises(ModelError, match="has training information already"):
        make_trainable(make_trainable(mlp()))


def test_an_opset_before_7_is_refused():
    with pytest.raises(UnsupportedError, match="imports opset 6"):
        make_trainable(mlp(opset=6))


def test_of_several_outputs_one_must_be_named():
    model = mlp()
    model.graph.output.append(floats("active", "batch", 5))
    with pytest.raises(ModelError, match=r"has 2: \['scores', 'active'\]"):
        make_trainable(model)
    assert trained(make_trainable(model, output="active")) == ["W1", "b1"]


def test_cross_entropy_needs_more_than_one_class():
    model = model_of(
        [helper.make_node("MatMul", ["x", "W"], ["score"])],
        [floats("x", "N", 4)],
        [floats("score", "N", 1)],
        [weights("W", 4, 1)],
    )
    with pytest.raises(ModelError, match="one score in all"):
        make_trainable(model)
    check_training_model(make_trainable(model, loss="mean_squared_error"))


REAL_MODELS_WITH_NOTHING_TO_TRAIN = {
    "atspm_lgbm_function": "has nothing to train",  # trees
    "mnist_qdq_u8s8": "has nothing to train",  # its weights are stored as int8
    "ort_logreg_iris": "is no float tensor",  # a classifier of ai.onnx.ml
    "surfaces_validity_tree": "is no float tensor",  # trees
}


def test_every_real_model_with_float_weights_is_prepared(models_dir: Path, subtests):
    for path in sorted(models_dir.glob("*/model.onnx")):
        with subtests.test(path.parent.name), warnings.catch_warnings():
            warnings.simplefilter("ignore", ModelWarning)
            first_output = onnx.load(path, load_external_data=False).graph.output[0].name
            reason = REAL_MODELS_WITH_NOTHING_TO_TRAIN.get(path.parent.name)
            if reason is not None:
                with pytest.raises(ModelError, match=reason):
                    make_trainable(path, loss="mean_squared_error", output=first_output)
                continue
            prepared = make_trainable(path, loss="mean_squared_error", output=first_output)
            onnx.checker.check_model(prepared)
            assert ot.validate(prepared) == []
