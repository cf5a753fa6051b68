from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxtrain as ot
from onnxtrain.errors import OperatorError
from onnxtrain.graph.model import Graph, Node
from onnxtrain.lowering.context import Context
from onnxtrain.lowering.interpreter import run_graph
from tests.lowering.one_node import run_node

DATA = np.arange(1, 2001, dtype=np.float32)
TRUE = np.array(True)


def dropout(opset: int, inputs: list[Any], **settings: Any) -> tuple[Any, Any]:
    output, mask = run_node("Dropout", inputs, opset=opset, outputs=2, **settings)
    return output, mask


@pytest.mark.parametrize("opset", [1, 6])
def test_dropout_before_opset_7_drops_unless_it_is_a_test(opset: int) -> None:
    output, mask = dropout(opset, [DATA], ratio=0.25)
    np.testing.assert_allclose(output, DATA * np.asarray(mask) / 0.75, rtol=1e-6)
    assert 0.7 < np.mean(mask) < 0.8
    tested, _ = dropout(opset, [DATA], ratio=0.25, is_test=1)
    np.testing.assert_array_equal(tested, DATA)


@pytest.mark.parametrize(("opset", "mask_type"), [(7, np.float32), (9, np.float32), (10, np.bool_), (11, np.bool_)])
def test_dropout_from_opset_7_to_11_keeps_everything(opset: int, mask_type: Any) -> None:
    output, mask = dropout(opset, [DATA], ratio=0.9)
    np.testing.assert_array_equal(output, DATA)
    assert mask.dtype == mask_type
    assert np.all(mask)


@pytest.mark.spec("T-21")
@pytest.mark.parametrize("opset", [12, 13, 22])
def test_dropout_keeps_everything_unless_training_mode_is_set(opset: int) -> None:
    output, mask = dropout(opset, [DATA, np.float32(0.9)])
    np.testing.assert_array_equal(output, DATA)
    assert mask.dtype == np.bool_
    assert np.all(mask)


@pytest.mark.parametrize("static_inputs", [(), (1,), (1, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_dropout_in_training_mode_scales_what_it_keeps(dtype: Any, static_inputs: tuple[int, ...]) -> None:
    data = np.ones(4000, dtype)
    output, mask = dropout(22, [data, np.float32(0.5), TRUE], static_inputs=static_inputs)
    assert output.dtype == data.dtype
    np.testing.assert_array_equal(output, np.where(mask, 2, 0).astype(dtype))
    assert 0.45 < np.mean(mask) < 0.55


def test_dropout_that_is_told_not_to_train_only_at_run_time_keeps_everything() -> None:
    output, mask = dropout(22, [DATA, np.float32(0.5), np.array(False)])
    np.testing.assert_array_equal(output, DATA)
    assert np.all(mask)


def test_dropout_drops_half_when_no_ratio_is_given() -> None:
    _, mask = dropout(22, [DATA, None, TRUE])
    assert 0.45 < np.mean(mask) < 0.55


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_the_gradient_of_dropout_is_its_scaled_mask(ratio: float) -> None:
    def total(data: jax.Array) -> tuple[jax.Array, jax.Array]:
        output, mask = dropout(22, [data, np.float32(ratio), TRUE])
        return jnp.sum(output), mask

    gradient, mask = jax.grad(total, has_aux=True)(jnp.asarray(DATA))
    np.testing.assert_allclose(gradient, np.asarray(mask) / max(1 - ratio, 0.5), rtol=1e-6)


def masks(seeds: tuple[float | None, float | None], *, seed: int = 0, step: int = 0) -> tuple[Any, Any]:
    """The masks of two Dropout nodes of one graph, with these `seed` attributes, at one step of one session."""
    nodes = tuple(
        Node("Dropout", "", "", ("x", "ratio", "training"), (f"y{i}", f"mask{i}"), {} if own is None else {"seed": own})
        for i, own in enumerate(seeds)
    )
    values = {"x": jnp.ones(256), "ratio": np.float32(0.5), "training": TRUE}
    context = Context({}, {"": 22}, key=jax.random.key(seed), salts=(0, step))
    found = run_graph(Graph("test", (), (), nodes), values, ("mask0", "mask1"), context)
    return np.asarray(found["mask0"]), np.asarray(found["mask1"])


@pytest.mark.spec("R-01")
@pytest.mark.parametrize("seeds", [(None, None), (1.0, 1.0)], ids=["session's seed", "own seeds"])
def test_two_nodes_never_share_a_mask(seeds: tuple[float | None, float | None]) -> None:
    first, second = masks(seeds)
    assert np.any(first != second)


@pytest.mark.spec("R-01", "R-02")
@pytest.mark.parametrize("seeds", [(None, None), (1.0, 1.0)], ids=["session's seed", "own seeds"])
def test_two_steps_never_share_a_mask(seeds: tuple[float | None, float | None]) -> None:
    for first, second in zip(masks(seeds, step=0), masks(seeds, step=1), strict=True):
        assert np.any(first != second)


@pytest.mark.spec("R-01")
def test_the_same_seed_gives_the_same_masks() -> None:
    np.testing.assert_array_equal(masks((None, 2.0), step=3), masks((None, 2.0), step=3))


@pytest.mark.spec("R-02")
def test_a_seed_attribute_replaces_the_session_s_seed() -> None:
    (free, fixed), (other_free, other_fixed) = masks((None, 2.0), seed=0), masks((None, 2.0), seed=1)
    np.testing.assert_array_equal(fixed, other_fixed)
    assert np.any(free != other_free)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_random_normal_and_uniform_have_the_asked_type_and_distribution(dtype: Any, x64: None) -> None:
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    (normal,) = run_node("RandomNormal", [], opset=22, shape=(50, 100), dtype=code, mean=3.0, scale=2.0)
    (uniform,) = run_node("RandomUniform", [], opset=1, shape=(50, 100), dtype=code, low=-1.0, high=3.0)
    assert normal.dtype == uniform.dtype == np.dtype(dtype)
    assert normal.shape == uniform.shape == (50, 100)
    wide, flat = np.asarray(normal, np.float64), np.asarray(uniform, np.float64)
    assert abs(wide.mean() - 3) < 0.15
    assert abs(wide.std() - 2) < 0.15
    assert abs(flat.mean() - 1) < 0.1
    assert -1 <= flat.min() < -0.9
    assert 2.9 < flat.max() <= 3


@pytest.mark.parametrize("op_type", ["RandomNormalLike", "RandomUniformLike"])
def test_random_operators_like_an_input_take_its_shape_and_unless_told_otherwise_its_type(op_type: str) -> None:
    like = np.zeros((2, 3), np.float16)
    (same,) = run_node(op_type, [like], opset=22)
    (other,) = run_node(op_type, [like.astype(np.int32)], opset=1, dtype=TensorProto.FLOAT)
    assert (same.shape, same.dtype) == ((2, 3), np.float16)
    assert (other.shape, other.dtype) == ((2, 3), np.float32)


@pytest.mark.parametrize("attributes", [{}, {"dtype": TensorProto.INT32}, {"dtype": TensorProto.BOOL}])
def test_bernoulli_draws_each_element_with_its_own_probability(attributes: dict[str, Any]) -> None:
    probabilities = np.repeat(np.array([0, 0.25, 1], np.float32), 2000).reshape(3, 2000)
    (drawn,) = run_node("Bernoulli", [probabilities], opset=22, **attributes)
    assert drawn.dtype == helper.tensor_dtype_to_np_dtype(attributes.get("dtype", TensorProto.FLOAT))
    np.testing.assert_allclose(np.asarray(drawn, np.float32).mean(axis=1), [0, 0.25, 1], atol=0.03)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_multinomial_draws_classes_by_unnormalized_log_probabilities(dtype: Any, x64: None) -> None:
    logits = np.log(np.array([[1, 1, 2], [1, 1e-30, 1e-30]], np.float32)) + 5
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    (drawn,) = run_node("Multinomial", [logits], opset=7, dtype=code, sample_size=4000)
    assert (drawn.shape, drawn.dtype) == ((2, 4000), np.dtype(dtype))
    np.testing.assert_allclose(np.bincount(drawn[0], minlength=3) / 4000, [0.25, 0.25, 0.5], atol=0.03)
    assert not np.any(drawn[1])


def test_a_graph_without_a_seed_draws_nothing() -> None:
    node = Node("RandomNormal", "", "noise", (), ("y",), {"shape": (2,)})
    with pytest.raises(OperatorError, match=r"'noise'(.|\n)*without a seed"):
        run_graph(Graph("test", (), (), (node,)), {}, ("y",), Context({}, {"": 22}))


def noisy_model(**seed: Any) -> onnx.ModelProto:
    """State variable w, which initialization draws, and to which each step adds a Dropout mask; `seed` is for both."""
    initialize = helper.make_graph(
        [helper.make_node("RandomNormal", [], ["fresh"], shape=[64], **seed)],
        "initialization",
        [],
        [helper.make_tensor_value_info("fresh", TensorProto.FLOAT, [64])],
    )
    ones = helper.make_tensor("ones", TensorProto.FLOAT, [64], [1.0] * 64)
    training = helper.make_tensor("training", TensorProto.BOOL, [], [True])
    step = helper.make_graph(
        [
            helper.make_node("Dropout", ["ones", "", "training"], ["noise"], **seed),
            helper.make_node("Add", ["w", "noise"], ["w_new"]),
        ],
        "algorithm",
        [],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in ("w_new", "noise")],
        [ones, training],
    )
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "inference",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64])],
        [helper.make_tensor("w", TensorProto.FLOAT, [64], [0.0] * 64)],
    )
    info = helper.make_training_info(step, [("w", "w_new")], initialize, [("w", "fresh")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    model.training_info.append(info)
    return model


@pytest.mark.spec("R-02")
def test_with_a_fixed_seed_initialization_repeats_and_every_step_draws_anew() -> None:
    session = ot.TrainingSession(noisy_model(seed=3.0), seed=0)
    session.initialize()
    fresh = np.asarray(session.variables["w"])
    noises = [np.asarray(session.step({}, outputs=["noise"])["noise"]) for _ in range(3)]
    assert len({noise.tobytes() for noise in noises}) == 3
    session.initialize()
    np.testing.assert_array_equal(session.variables["w"], fresh)
    np.testing.assert_array_equal(session.step({}, outputs=["noise"])["noise"], noises[0])


@pytest.mark.spec("R-01")
def test_sessions_with_one_seed_run_alike_and_others_do_not() -> None:
    def train(seed: int) -> np.ndarray:
        session = ot.TrainingSession(noisy_model(), seed=seed)
        session.initialize()
        for _ in range(3):
            session.step({})
        return session.variables["w"]

    np.testing.assert_array_equal(train(1), train(1))
    assert np.any(train(1) != train(2))
