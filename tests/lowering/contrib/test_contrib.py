"""Operators that ONNX does not define, against onnxruntime, whose they are: outputs, signatures and gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

import onnxtrain as ot
from onnxtrain.errors import UnsupportedError
from onnxtrain.graph.model import Graph, Node
from onnxtrain.lowering import registry
from onnxtrain.lowering.context import Context
from onnxtrain.lowering.interpreter import run_graph
from onnxtrain.lowering.registry import Kind, Rule
from tests.lowering.contrib.cases import CASES
from tests.lowering.elsewhere import Case, assert_equal_to_onnxruntime
from tests.lowering.one_node import run_node

MICROSOFT = [rule for rule in registry.all_rules() if rule.domain == "com.microsoft"]
SCHEMAS = {schema.name: schema for schema in get_all_operator_schema() if schema.domain == "com.microsoft"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_outputs_are_those_of_onnxruntime(case: Case) -> None:
    assert_equal_to_onnxruntime(case)


@pytest.mark.parametrize("rule", MICROSOFT, ids=lambda rule: rule.op_type)
def test_inputs_and_attributes_with_their_defaults_are_those_of_onnxruntime(rule: Rule) -> None:
    declared = SCHEMAS[rule.op_type]
    for position, formal in enumerate(declared.inputs[: len(rule.schema.inputs)]):
        own = rule.schema.inputs[position]
        assert (own.optional, own.variadic) == ("Optional" in str(formal.option), "Variadic" in str(formal.option))
    for parameter in (p for p in rule.parameters if not p.positional and p.kind not in registry.INJECTED):
        attribute = declared.attributes[parameter.name]
        assert attribute.required == (parameter.default is registry.NO_DEFAULT)
        proto = onnx.AttributeProto.FromString(attribute._default_value)
        if proto.type:
            value = onnx.helper.get_attribute_value(proto)
            stated = value.decode() if isinstance(value, bytes) else value
            assert parameter.default == (stated if isinstance(stated, str) else pytest.approx(stated))
    assert rule.ignores - registry.MEANINGLESS <= set(declared.attributes)


def test_every_rule_is_compared_with_onnxruntime() -> None:
    assert {rule.op_type for rule in MICROSOFT} - {case.op_type for case in CASES} == set()


def test_an_attribute_that_the_rule_does_not_know_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="'beta' of this operator"):
        run_node("QuickGelu", [np.ones(2, np.float32)], opset=1, domain="com.microsoft", beta=1.0)


def test_the_annotation_of_a_rule_says_which_inputs_may_be_absent() -> None:
    rule = registry.find("com.microsoft", "EmbedLayerNormalization", 1)
    assert rule is not None
    assert [p.name for p in rule.parameters if p.positional and p.default is None] == [
        "segment_ids",
        "segment_embedding",
        "mask",
        "position_ids",
    ]
    assert rule.kind_at(1) is Kind.ARRAY


def attention(*inputs: Any, **attributes: Any) -> Any:
    return run_node("MultiHeadAttention", inputs, opset=1, domain="com.microsoft", num_heads=4, **attributes)[0]


def test_packed_heads_are_those_that_stand_apart() -> None:
    """onnxruntime packs heads on a GPU only, so there is no other side to compare with on a CPU."""
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 5, 4, 6)).astype(np.float32)
    apart = attention(*(x.reshape(2, 5, 24) for x in (q, k, v)))
    np.testing.assert_allclose(attention(np.stack([q, k, v], 3)), apart, rtol=1e-5)
    np.testing.assert_allclose(attention(q.reshape(2, 5, 24), np.stack([k, v], 3)), apart, rtol=1e-5)


def test_what_attention_cannot_do_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="must be absent"):
        attention(np.ones((1, 2, 4, 3, 2), np.float32), *[None] * 8, np.ones((1, 1, 2), np.int32))


def test_gradient_passes_through_onnxruntimes_quantization_and_back() -> None:
    there = Node("QuantizeLinear", "com.microsoft", "there", ("x", "scale", "zero_point"), ("q",), {})
    back = Node("DequantizeLinear", "com.microsoft", "back", ("q", "scale", "zero_point"), ("y",), {})
    graph = Graph("test", (), (), (there, back))
    fixed = {"scale": jnp.float32(0.5), "zero_point": jnp.int8(0)}

    def there_and_back(x: Any) -> Any:
        return run_graph(graph, {"x": x, **fixed}, ["y"], Context({}, {"com.microsoft": 1}))["y"].sum()

    gradient = jax.grad(there_and_back)(jnp.array([-99.0, 0.3, 7.7, 99.0]))
    np.testing.assert_array_equal(gradient, [0, 1, 1, 0])


def test_gradients_of_a_product_that_is_quantized_dynamically_are_those_of_floats() -> None:
    random = np.random.default_rng(0)
    a, scales, bias = (random.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (5,), (5,)))
    b = random.integers(0, 256, (4, 5), np.uint8)

    def quantized(a: Any, scales: Any, bias: Any) -> Any:
        inputs = [a, b, scales, np.uint8(120), bias]
        return run_node("DynamicQuantizeMatMul", inputs, opset=1, domain="com.microsoft")[0]

    def floats(a: Any, scales: Any, bias: Any) -> Any:
        return a @ ((b.astype(np.float32) - 120) * scales) + bias

    expected, pullback = jax.vjp(floats, a, scales, bias)
    found, found_pullback = jax.vjp(quantized, a, scales, bias)
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=5)
    for one, other in zip(found_pullback(expected), pullback(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)


def test_an_absent_zero_point_is_zero() -> None:
    """onnxruntime's kernels take none for 0, but its type inference refuses such a node."""
    values, one, zero = np.array([3, 200], np.uint8), np.float32(1), np.uint8(0)
    (y,) = run_node("QLinearAdd", [values, one, None, values, one, None, one], opset=1, domain="com.microsoft")
    (same,) = run_node("QLinearAdd", [values, one, zero, values, one, zero, one, zero], opset=1, domain="com.microsoft")
    np.testing.assert_array_equal(y, [6, 255])
    np.testing.assert_array_equal(same, y)


def test_gradients_of_an_lstm_with_quantized_weights_are_those_of_lstm() -> None:
    random = np.random.default_rng(0)
    x, bias = (random.standard_normal(shape).astype(np.float32) for shape in ((5, 2, 3), (1, 32)))
    w, r = (random.integers(0, 256, (1, size, 16), np.uint8) for size in (3, 4))
    scale, zero_point = np.array([0.004], np.float32), np.array([128], np.uint8)
    dense = [((weights.astype(np.float32) - 128) * scale).swapaxes(1, 2) for weights in (w, r)]

    def quantized(x: Any, bias: Any) -> Any:
        inputs = [x, w, r, bias, *[None] * 4, scale, zero_point, scale, zero_point]
        return run_node("DynamicQuantizeLSTM", inputs, opset=1, domain="com.microsoft", hidden_size=4)[0]

    def floats(x: Any, bias: Any) -> Any:
        return run_node("LSTM", [x, *dense, bias], opset=17, hidden_size=4)[0]

    expected, pullback = jax.vjp(floats, x, bias)
    found, found_pullback = jax.vjp(quantized, x, bias)
    np.testing.assert_allclose(found, expected, atol=0.01)
    for one, other in zip(found_pullback(expected), pullback(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=0.02)


def test_a_model_that_an_optimizer_has_fused_is_trained() -> None:
    """B10 of the cases: SimplifiedLayerNormalization in ONNX's own domain, beside nodes of com.microsoft."""
    nodes = [
        helper.make_node("FusedMatMul", ["x", "W"], ["h"], domain="com.microsoft", alpha=0.5),
        helper.make_node("SimplifiedLayerNormalization", ["h", "scale"], ["y"]),
    ]
    random = np.random.default_rng(0)
    weights = {"W": random.standard_normal((3, 4)), "scale": np.ones(4)}
    graph = helper.make_graph(
        nodes,
        "fused",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    trainable = ot.make_trainable(model, loss="mean_squared_error", optimizer="sgd", learning_rate=0.5)
    assert ot.validate(trainable) == []
    session = ot.TrainingSession(trainable)
    x, target = random.standard_normal((8, 3)).astype(np.float32), random.random((8, 4)).astype(np.float32)
    losses = [float(session.step({"x": x, "labels": target})["loss"]) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
