from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from onnxtrain.errors import OperatorError
from tests.lowering.one_node import run_node

TRAINING = "ai.onnx.preview.training"
Arrays = tuple[Any, ...]


def stored(number: float) -> float:
    """A number as an attribute holds it: files keep attributes in float32."""
    return float(np.float32(number))


def vector(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


@dataclass(frozen=True)
class Optimizer:
    """What a document says, in float64: `states` tensors beside x and g, and every attribute by name."""

    document: Callable[..., tuple[Any, ...]]
    states: int
    attributes: dict[str, Any]


def adam_document(
    r: float,
    t: int,
    x: Any,
    g: Any,
    v: Any,
    h: Any,
    *,
    alpha: float = stored(0.9),
    beta: float = stored(0.999),
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Any, ...]:
    g_regularized = norm_coefficient * x + g
    v_new = alpha * v + (1 - alpha) * g_regularized
    h_new = beta * h + (1 - beta) * g_regularized * g_regularized
    h_sqrt = np.sqrt(h_new) + epsilon
    r_adjusted = r * np.sqrt(1 - beta**t) / (1 - alpha**t) if t > 0 else r
    x_new = x - r_adjusted * v_new / h_sqrt
    return (1 - norm_coefficient_post) * x_new, v_new, h_new


def adagrad_document(
    r: float,
    t: int,
    x: Any,
    g: Any,
    h: Any,
    *,
    decay_factor: float = 0.0,
    epsilon: float = stored(1e-6),
    norm_coefficient: float = 0.0,
) -> tuple[Any, ...]:
    r = r / (1 + t * decay_factor)
    g_regularized = norm_coefficient * x + g
    h_new = h + g_regularized * g_regularized
    return x - r * g_regularized / (np.sqrt(h_new) + epsilon), h_new


def momentum_document(
    r: float, t: int, x: Any, g: Any, v: Any, *, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Any, ...]:
    g_regularized = norm_coefficient * x + g
    v_new = alpha * v + (beta if t > 0 else 1) * g_regularized
    direction = g_regularized + alpha * v_new if mode == "nesterov" else v_new
    return x - r * direction, v_new


MOMENTUM = {"alpha": 0.9, "beta": 0.3, "norm_coefficient": 0.01}
OPTIMIZERS = {
    "Adam": Optimizer(adam_document, 2, {}),
    "Adam with everything": Optimizer(
        adam_document,
        2,
        {"alpha": 0.8, "beta": 0.95, "epsilon": 1e-3, "norm_coefficient": 0.1, "norm_coefficient_post": 0.05},
    ),
    "Adagrad": Optimizer(adagrad_document, 1, {}),
    "Adagrad with everything": Optimizer(
        adagrad_document, 1, {"decay_factor": 0.1, "epsilon": 1e-3, "norm_coefficient": 0.1}
    ),
    "Momentum": Optimizer(momentum_document, 1, {**MOMENTUM, "mode": "standard"}),
    "Momentum nesterov": Optimizer(momentum_document, 1, {**MOMENTUM, "mode": "nesterov"}),
}
SHAPES = ((2, 3), (), (1,), (4,))


def random_groups(optimizer: Optimizer, shapes: tuple[tuple[int, ...], ...], dtype: Any) -> list[Arrays]:
    """For each of x, g and the states, one tensor a shape; states are not negative."""
    generator = np.random.default_rng(7)
    groups = [[generator.normal(size=shape) for shape in shapes] for _ in range(2)]
    groups += [[generator.uniform(0.1, 1, size=shape) for shape in shapes] for _ in range(optimizer.states)]
    return [tuple(np.asarray(tensor).astype(dtype) for tensor in group) for group in groups]


def run_optimizer(name: str, r: Any, t: int, groups: list[Arrays], **attributes: Any) -> list[Any]:
    """The outputs, cut into groups again."""
    count = len(groups[0])
    inputs = [r, np.asarray(t, np.int64), *(tensor for group in groups for tensor in group)]
    outputs = run_node(
        name.split()[0], inputs, opset=1, domain=TRAINING, outputs=count * (len(groups) - 1), **attributes
    )
    return [outputs[i : i + count] for i in range(0, len(outputs), count)]


@pytest.mark.spec("O-01")
@pytest.mark.parametrize("t", [0, 3])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_follow_their_documents_for_any_number_of_tensors(name: str, count: int, t: int, x64: None) -> None:
    optimizer = OPTIMIZERS[name]
    groups = random_groups(optimizer, SHAPES[:count], np.float64)
    found = run_optimizer(name, np.asarray(0.1), t, groups, **optimizer.attributes)
    for i in range(count):
        expected = optimizer.document(0.1, t, *(group[i] for group in groups), **optimizer.attributes)
        for group, value in zip(found, expected, strict=True):
            # attributes are float32 numbers in a file, but run_node hands them over as they are
            np.testing.assert_allclose(group[i], value, rtol=2e-7)
            assert group[i].shape == np.shape(value)


@pytest.mark.spec("O-01")
def test_epsilon_of_adam_is_zero_unless_it_is_given() -> None:
    tiny = vector(1e-9)
    groups = [(vector(1),), (tiny,), (vector(0),), (vector(0),)]
    (x,), *_ = run_optimizer("Adam", np.float32(0.1), 1, groups)
    np.testing.assert_allclose(x, [0.9], rtol=1e-6)


@pytest.mark.spec("O-01")
@pytest.mark.parametrize(("t", "step"), [(0, 0.1 / np.sqrt(1e-3)), (1, 1.0)])
def test_adam_corrects_bias_from_the_first_counted_update_on(t: int, step: float) -> None:
    groups = [(vector(0),), (vector(1),), (vector(0),), (vector(0),)]
    (x,), *_ = run_optimizer("Adam", np.float32(1), t, groups)
    np.testing.assert_allclose(x, [-step], rtol=1e-5)


@pytest.mark.spec("O-01")
def test_bias_correction_keeps_the_digits_of_float32() -> None:
    groups = [(vector(0),), (vector(1),)] + [(vector(0),)] * 2
    (x,), *_ = run_optimizer("Adam", np.float32(1), 2, groups, alpha=0.9, beta=0.99999)
    expected, *_ = adam_document(1, 2, 0.0, 1.0, 0.0, 0.0, alpha=0.9, beta=0.99999)
    np.testing.assert_allclose(x, [expected], rtol=3e-7)


@pytest.mark.spec("O-02")
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_outputs_of_optimizers_have_the_types_of_their_inputs(name: str, dtype: Any, x64: None) -> None:
    groups = random_groups(OPTIMIZERS[name], SHAPES[:2], dtype)
    found = run_optimizer(name, np.float32(0.1), 3, groups, **OPTIMIZERS[name].attributes)
    assert {tensor.dtype for group in found for tensor in group} == {np.dtype(dtype)}


@pytest.mark.spec("O-02")
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_small_types_are_computed_in_float32(name: str, dtype: Any) -> None:
    groups = random_groups(OPTIMIZERS[name], SHAPES, dtype)
    wide = [tuple(tensor.astype(np.float32) for tensor in group) for group in groups]
    found = run_optimizer(name, np.float32(0.1), 3, groups, **OPTIMIZERS[name].attributes)
    expected = run_optimizer(name, np.float32(0.1), 3, wide, **OPTIMIZERS[name].attributes)
    for group, group_expected in zip(found, expected, strict=True):
        for tensor, value in zip(group, group_expected, strict=True):
            np.testing.assert_array_equal(tensor, value.astype(dtype))


@pytest.mark.spec("O-01")
def test_tensors_of_one_node_may_have_different_types(x64: None) -> None:
    groups = [(vector(1, 1), np.ones(3, np.float64))] * 3
    found = run_optimizer("Adagrad", np.float64(0.1), 1, groups)
    assert [[tensor.dtype.name for tensor in group] for group in found] == [["float32", "float64"]] * 2


@pytest.mark.spec("O-01")
@pytest.mark.parametrize(
    ("name", "attributes", "twin"),
    [
        ("Adam", {"epsilon": 1e-8}, optax.adam(0.1, eps=1e-8)),
        ("Adagrad", {"epsilon": 0.0}, optax.adagrad(0.1, initial_accumulator_value=0.0, eps=0.0)),
        (
            "Momentum",
            {"alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.0, "mode": "standard"},
            optax.sgd(0.1, momentum=0.9),
        ),
        (
            "Momentum",
            {"alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.0, "mode": "nesterov"},
            optax.sgd(0.1, momentum=0.9, nesterov=True),
        ),
    ],
    ids=["Adam", "Adagrad", "Momentum", "Momentum nesterov"],
)
def test_optimizers_counted_from_one_follow_optax(
    name: str, attributes: dict[str, Any], twin: optax.GradientTransformation, x64: None
) -> None:
    def gradient(x: Any) -> Any:
        return 2 * x - jnp.asarray([1.0, -1.0, 3.0], jnp.float64)

    ours: Any = jnp.asarray([0.3, 2.0, -1.0], jnp.float64)
    theirs: Any = ours
    states: list[Any] = [np.zeros(3)] * OPTIMIZERS[name].states
    memory = twin.init(theirs)
    for step in range(20):
        groups = [(tensor,) for tensor in (ours, gradient(ours), *states)]
        (ours,), *new_states = run_optimizer(name, np.float64(0.1), step + 1, groups, **attributes)
        states = [state for (state,) in new_states]
        with jax.numpy_dtype_promotion("standard"):  # optax mixes types
            updates, memory = twin.update(gradient(theirs), memory, theirs)
        theirs = optax.apply_updates(theirs, updates)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.spec("O-01")
def test_inputs_that_form_no_groups_are_refused() -> None:
    with pytest.raises(OperatorError, match="4 inputs for each tensor"):
        run_node("Adam", [np.float32(0.1), np.int64(0), *[vector(1, 1)] * 5], opset=1, domain=TRAINING, outputs=3)


@pytest.mark.spec("O-01")
def test_an_unknown_mode_of_momentum_is_refused() -> None:
    with pytest.raises(OperatorError, match="'standard' or 'nesterov'"):
        run_optimizer("Momentum", np.float32(0.1), 0, [(vector(1, 1),)] * 3, **{**MOMENTUM, "mode": "other"})


def test_an_update_at_zero_has_a_finite_derivative_by_the_learning_rate() -> None:
    def updated(r: jax.Array) -> jax.Array:
        groups = [(vector(1, 1),)] * 4
        (x,), *_ = run_optimizer("Adam", r, 0, groups)
        return jnp.sum(x)

    np.testing.assert_allclose(jax.grad(updated)(jnp.float32(0.1)), -2.0, rtol=1e-6)
