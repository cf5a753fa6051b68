from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lowering.elsewhere import Case, assert_equal_to_onnxruntime
from tests.lowering.one_node import run_node

IMAGE = (3, 4, 5, 6)
POSITIVE = np.linspace(0.2, 2, 4, dtype=np.float32)
EACH = np.linspace(0.2, 2, 120, dtype=np.float32).reshape(4, 5, 6)

CASES = [
    *(
        Case("BatchNormalization", opset, [IMAGE, (4,), (4,), (4,), POSITIVE], {"epsilon": 1e-3})
        for opset in (7, 9, 14, 15)
    ),
    Case("BatchNormalization", 15, [(3, 4), (4,), (4,), (4,), POSITIVE]),
    Case("BatchNormalization", 7, [IMAGE, (4, 5, 6), (4, 5, 6), (4, 5, 6), EACH], {"spatial": 0}),
    *(
        Case("BatchNormalization", 15, [IMAGE, (4,), (4,), (4,), POSITIVE], {"training_mode": 1, "momentum": m}, 3)
        for m in (0.0, 0.9)
    ),
    *(Case("LayerNormalization", 17, [IMAGE, IMAGE[axis:], IMAGE[axis:]], {"axis": axis}, 3) for axis in (-1, 1, 2)),
    Case("LayerNormalization", 17, [IMAGE, (1,)]),
    Case("InstanceNormalization", 6, [IMAGE, (4,), (4,)]),
    Case("GroupNormalization", 18, [IMAGE, (2,), (2,)], {"num_groups": 2}),
    Case("GroupNormalization", 21, [IMAGE, (4,), (4,)], {"num_groups": 2}),
    *(Case("LpNormalization", 1, [IMAGE], {"p": p, "axis": axis}) for p in (1, 2) for axis in (-1, 1)),
    Case("LRN", 13, [(2, 7, 3, 3)], {"size": 5, "alpha": 0.1, "beta": 0.5, "bias": 2.0}),
    Case("MeanVarianceNormalization", 13, [IMAGE], {"axes": [0, 2, 3]}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_normalization_agrees_with_onnxruntime(case: Case) -> None:
    assert_equal_to_onnxruntime(case)


X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
SCALE, BIAS, MEAN, VARIANCE = (
    np.array(values, np.float32) for values in ([1, 2, 3], [0, -1, 1], [0.5, 0, -0.5], [1, 4, 0.25])
)


def batch_normalization(opset: int, outputs: int, **attributes: Any) -> tuple[Any, ...]:
    return run_node(
        "BatchNormalization", [X, SCALE, BIAS, MEAN, VARIANCE], opset=opset, outputs=outputs, attributes=attributes
    )


def normalized(mean: Any, variance: Any) -> Any:
    centred = (X - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5)
    return centred * SCALE[:, None] + BIAS[:, None]


@pytest.mark.parametrize(
    ("opset", "outputs", "attributes"),
    [(1, 5, {}), (6, 5, {"is_test": 0}), (7, 5, {}), (9, 5, {}), (9, 3, {}), (14, 3, {"training_mode": 1})],
)
def test_batch_normalization_trains_on_the_statistics_of_the_population(
    opset: int, outputs: int, attributes: Any
) -> None:
    y, mean, variance, *saved = batch_normalization(opset, outputs, momentum=0.75, **attributes)
    batch_mean, batch_variance = X.mean((0, 2)), X.var((0, 2))
    np.testing.assert_allclose(y, normalized(batch_mean, batch_variance), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, 0.75 * MEAN + 0.25 * batch_mean, rtol=1e-5)
    np.testing.assert_allclose(variance, 0.75 * VARIANCE + 0.25 * batch_variance, rtol=1e-5)
    for found, expected in zip(saved, (batch_mean, batch_variance), strict=outputs == 5):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("opset", "attributes"), [(1, {"is_test": 1}), (6, {"is_test": 1}), (1, {}), (7, {}), (9, {}), (15, {})]
)
def test_batch_normalization_that_does_not_train_uses_the_given_statistics(opset: int, attributes: Any) -> None:
    (y,) = batch_normalization(opset, 1, **attributes)
    np.testing.assert_allclose(y, normalized(MEAN, VARIANCE), rtol=1e-4, atol=1e-5)


def test_gradients_reach_statistics_that_are_computed() -> None:
    """A scale, bias, mean and variance may come from other nodes; here the last two come from x itself."""
    weights = np.cos(np.arange(X.size, dtype=np.float32)).reshape(X.shape)

    def by_operator(x: Any, scale: Any, bias: Any) -> Any:
        inputs = [x, scale, bias, x.mean((0, 2)), x.var((0, 2))]
        return jnp.vdot(run_node("BatchNormalization", inputs, opset=15)[0], weights)

    def by_formula(x: Any, scale: Any, bias: Any) -> Any:
        mean, variance = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
        y = (x - mean) / jnp.sqrt(variance + 1e-5) * scale[:, None] + bias[:, None]
        return jnp.vdot(y, weights)

    point = (jnp.asarray(X), jnp.asarray(SCALE), jnp.asarray(BIAS))
    for found, expected in zip(
        jax.grad(by_operator, (0, 1, 2))(*point), jax.grad(by_formula, (0, 1, 2))(*point), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 1.0])
def test_the_momentum_of_batch_normalization_does_not_touch_its_output(momentum: float) -> None:
    expected = batch_normalization(15, 3, training_mode=1)[0]
    np.testing.assert_array_equal(batch_normalization(15, 3, training_mode=1, momentum=momentum)[0], expected)


def test_batch_normalization_without_spatial_takes_each_element_for_a_channel() -> None:
    each = np.ones(X.shape[1:], np.float32)
    inputs = [X, each, 0 * each, 0 * each, each]
    y, mean, *_ = run_node("BatchNormalization", inputs, opset=7, outputs=5, spatial=0, momentum=0.0)
    np.testing.assert_allclose(y, (X - X.mean(0)) / np.sqrt(X.var(0) + 1e-5), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, X.mean(0), rtol=1e-5)


def test_batch_normalization_of_one_axis_has_one_channel() -> None:
    one = np.ones(1, np.float32)
    (y,) = run_node("BatchNormalization", [X[0, 0], one, one, 0 * one, one], opset=15)
    np.testing.assert_allclose(y, X[0, 0] + 1, rtol=1e-4)


@pytest.mark.parametrize("training", [0, 1])
def test_batch_normalization_of_rows_normalizes_columns(training: int) -> None:
    x, one = X[:, :, 0], np.ones(3, np.float32)
    outputs = 3 if training else 1
    inputs = [x, one, 0 * one, 0 * one, one]
    y, *_ = run_node("BatchNormalization", inputs, opset=15, outputs=outputs, training_mode=training)
    expected = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) if training else x / np.sqrt(1 + 1e-5)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_statistics_of_half_precision_inputs_do_not_overflow() -> None:
    x = np.full((4, 1, 8), 60000, np.float16)
    x[:2] = 50000
    one = np.ones(1, np.float32)
    inputs = [x, one.astype(np.float16), 0 * one.astype(np.float16), 0 * one, one]
    y, mean, variance = run_node("BatchNormalization", inputs, opset=15, outputs=3, training_mode=1, momentum=0.0)
    assert (y.dtype, mean.dtype) == (np.float16, np.float32)
    np.testing.assert_allclose(mean, [55000], rtol=1e-3)
    np.testing.assert_allclose(variance, [25e6], rtol=1e-2)
    np.testing.assert_allclose(y, np.where(x == 60000, 1, -1), rtol=1e-2)


def test_the_variance_of_values_far_from_zero_keeps_its_digits() -> None:
    x = (10000 + X).astype(np.float32)
    _, _, variance = run_node(
        "BatchNormalization", [x, SCALE, BIAS, MEAN, VARIANCE], opset=15, outputs=3, training_mode=1, momentum=0.0
    )
    np.testing.assert_allclose(variance, x.astype(np.float64).var((0, 2)), rtol=1e-4)


def test_gradient_of_training_batch_normalization_is_that_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the other side of the comparison")
    weights = np.cos(np.arange(X.size, dtype=np.float32)).reshape(X.shape)

    def loss(x: Any, scale: Any, bias: Any) -> Any:
        inputs = [x, scale, bias, MEAN, VARIANCE]
        return (run_node("BatchNormalization", inputs, opset=15, outputs=3, training_mode=1)[0] * weights).sum()

    found = jax.grad(loss, (0, 1, 2))(X, SCALE, BIAS)
    tensors = [torch.tensor(value, requires_grad=True) for value in (X, SCALE, BIAS)]
    y = torch.nn.functional.batch_norm(tensors[0], None, None, tensors[1], tensors[2], training=True)
    (y * torch.tensor(weights)).sum().backward()
    for ours, theirs in zip(found, tensors, strict=True):
        np.testing.assert_allclose(ours, theirs.grad, rtol=1e-4, atol=1e-5)


def test_layer_normalization_gives_its_statistics_in_the_stashed_type() -> None:
    x = np.ones((2, 3), np.float16)
    y, mean, inverse = run_node("LayerNormalization", [x, x[0]], opset=17, outputs=3, stash_type=1)
    assert (y.dtype, mean.dtype, inverse.dtype) == (np.float16, np.float32, np.float32)
    assert mean.shape == inverse.shape == (2, 1)


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization_leaves_zeros_and_has_no_gradient_there(p: int) -> None:
    def normalize(x: Any) -> Any:
        return run_node("LpNormalization", [x], opset=22, p=p)[0]

    x = jnp.zeros((2, 3)).at[1].set(2)
    np.testing.assert_allclose(normalize(x)[0], [0, 0, 0])
    np.testing.assert_allclose(jax.grad(lambda x: normalize(x).sum())(x), np.zeros((2, 3)), atol=1e-6)


@pytest.mark.parametrize(
    ("op_type", "opset", "inputs"),
    [("MeanVarianceNormalization", 13, 0), ("InstanceNormalization", 6, 2), ("LayerNormalization", 17, 2)],
)
def test_what_does_not_vary_has_a_finite_gradient(op_type: str, opset: int, inputs: int) -> None:
    x = jnp.full((2, 2, 2, 2), 3.0)
    more = [jnp.ones(2), jnp.zeros(2)][:inputs]
    gradient = jax.grad(lambda x: run_node(op_type, [x, *more], opset=opset)[0][0].sum())(x)
    assert np.isfinite(gradient).all()
