"""Attention with masks, scales, grouped heads and caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.parity.operators.records import INFINITY, TorchCase

QUERY, KEY, VALUE = (2, 4, 3, 6), (2, 4, 5, 6), (2, 4, 5, 7)
GROUPED = ((2, 2, 5, 6), (2, 2, 5, 7))
KEPT = np.tri(3, 5, 1, dtype=bool)
HIDDEN = np.where(KEPT, 0.5, -INFINITY)


def attention(q: Any, k: Any, v: Any, mask: Any = None, **options: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, mask, **options)


def capped(q: Any, k: Any, v: Any) -> Any:
    """PyTorch's function has no cap of scores."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return F.softmax(2 * torch.tanh(scores / 2), -1) @ v


def with_past(q: Any, k: Any, v: Any, mask: Any, past_key: Any, past_value: Any) -> tuple[Any, Any, Any]:
    keys, values = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    return attention(q, keys, values, mask), keys, values


def heads(x: Any, count: int = 4) -> Any:
    return x.reshape(*x.shape[:2], count, -1).transpose(1, 2)


def flat(q: Any, k: Any, v: Any) -> Any:
    return attention(heads(q), heads(k), heads(v)).transpose(1, 2).flatten(2)


CASES = [
    TorchCase("Attention", attention, [QUERY, KEY, VALUE]),
    TorchCase("Attention", attention, [QUERY, KEY, VALUE, (3, 5)]),
    TorchCase("Attention", attention, [QUERY, KEY, VALUE, (2, 1, 3, 5)]),
    TorchCase("Attention", attention, [QUERY, KEY, VALUE, KEPT]),
    TorchCase("Attention", attention, [QUERY, KEY, VALUE, KEPT[::-1] & KEPT & (np.arange(3) > 0)[:, None]]),
    TorchCase("Attention", attention, [QUERY, KEY, VALUE, HIDDEN], constants=(3,)),
    TorchCase("Attention", lambda *x: attention(*x, is_causal=True), [KEY, KEY, VALUE], {"is_causal": 1}),
    TorchCase("Attention", lambda *x: attention(*x, scale=0.3), [QUERY, KEY, VALUE], {"scale": 0.3}),
    TorchCase("Attention", lambda *x: attention(*x, enable_gqa=True), [QUERY, *GROUPED]),
    TorchCase("Attention", capped, [QUERY, KEY, VALUE], {"softcap": 2.0}),
    TorchCase("Attention", with_past, [QUERY, KEY, VALUE, None, (2, 4, 2, 6), (2, 4, 2, 7)], outputs=3),
    TorchCase("Attention", flat, [(2, 3, 24), (2, 5, 24), (2, 5, 28)], {"q_num_heads": 4, "kv_num_heads": 4}),
    TorchCase(
        "MultiHeadAttention",
        flat,
        [(2, 3, 24), (2, 5, 24), (2, 5, 24)],
        {"num_heads": 4},
        opset=1,
        domain="com.microsoft",
    ),
]
