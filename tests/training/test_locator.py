"""Finding where NaN and infinity come from."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxtrain.errors import InputError
from onnxtrain.session import TrainingSession
from onnxtrain.training.locator import find_nonfinite, range_of
from tests.graph.training_models import floats, mlp_with_momentum, tensor, training_info, training_model, training_node
from tests.training.problems import classification


def root_model(masked: bool = False) -> TrainingSession:
    """loss = mean(sqrt(x w)), with one weight; masked, a Softmax over what is -inf in places goes first."""
    mask = [
        helper.make_node("Less", ["x", "zero"], ["hidden"]),
        helper.make_node("Where", ["hidden", "lowest", "x"], ["masked"], name="mask"),
        helper.make_node("Softmax", ["masked"], ["shares"]),
    ]
    nodes = [
        *(mask if masked else []),
        helper.make_node("Mul", ["shares" if masked else "x", "w"], ["scaled"], name="scale"),
        helper.make_node("Sqrt", ["scaled"], ["y"], name="root"),
    ]
    constants = [tensor("zero", 0.0), tensor("lowest", -np.inf)] if masked else []
    graph = helper.make_graph(nodes, "roots", [floats("x", "N")], [floats("y", "N")], [tensor("w", 2.0), *constants])
    algorithm = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0),
            training_node("Gradient", ["w"], ["w_grad"], xs=["w"], y="loss"),
            helper.make_node("Sub", ["w", "w_grad"], ["w_new"]),
        ],
        "descend",
        [],
        [floats("loss"), floats("w_new")],
    )
    return TrainingSession(training_model(graph, training_info(algorithm, {"w": "w_new"})))


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_the_first_node_that_gives_nan_is_named_with_the_ranges_of_what_it_read() -> None:
    session = root_model()
    found = find_nonfinite(session, {"x": array(1, 4, -9)})
    assert found is not None
    assert found.node is not None
    assert found.node.name == "root"
    assert found.inputs == (range_of("scaled", array(2, 8, -18)),)
    assert str(found).splitlines() == [
        "The first value that is not finite comes from Sqrt 'root' in graph 'training_info[0].algorithm':",
        "  it gave 'y': float32[3] from 1.41421 to 2.82843, 1 NaN",
        "  it read 'scaled': float32[3] from -18 to 8",
    ]


def test_looking_changes_nothing() -> None:
    session = root_model()
    find_nonfinite(session, {"x": array(-1)})
    assert session.step_count == 0
    assert session.variables["w"] == 2


def test_a_step_that_is_finite_has_no_cause() -> None:
    assert find_nonfinite(root_model(), {"x": array(1, 4)}) is None


def test_a_gradient_that_is_infinite_where_the_loss_is_not_is_named() -> None:
    found = find_nonfinite(root_model(), {"x": array(1, 0)})
    assert found is not None
    assert found.node is not None
    assert found.node.op_type == "Gradient"


def test_a_batch_that_holds_nan_is_the_cause_rather_than_a_node() -> None:
    found = find_nonfinite(root_model(), {"x": array(1, np.nan)})
    assert found is not None
    assert found.node is None
    assert str(found) == "Before any node ran, 'x': float32[2] from 1 to 1, 1 NaN was fed or stored."


def test_a_weight_that_is_infinite_is_the_cause() -> None:
    session = root_model()
    session.variables["w"] = np.float32(np.inf)
    found = find_nonfinite(session, {"x": array(1)})
    assert found is not None
    assert found.node is None
    assert found.value.name == "w"


def test_a_mask_that_is_infinite_on_purpose_is_passed_over() -> None:
    session = root_model(masked=True)
    found = find_nonfinite(session, {"x": array(-1, 2, 3)})
    assert found is not None
    assert found.node is not None
    assert found.node.op_type == "Gradient"  # of a square root at zero
    session.variables["w"] = np.float32(-1)
    found = find_nonfinite(session, {"x": array(1, 2, 3)})
    assert found is not None
    assert found.node is not None
    assert found.node.name == "root"


def test_a_later_algorithm_is_looked_into_with_what_the_earlier_one_assigned() -> None:
    graph = helper.make_graph(
        [helper.make_node("Mul", ["a", "x"], ["y"])],
        "scaled",
        [floats("x")],
        [floats("y")],
        [tensor("a", 1.0), tensor("b", 1.0)],
    )
    first = helper.make_graph([helper.make_node("Sub", ["a", "x"], ["a_new"])], "less", [], [floats("a_new")])
    second = helper.make_graph([helper.make_node("Log", ["a"], ["b_new"], name="log")], "log", [], [floats("b_new")])
    model = training_model(graph, training_info(first, {"a": "a_new"}), training_info(second, {"b": "b_new"}))
    found = find_nonfinite(TrainingSession(model), {"x": np.float32(3)})
    assert found is not None
    assert found.node is not None
    assert found.node.name == "log"
    assert found.inputs == (range_of("a", np.float32(-2)),)
    assert find_nonfinite(TrainingSession(model), {"x": np.float32(3)}, algorithm=0) is None


def test_a_model_whose_shapes_depend_on_data_is_searched_too() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("NonZero", ["x"], ["where"]),
            helper.make_node("Cast", ["where"], ["places"], to=TensorProto.FLOAT),
            helper.make_node("Sub", ["places", "one"], ["moved"]),
            helper.make_node("Log", ["moved"], ["y"], name="log"),
        ],
        "places",
        [floats("x", "N")],
        [floats("y", 1, None)],
        [tensor("one", 1.0), tensor("total", 0.0)],
    )
    algorithm = helper.make_graph(
        [helper.make_node("ReduceSum", ["y"], ["total_new"], keepdims=0)], "sum", [], [floats("total_new")]
    )
    session = TrainingSession(training_model(graph, training_info(algorithm, {"total": "total_new"})))
    found = find_nonfinite(session, {"x": array(1, 0, 1)})
    assert found is not None
    assert found.node is not None
    assert found.node.name == "log"


def test_a_batch_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="'labels'"):
        find_nonfinite(TrainingSession(mlp_with_momentum()), {"x": classification()["x"]})
