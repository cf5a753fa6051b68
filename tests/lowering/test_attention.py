from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onnxtrain.errors import OperatorError
from tests.lowering.one_node import run_node

RANDOM = np.random.default_rng(0)
BATCH, HEADS, QUERIES, KEYS, SIZE = 2, 4, 3, 5, 6
Q = RANDOM.standard_normal((BATCH, HEADS, QUERIES, SIZE)).astype(np.float32)
K, V = RANDOM.standard_normal((2, BATCH, HEADS, KEYS, SIZE)).astype(np.float32)


def attention(*inputs: Any, opset: int = 25, outputs: int = 1, **attributes: Any) -> Any:
    found = run_node("Attention", inputs, opset=opset, outputs=outputs, attributes=attributes)
    return found[0] if outputs == 1 else found


@pytest.mark.parametrize("masked", ["nothing", "by truth", "by bias"])
def test_attention_and_its_gradients_are_those_of_pytorch(masked: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the other side of the comparison")
    mask = {"nothing": None, "by truth": RANDOM.random((QUERIES, KEYS)) < 0.7, "by bias": Q[0, 0] @ K[0, 0].T}[masked]

    def loss(q: Any, k: Any, v: Any) -> Any:
        return jnp.square(attention(q, k, v, mask)).sum()

    tensors = [torch.tensor(value, requires_grad=True) for value in (Q, K, V)]
    given = None if mask is None else torch.tensor(mask)
    y = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=given)
    y.square().sum().backward()
    np.testing.assert_allclose(attention(Q, K, V, mask), y.detach(), rtol=1e-4, atol=1e-5)
    for found, tensor in zip(jax.grad(loss, (0, 1, 2))(Q, K, V), tensors, strict=True):
        np.testing.assert_allclose(found, tensor.grad, rtol=1e-3, atol=1e-4)


def test_a_query_without_keys_gives_zeros_and_finite_gradients() -> None:
    mask = np.ones((QUERIES, KEYS), bool)
    mask[1] = False
    y = attention(Q, K, V, mask)
    np.testing.assert_array_equal(y[:, :, 1], np.zeros_like(y[:, :, 1]))
    gradients = jax.grad(lambda *args: attention(*args, mask).sum(), (0, 1, 2))(Q, K, V)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    np.testing.assert_array_equal(gradients[0][:, :, 1], np.zeros((BATCH, HEADS, SIZE)))


def test_groups_of_queries_share_a_head_of_keys() -> None:
    shared = attention(Q, K[:, :2], V[:, :2])
    repeated = attention(Q, np.repeat(K[:, :2], 2, 1), np.repeat(V[:, :2], 2, 1))
    np.testing.assert_allclose(shared, repeated, rtol=1e-5)


def test_packed_heads_are_unpacked() -> None:
    packed = [x.swapaxes(1, 2).reshape(BATCH, x.shape[2], -1) for x in (Q, K, V)]
    y = attention(*packed, q_num_heads=HEADS, kv_num_heads=HEADS)
    np.testing.assert_allclose(y, attention(Q, K, V).swapaxes(1, 2).reshape(y.shape), rtol=1e-5)


def test_attention_step_by_step_with_a_cache_equals_the_whole() -> None:
    q = RANDOM.standard_normal(K.shape).astype(np.float32)
    whole = attention(q, K, V, is_causal=1)
    keys = values = np.zeros((BATCH, HEADS, 0, SIZE), np.float32)
    for start, stop in ((0, 2), (2, 3), (3, KEYS)):
        part = slice(start, stop)
        y, keys, values = attention(
            q[:, :, part], K[:, :, part], V[:, :, part], None, keys, values, outputs=3, is_causal=1
        )
        np.testing.assert_allclose(y, whole[:, :, part], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(keys, K)


def test_padded_keys_count_from_their_end() -> None:
    lengths = np.array([5, 4], np.int32)
    y = attention(Q, K, V, None, None, None, lengths, is_causal=1)
    expected = attention(Q[1:], K[1:, :, :4], V[1:, :, :4], np.tril(np.ones((QUERIES, 4), bool), 1))
    np.testing.assert_allclose(y[1:], expected, rtol=1e-4)


@pytest.mark.parametrize(("left", "right", "causal"), [(1, 0, 0), (1, 2, 0), (-1, 1, 0), (2, -1, 0), (1, 2, 1)])
def test_a_window_limits_how_far_a_query_sees(left: int, right: int, causal: int) -> None:
    distance = np.arange(KEYS) - np.arange(QUERIES)[:, None]
    inside = ((left < 0) | (distance >= -left)) & ((right < 0) | (distance <= right)) & (not causal or distance <= 0)
    y = attention(Q, K, V, left_window_size=left, right_window_size=right, is_causal=causal)
    np.testing.assert_allclose(y, attention(Q, K, V, np.asarray(inside)), rtol=1e-4, atol=1e-6)


def test_the_last_output_shows_the_scores_at_each_stage() -> None:
    mask = np.zeros((QUERIES, KEYS), np.float32)
    mask[:, 0] = -np.inf
    raw, capped, biased, share = (
        np.asarray(attention(Q, K, V, mask, outputs=4, softcap=0.5, qk_matmul_output_mode=mode)[3]) for mode in range(4)
    )
    np.testing.assert_allclose(raw, Q @ K.swapaxes(2, 3) / np.sqrt(SIZE), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(capped, 0.5 * np.tanh(raw / 0.5), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(biased, capped + mask)
    np.testing.assert_allclose(share.sum(-1), np.ones(share.shape[:3]), rtol=1e-5)
    np.testing.assert_array_equal(share[..., 0], np.zeros(share.shape[:3]))


def test_a_short_mask_hides_the_keys_behind_it() -> None:
    short = np.ones((QUERIES, 3), bool)
    np.testing.assert_allclose(attention(Q, K, V, short), attention(Q, K[:, :, :3], V[:, :, :3]), rtol=1e-4)


def test_linear_attention_in_parts_equals_the_whole() -> None:
    shapes = {"query": 8, "key": 4, "value": 6, "decay": 2, "beta": 2}
    q, k, v, decay, beta = (RANDOM.standard_normal((2, 5, size)).astype(np.float32) for size in shapes.values())
    decay, beta, heads = -np.abs(decay), 1 / (1 + np.exp(-beta)), {"q_num_heads": 4, "kv_num_heads": 2}
    whole, last = run_node("LinearAttention", [q, k, v, None, decay, beta], opset=27, outputs=2, attributes=heads)
    state, parts = None, []
    for part in (slice(0, 2), slice(2, 5)):
        inputs = [q[:, part], k[:, part], v[:, part], state, decay[:, part], beta[:, part]]
        y, state = run_node("LinearAttention", inputs, opset=27, outputs=2, attributes=heads)
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state, last, rtol=1e-4, atol=1e-5)


def test_linear_attention_refuses_gates_that_its_rule_does_not_have() -> None:
    q = np.ones((1, 1, 2), np.float32)
    with pytest.raises(OperatorError, match="update_rule 'linear' goes with decay: False, beta: False"):
        run_node(
            "LinearAttention",
            [q, q, q, None, q],
            opset=27,
            outputs=2,
            update_rule="linear",
            q_num_heads=2,
            kv_num_heads=2,
        )


def test_rotating_back_gives_the_input() -> None:
    angles = RANDOM.random((QUERIES, SIZE // 2)).astype(np.float32)
    cos, sin = np.cos(angles)[None], np.sin(angles)[None]
    for interleaved in (0, 1):
        (turned,) = run_node("RotaryEmbedding", [Q[:1], cos, sin], opset=23, interleaved=interleaved)
        (back,) = run_node("RotaryEmbedding", [np.asarray(turned), cos, -sin], opset=23, interleaved=interleaved)
        np.testing.assert_allclose(back, Q[:1], rtol=1e-4, atol=1e-6)
