"""The stateful object of the specification: reset, train, infer, save, and what it says of wrong inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxtrain as ot
from onnxtrain.errors import InputError, InputTypeError, ModelError, StateError, StaticValueError
from tests.graph.training_models import (
    edited,
    floats,
    linear_with_sgd,
    mlp_with_momentum,
    running_mean_from_inference,
    tensor,
    training_info,
    training_model,
    two_algorithms,
)

BATCH = {"x": np.array([[1, 2, 3], [0, 1, -1]], np.float32), "target": np.zeros((2, 2), np.float32)}


def classifier_batch(size: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(size, 4)).astype(np.float32), "labels": rng.integers(0, 3, size)}


def values(session: ot.TrainingSession) -> dict[str, list[Any]]:
    return {name: value.tolist() for name, value in session.variables.items()}


@pytest.mark.spec("T-01")
def test_step_changes_the_state_and_infer_does_not() -> None:
    session = ot.TrainingSession(linear_with_sgd())
    stored = values(session)
    first = session.infer({"x": BATCH["x"]})["y"]
    assert values(session) == stored
    session.step(BATCH)
    assert values(session) != stored
    assert not np.array_equal(session.infer({"x": BATCH["x"]})["y"], first)


@pytest.mark.spec("T-02")
def test_the_state_variables_are_exactly_the_keys_of_the_bindings() -> None:
    session = ot.TrainingSession(mlp_with_momentum())
    weights = ["W1", "b1", "W2", "b2"]
    assert sorted(session.variables) == sorted([*weights, *(f"{name}_momentum" for name in weights), "T"])
    assert "R" not in session.variables


@pytest.mark.spec("T-03")
def test_before_anything_runs_every_variable_holds_its_initializer() -> None:
    assert values(ot.TrainingSession(two_algorithms())) == {"a": 1.0, "b": 0.0}


@pytest.mark.spec("T-04")
def test_initialize_resets_variables_that_no_initialization_binds() -> None:
    session = ot.TrainingSession(mlp_with_momentum())
    session.initialize()
    start = values(session)
    for seed in range(3):
        session.step(classifier_batch(seed=seed))
    assert session.variables["T"] == 3
    session.initialize()
    assert values(session) == start
    assert session.step_count == 0


@pytest.mark.spec("T-04")
def test_a_later_initialization_sees_what_an_earlier_one_assigned() -> None:
    def initialization(nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
        return helper.make_graph(nodes, "start", [], [floats(output)])

    seven = initialization([helper.make_node("Constant", [], ["seven"], value_float=7.0)], "seven")
    double = initialization([helper.make_node("Add", ["a", "a"], ["double"])], "double")

    def change(model: onnx.ModelProto) -> None:
        for info, graph, key in zip(model.training_info, (seven, double), "ab", strict=True):
            info.initialization.CopyFrom(graph)
            info.initialization_binding.add(key=key, value=graph.output[0].name)

    session = ot.TrainingSession(edited(two_algorithms(), change))
    assert values(session) == {"a": 1, "b": 0}
    session.initialize()
    assert values(session) == {"a": 7, "b": 14}


@pytest.mark.spec("T-07", "T-12")
def test_a_step_runs_the_algorithms_in_order_and_the_second_sees_the_first() -> None:
    session = ot.TrainingSession(two_algorithms())
    session.step({})
    assert values(session) == {"a": 2, "b": 2}


@pytest.mark.spec("T-07")
def test_one_algorithm_can_run_alone() -> None:
    session = ot.TrainingSession(two_algorithms())
    session.step({}, algorithm=1)
    assert values(session) == {"a": 1, "b": 1}
    session.step({}, algorithm=0)
    assert values(session) == {"a": 2, "b": 1}
    with pytest.raises(IndexError, match="the model has 2"):
        session.step({}, algorithm=2)


@pytest.mark.spec("T-12")
def test_updates_inside_one_algorithm_are_computed_from_the_old_values() -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        "pair",
        [],
        [floats("y")],
        [tensor("a", 1.0), tensor("b", 2.0)],
    )
    nodes = [helper.make_node("Identity", ["b"], ["a_new"]), helper.make_node("Identity", ["a"], ["b_new"])]
    swap = helper.make_graph(nodes, "swap", [], [floats("a_new"), floats("b_new")])
    session = ot.TrainingSession(training_model(graph, training_info(swap, {"a": "a_new", "b": "b_new"})))
    session.step({})
    assert values(session) == {"a": 2, "b": 1}


@pytest.mark.spec("T-13")
def test_a_model_without_training_information_infers_and_says_how_to_train_it() -> None:
    model = linear_with_sgd()
    del model.training_info[:]
    session = ot.TrainingSession(model)
    assert session.infer({"x": BATCH["x"]})["y"].shape == (2, 2)
    for method in (session.initialize, lambda: session.step(BATCH)):
        with pytest.raises(ModelError, match="make_trainable"):
            method()


@pytest.mark.spec("T-14")
def test_an_update_of_another_shape_is_refused_where_only_tracing_can_tell() -> None:
    def change(model: onnx.ModelProto) -> None:
        del model.training_info[0].algorithm.output[:]
        model.training_info[0].algorithm.output.extend([onnx.ValueInfoProto(name="a_new")])
        model.training_info[0].algorithm.initializer[0].CopyFrom(tensor("one", [1.0]))

    session = ot.TrainingSession(edited(two_algorithms(), change))
    with pytest.raises(StateError, match=r"\['a'\] assigns float32\[1\] to a variable that is float32\[\]"):
        session.step({})


@pytest.mark.spec("T-15")
def test_an_initializer_that_two_algorithms_store_alike_is_one_variable() -> None:
    def change(model: onnx.ModelProto) -> None:
        for info in model.training_info:
            algorithm = info.algorithm
            algorithm.initializer.append(tensor("ticks", 0.0))
            algorithm.node.append(helper.make_node("Add", ["ticks", "tick"], ["ticks_new"]))
            algorithm.node.append(helper.make_node("Constant", [], ["tick"], value_float=1.0))
            algorithm.output.append(floats("ticks_new"))
        model.training_info[0].update_binding.add(key="ticks", value="ticks_new")

    session = ot.TrainingSession(edited(two_algorithms(), change))
    found = session.step({}, outputs=["ticks_new"])
    assert found["ticks_new"] == 2  # the second algorithm reads what the first assigned
    assert session.variables["ticks"] == 1


@pytest.mark.spec("T-11")
def test_an_output_of_the_inference_graph_updates_a_variable() -> None:
    session = ot.TrainingSession(running_mean_from_inference())
    session.step({"x": np.array([1, 2, 6], np.float32)})
    assert session.variables["mean"] == 3


@pytest.mark.spec("T-17")
def test_an_initializer_that_is_an_input_is_a_default_from_ir_4_on() -> None:
    node = helper.make_node("Mul", ["x", "scale"], ["y"])
    graph = helper.make_graph([node], "g", [floats("x"), floats("scale")], [floats("y")], [tensor("scale", 2.0)])
    for ir_version in (3, 8):
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=ir_version)
        session = ot.TrainingSession(model)
        assert session.infer({"x": np.float32(3)})["y"] == 6
        if ir_version == 8:
            assert session.infer({"x": np.float32(3), "scale": np.float32(5)})["y"] == 15
        else:
            with pytest.raises(InputError, match="no input 'scale'"):
                session.infer({"x": np.float32(3), "scale": np.float32(5)})


def test_step_gives_any_value_that_is_asked_for_in_that_order() -> None:
    session = ot.TrainingSession(mlp_with_momentum())
    found = session.step(classifier_batch(), outputs=["logits", "loss", "W1_grad"])
    assert list(found) == ["logits", "loss", "W1_grad"]
    assert found["logits"].shape == (6, 3)
    with pytest.raises(InputError, match=r"no value 'lss'\. Did you mean 'loss'"):
        session.step(classifier_batch(), outputs=["lss"])


def test_inputs_that_nothing_needs_may_be_left_out() -> None:
    session = ot.TrainingSession(mlp_with_momentum())
    assert list(session.infer({"x": classifier_batch()["x"]})) == ["logits"]


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({"X": BATCH["x"]}, InputError, "no input 'X'. Did you mean 'x'"),
        ({"target": BATCH["target"]}, InputError, r"'x' \(float32\[N, 3\]\) is needed and was not fed"),
        ({**BATCH, "x": BATCH["x"][:, :2]}, InputError, r"'x' must be float32\[N, 3\], and shape \[2, 2\] was fed"),
        ({**BATCH, "x": BATCH["x"].astype(np.float64)}, InputTypeError, "must be float32, and float64 was fed"),
    ],
    ids=["name", "missing", "shape", "type"],
)
def test_a_wrong_input_is_named_with_what_was_expected(
    inputs: dict[str, np.ndarray], error: type[Exception], message: str
) -> None:
    session = ot.TrainingSession(linear_with_sgd())
    with pytest.raises(error, match=message):
        session.step(inputs)
    assert session.step_count == 0


def test_python_numbers_and_lists_take_the_declared_type() -> None:
    session = ot.TrainingSession(linear_with_sgd())
    assert session.infer({"x": [[1, 2, 3]]})["y"].dtype == np.float32


def test_a_new_shape_is_a_new_compile_and_nothing_is_baked_in() -> None:
    session = ot.TrainingSession(mlp_with_momentum())
    for size in (1, 6, 2, 6):
        assert session.step(classifier_batch(size), outputs=["logits"])["logits"].shape == (size, 3)


def test_variables_are_read_and_set_by_name() -> None:
    session = ot.TrainingSession(two_algorithms())
    session.variables["a"] = 10
    session.step({})
    assert values(session) == {"a": 11, "b": 11}
    with pytest.raises(StateError, match=r"float32\[\], and it was assigned float32\[1\]"):
        session.variables["a"] = np.zeros(1, np.float32)
    with pytest.raises(KeyError, match="no state variable 'c'"):
        session.variables["c"] = 1


def test_a_state_that_was_read_survives_the_next_step() -> None:
    session = ot.TrainingSession(two_algorithms())
    before = session.state
    session.step({})
    assert float(before.variables["a"]) == 1
    assert int(before.step) == 0


def test_a_step_reuses_the_memory_of_the_state() -> None:
    session = ot.TrainingSession(mlp_with_momentum())
    session.step(classifier_batch())
    held = session._state.variables["W1"]
    session.step(classifier_batch())
    assert held.is_deleted()


@pytest.mark.spec("M-08", "R-01")
def test_a_saved_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    session = ot.TrainingSession(noisy_walk(), seed=3)
    session.initialize()
    for _ in range(3):
        session.step({})
    session.save(tmp_path / "run.onnx")
    resumed = ot.TrainingSession(tmp_path / "run.onnx")
    assert resumed.step_count == 3
    for _ in range(3):
        session.step({})
        resumed.step({})
        assert values(session) == values(resumed)


@pytest.mark.spec("M-08")
def test_the_callers_model_is_never_changed() -> None:
    model = mlp_with_momentum()
    before = model.SerializeToString(deterministic=True)
    session = ot.TrainingSession(model)
    session.step(classifier_batch())
    assert model.SerializeToString(deterministic=True) == before


def noisy_walk() -> onnx.ModelProto:
    """A position that a step moves at random."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["position"], ["y"])],
        "walk",
        [],
        [floats("y", 4)],
        [tensor("position", [0.0] * 4)],
    )
    nodes = [
        helper.make_node("RandomNormal", [], ["move"], shape=[4]),
        helper.make_node("Add", ["position", "move"], ["moved"]),
    ]
    algorithm = helper.make_graph(nodes, "move", [], [floats("moved", 4)])
    return training_model(graph, training_info(algorithm, {"position": "moved"}))


@pytest.mark.spec("R-01")
def test_the_seed_decides_the_run() -> None:
    def run(seed: int) -> dict[str, list[Any]]:
        session = ot.TrainingSession(noisy_walk(), seed=seed)
        session.step({})
        return values(session)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_shape_that_is_fed_is_compiled_once_for_each_value() -> None:
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        "g",
        [floats("x", "N"), helper.make_tensor_value_info("shape", TensorProto.INT64, ["R"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    session = ot.TrainingSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    for shape in ([2, 3], [3, 2], [6]):
        found = session.infer({"x": np.arange(6, dtype=np.float32), "shape": np.array(shape, np.int64)})
        assert found["y"].shape == tuple(shape)


def test_a_shape_that_depends_on_data_says_how_it_came_about() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.INT64, name="cast_1"),
            helper.make_node("ReduceSum", ["whole"], ["size"], keepdims=1, name="sum_1"),
            helper.make_node("Expand", ["one", "size"], ["y"], name="expand_1"),
        ],
        "g",
        [floats("x", "N")],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [tensor("one", [1.0])],
    )
    program = ot.lower(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    state = program.stored_state(jax.random.key(0))
    with pytest.raises(StaticValueError) as caught:
        jax.jit(lambda x: program.infer(state, {"x": x}))(np.ones(100, np.float32))
    message = str(caught.value)
    assert "Expand 'expand_1' in graph 'g' (ai.onnx 17)" in message
    assert "depends on 'x'" in message
    assert "x -> Cast 'cast_1' -> ReduceSum 'sum_1' -> shape" in message


def test_64_bit_values_are_kept_whatever_the_setting_of_jax() -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "big"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["N"])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, ["N"])],
        [tensor("big", [2**40], np.int64)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = ot.TrainingSession(model).infer({"x": np.array([1, 2], np.int64)})["y"]
    assert found.tolist() == [2**40 + 1, 2**40 + 2]
    assert found.dtype == np.int64
    assert jax.numpy.arange(1).dtype == np.int32
