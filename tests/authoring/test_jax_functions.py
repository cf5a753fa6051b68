"""JAX functions written as ONNX compute in onnxruntime what they compute in JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import optax
import pytest
from jax import lax
from onnx import helper
from onnxruntime import InferenceSession

import onnxtrain as ot
from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.jax_functions import Value, write_function
from onnxtrain.authoring.names import Names
from onnxtrain.authoring.protos import Dimensions
from onnxtrain.errors import UnsupportedError
from tests.authoring.inference_models import mlp

GENERATOR = np.random.default_rng(0)
MATRIX = GENERATOR.normal(size=(3, 4)).astype(np.float32)
CUBE = GENERATOR.normal(size=(2, 3, 4)).astype(np.float32)
CORNERS = np.array([-3, -1.5, -0.5, -1e-4, 0, 1e-7, 0.5, 2.5, 7], np.float32)
INSIDE = np.array([-0.9, -0.5, -1e-4, 0, 1e-6, 0.25, 0.9999], np.float32)
POSITIVE = np.array([1e-3, 0.5, 1, 3, 100], np.float32)
COUNTS = np.array([-7, -1, 0, 2, 9], np.int32)
WORDS = np.array([0, 1, 77, 2**31, 2**32 - 1], np.uint32)
FLAGS = np.array([True, False, True])


def model_of(
    function: Callable[..., Any], arrays: Sequence[np.ndarray], opset: int = 21, dims: Sequence[Dimensions] = ()
) -> onnx.ModelProto:
    """A model that does what the function does."""
    builder = GraphBuilder(Names(onnx.ModelProto()), opset)
    shapes = dims or [array.shape for array in arrays]
    inputs = [
        Value(builder.names.fresh(f"x{index}"), helper.np_dtype_to_tensor_dtype(array.dtype), shape)
        for index, (array, shape) in enumerate(zip(arrays, shapes, strict=True))
    ]
    outputs = jax.tree.leaves(write_function(builder, function, *inputs, label="f"))
    graph = helper.make_graph(
        builder.nodes, "function", [*map(declared, inputs)], [*map(declared, outputs)], builder.initializers
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(model, strict_mode=True), full_check=True)
    return model


def declared(value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, value.element_type, value.dims)


def run(model: onnx.ModelProto, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in model.graph.input]
    return [np.asarray(value) for value in session.run(None, dict(zip(names, map(np.asarray, arrays), strict=True)))]


def assert_same(
    function: Callable[..., Any], arrays: Sequence[np.ndarray], opset: int = 21, rtol: float = 2e-6
) -> None:
    found = run(model_of(function, arrays, opset), arrays)
    with jax.enable_x64(any(array.dtype.itemsize == 8 for array in arrays)):
        expected = [np.asarray(value) for value in jax.tree.leaves(jax.jit(function)(*arrays))]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-7 if one.dtype.kind == "f" else 0)


@dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    arrays: Sequence[np.ndarray] = field(default_factory=lambda: [MATRIX])


def loop(x: Any) -> Any:
    return lax.while_loop(lambda state: state[0] < 5, lambda state: (state[0] + 1, state[1] * 1.5), (0, x))[1]


def running(x: Any) -> Any:
    def step(total: Any, row: Any) -> Any:
        return total + row, total * row

    return lax.scan(step, jnp.zeros(4), x), lax.scan(step, jnp.ones(4), x, reverse=True)


def branches(x: Any) -> Any:
    def choose(index: Any) -> Any:
        return lax.switch(index, [lambda x: x, lambda x: x + 1, lambda x: x * x], x)

    return lax.cond(x[0, 0] > 0, lambda x: x * 2, lambda x: -x, x), choose(0), choose(1), choose(x.shape[0] - 1)


CASES = {
    "arithmetic": Case(lambda x: (x + 2) * x - x / 3 + x % 2 + x**3 + abs(x) ** 2.5),
    "exponentials": Case(lambda x: [jnp.exp(x), jnp.exp2(x), jnp.expm1(x), jnp.tanh(x), jax.nn.sigmoid(x)], [CORNERS]),
    "logarithms": Case(lambda x: [jnp.log(x), jnp.log1p(x), jnp.sqrt(x), lax.rsqrt(x), jnp.cbrt(x)], [POSITIVE]),
    "inverse functions": Case(
        lambda x: [jnp.log1p(x), jnp.arctanh(x), jnp.arcsin(x), jnp.arctan2(x, 0.5 - x), lax.erf_inv(x)], [INSIDE]
    ),
    "angles": Case(lambda x: [jnp.sin(x), jnp.cos(x), jnp.tan(x), jnp.sinh(x), lax.erf(x), jnp.arctan(x)], [CORNERS]),
    "rounding": Case(lambda x: [jnp.floor(x), jnp.ceil(x), jnp.round(x), lax.round(x), jnp.sign(x)], [CORNERS]),
    "comparisons": Case(lambda x: [x < 0, x <= 0, x > 0, x >= 0, x == 0, x != 0, jnp.isfinite(x / x)], [CORNERS]),
    "integers": Case(lambda x: [x // 2, x % 3, lax.rem(x, 4), lax.div(x, 2), x * x, jnp.maximum(x, 1), -x], [COUNTS]),
    "bits": Case(lambda x: [x & 5, x | 9, x ^ 3, ~x, x << 3, x >> 2], [WORDS]),
    "bools": Case(lambda x: [x & ~x, x | True, x ^ x, jnp.any(x), jnp.all(x), jnp.sum(x), jnp.cumsum(x)], [FLAGS]),
    "types": Case(lambda x: [x.astype(int), x.astype(bool), x.astype(jnp.float16), lax.reduce_precision(x, 8, 7)]),
    "selection": Case(
        lambda x: [jnp.where(x > 0, x, 0), jnp.clip(x, -1, 0.5), jnp.select([x > 1, x > 0], [x, x * 2], 3)]
    ),
    "reductions": Case(
        lambda x: [x.sum(), x.max(1), x.min((0, 2)), x.prod(0), x.mean(1), x.var(), x.argmax(1)], [CUBE]
    ),
    "sorting": Case(lambda x: [jnp.sort(x), jnp.argsort(x, axis=0), lax.top_k(x, 2), jnp.cumsum(x, 1), jnp.median(x)]),
    "running reductions": Case(
        lambda x: [jnp.cumprod(x, 0), lax.cummax(x, 1), lax.cummin(x, 1, reverse=True), lax.cumlogsumexp(x, 1)]
    ),
    "shapes": Case(
        lambda x: [
            x.T,
            x.reshape(4, 3),
            x[None],
            x[::-1],
            x[1:, ::2],
            jnp.tile(x, 2),
            jnp.split(x, 2, 1),
            jnp.pad(x, 1),
        ]
    ),
    "joining": Case(
        lambda x: [jnp.pad(x, 1), jnp.concatenate([x, x * 2], 1), jnp.stack([x, x]), jnp.eye(3), jnp.arange(3.0)]
    ),
    "matrices": Case(lambda x: [x @ x.swapaxes(1, 2), jnp.einsum("bij,bkj->ik", x, x), jnp.vdot(x, x)], [CUBE]),
    "outer products": Case(lambda x: [jnp.outer(x, x), jnp.tensordot(x, x, 0), jnp.einsum("ij,i->j", x, x[:, 0])]),
    "loops": Case(loop),
    "scans": Case(running),
    "branches": Case(branches),
    "gathers": Case(
        lambda x, i: [x[i], x[:, i], jnp.take(x, i, 1, mode="clip"), jnp.take_along_axis(x, i[:, None], 1), x[i, i]],
        [MATRIX, np.array([2, 0, -1], np.int32)],
    ),
    "filled gathers": Case(lambda x, i: jnp.take(x, i, 0, mode="fill"), [MATRIX, np.array([1, 5], np.int32)]),
    "scatters": Case(
        lambda x, i: [x.at[i].set(1), x.at[i, 1].add(2), x.at[:, i].mul(3), x.at[i].max(0), x.at[1, 2].set(5)],
        [MATRIX, np.array([2, 7, 2], np.int32)],
    ),
    "moving slices": Case(
        lambda x, i: [
            lax.dynamic_slice(x, (i, 1), (2, 2)),
            lax.dynamic_update_slice(x, jnp.ones((2, 2)), (i, i)),
            lax.dynamic_index_in_dim(x, i),
        ],
        [MATRIX, np.array(2, np.int32)],
    ),
    "random numbers": Case(
        lambda words: [
            jax.random.normal(jax.random.wrap_key_data(words), (4,)),
            jax.random.uniform(jax.random.fold_in(jax.random.split(jax.random.wrap_key_data(words))[1], 3), (3,)),
            jax.random.key_data(jax.random.key(7)),
        ],
        [np.array([3, 4], np.uint32)],
    ),
    "custom derivatives": Case(lambda x: [jax.nn.relu(x), jax.nn.softplus(x), jax.nn.log_softmax(x), jax.nn.gelu(x)]),
    "derivatives": Case(jax.grad(lambda x: jnp.sum(jnp.log1p(jnp.exp(x)) * x[0]))),
    "checkpoints": Case(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))),
}


@pytest.mark.parametrize("name", CASES)
def test_a_function_computes_in_onnxruntime_what_it_computes_in_jax(name: str) -> None:
    case = CASES[name]
    assert_same(case.function, case.arrays)


@pytest.mark.parametrize("name", ["arithmetic", "exponentials", "reductions", "branches", "matrices"])
@pytest.mark.parametrize("opset", [12, 13, 17, 18, 23])
def test_a_function_is_written_for_the_opset_of_the_model(name: str, opset: int) -> None:
    case = CASES[name]
    assert_same(case.function, case.arrays, opset)


@pytest.mark.parametrize("name", ["arithmetic", "exponentials", "logarithms", "reductions", "matrices", "scans"])
def test_a_function_of_float64_is_exact(name: str) -> None:
    case = CASES[name]
    assert_same(case.function, [array.astype(np.float64) for array in case.arrays], rtol=1e-13)


def test_sizes_may_be_known_only_when_the_graph_runs() -> None:
    def function(x: Any, labels: Any) -> Any:
        scores = jax.nn.log_softmax(x.reshape(x.shape[0] * 2, 3))
        picked = jnp.take_along_axis(scores[: labels.shape[0]], labels[:, None], 1)
        return -picked.mean(), jnp.ones((x.shape[0], 2)) / x.shape[0], x[::-1], jnp.arange(x.shape[0])

    model = model_of(function, [CUBE[:, :2, :3], COUNTS[:2]], dims=[("batch", 2, 3), ("batch",)])
    for size in (1, 2, 5):
        x = np.random.default_rng(size).normal(size=(size, 2, 3)).astype(np.float32)
        labels = np.arange(size, dtype=np.int32) % 3
        for one, other in zip(run(model, [x, labels]), jax.tree.leaves(function(x, labels)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


def test_values_come_back_in_the_structure_that_the_function_returns() -> None:
    builder = GraphBuilder(Names(onnx.ModelProto()), 17)
    found = write_function(builder, lambda pair: {"sum": pair[0] + pair[1]}, (value("a"), value("b")), label="f")
    assert found == {"sum": Value("f/add", onnx.TensorProto.FLOAT, (2,))}


def value(name: str) -> Value:
    return Value(name, onnx.TensorProto.FLOAT, (2,))


def test_what_no_output_depends_on_is_not_written() -> None:
    builder = GraphBuilder(Names(onnx.ModelProto()), 17)
    write_function(builder, lambda x: (jnp.sin(x) * 3, x + 1)[1], value("x"), label="f")
    assert [node.op_type for node in builder.nodes] == ["Add"]
    assert len(builder.initializers) == 1


@pytest.mark.parametrize(
    ("function", "opset", "words"),
    [
        (lambda x: jnp.linalg.svd(jnp.outer(x, x))[1], 17, "primitive 'svd'"),
        (lambda x: jnp.where(x > 0, x, 0), 8, "operator Where, which opset 8 does not have"),
        (lambda x: x.at[0].add(1), 15, "ScatterElements with axis, reduction, which opset 15 does not have"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(function: Callable[..., Any], opset: int, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        write_function(GraphBuilder(Names(onnx.ModelProto()), opset), function, value("x"), label="f")


def test_the_ctc_loss_of_optax_is_written() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(2, 6, 5)).astype(np.float32)
    labels = np.array([[1, 2, 0], [3, 3, 4]], np.int32)
    padding = np.array([[0, 0, 1], [0, 0, 0]], np.float32)
    function = lambda logits, labels, padding: optax.ctc_loss(logits, jnp.zeros((2, 6)), labels, padding)  # noqa: E731
    assert_same(function, [logits, labels, padding], rtol=1e-5)


def weighted_error(scores: Any, labels: Any) -> Any:
    """The weight of each example is a constant of the gradient."""
    weight = lax.stop_gradient(jax.nn.softmax(scores).max(1, keepdims=True))
    return jnp.mean(weight * (scores - labels) ** 2) * lax.stop_gradient(scores.sum())


def test_a_gradient_that_is_stopped_is_cut_by_bits() -> None:
    model = ot.make_trainable(mlp(opset=26), loss=weighted_error, optimizer="sgd", learning_rate=1.0)
    session = ot.TrainingSession(model)
    x, labels = MATRIX, np.eye(3, dtype=np.float32)
    names = ("W1", "b1", "W2", "b2")
    before = {name: np.asarray(session.variables[name]).copy() for name in names}

    def loss(weights: Any) -> Any:
        hidden = jax.nn.relu(x @ weights["W1"] + weights["b1"])
        return weighted_error(hidden @ weights["W2"].T + weights["b2"], labels)

    with jax.numpy_dtype_promotion("standard"):
        slopes = jax.grad(loss)(before)
    session.step({"x": x, "labels": labels})
    for name in names:
        np.testing.assert_allclose(session.variables[name], before[name] - slopes[name], rtol=1e-4, atol=1e-5)


def test_a_gradient_that_is_stopped_is_refused_where_there_are_no_bits() -> None:
    def write(function: Callable[..., Any]) -> None:
        builder = GraphBuilder(Names(onnx.ModelProto()), 17)
        write_function(builder, function, value("x"), label="f", differentiated=True)

    write(lambda x: jax.nn.log_softmax(x) + jax.nn.logsumexp(x))
    with pytest.raises(UnsupportedError, match="BitCast, which opset 17 does not have"):
        write(lambda x: x * lax.stop_gradient(x))
