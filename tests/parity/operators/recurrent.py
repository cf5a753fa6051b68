"""Recurrent networks, whose gates PyTorch has in another order, with sequences of several lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.parity.operators.records import TorchCase, whole

HIDDEN = 3
SIZES = (4, 2, 5)  # steps, sequences, features
LENGTHS = whole(4, 2).astype("int32")

# Where ONNX has the gates of PyTorch's: input, forget, cell, output there and i, o, f, c here; r, z, n and z, r, h.
GATES = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1)}


def reordered(op_type: str, rows: Any) -> Any:
    """The gates in PyTorch's order, along the first axis."""
    blocks = rows.split(HIDDEN)
    return torch.cat([blocks[gate] for gate in GATES[op_type]])


def parameters(op_type: str, w: Any, r: Any, b: Any, direction: int) -> dict[str, Any]:
    """The parameters of one direction by PyTorch's names."""
    suffix = "_l0_reverse" if direction else "_l0"
    of_input, of_state = b[direction].chunk(2)
    found = {"weight_ih": w[direction], "weight_hh": r[direction], "bias_ih": of_input, "bias_hh": of_state}
    return {key + suffix: reordered(op_type, value) for key, value in found.items()}


def run(op_type: str, both_ways: bool, x: Any, w: Any, r: Any, b: Any, lengths: Any, *states: Any) -> Sequence[Any]:
    """PyTorch's module on the node's inputs, and its outputs in the node's form."""
    module = getattr(torch.nn, op_type)(x.shape[2], HIDDEN, bidirectional=both_ways).double()
    weights: dict[str, Any] = {}
    for direction in range(1 + both_ways):
        weights |= parameters(op_type, w, r, b, direction)
    fed = x if lengths is None else pack_padded_sequence(x, lengths)
    state = states if len(states) > 1 else states[0] if states else None
    y, last = torch.func.functional_call(module, weights, (fed, state))
    y = y if lengths is None else pad_packed_sequence(y, total_length=len(x))[0]
    y = y.reshape(*x.shape[:2], -1, HIDDEN).transpose(1, 2)
    return [y, *(last if op_type == "LSTM" else [last])]


def network(op_type: str, *, both_ways: bool = False, lengths: Any = None, states: bool = False) -> TorchCase:
    """A node with all its weights."""
    ways, gates = 1 + both_ways, len(GATES[op_type])
    weights = [(ways, gates * HIDDEN, SIZES[2]), (ways, gates * HIDDEN, HIDDEN), (ways, 2 * gates * HIDDEN)]
    count = 2 if op_type == "LSTM" else 1
    return TorchCase(
        op_type,
        lambda *inputs: run(op_type, both_ways, *inputs),
        [SIZES, *weights, lengths, *([(ways, SIZES[1], HIDDEN)] * count if states else [])],
        {
            "hidden_size": HIDDEN,
            "direction": "bidirectional" if both_ways else "forward",
            **({"linear_before_reset": 1} if op_type == "GRU" else {}),
        },
        outputs=1 + count,
    )


NETWORKS = [
    network(op_type, **form)
    for op_type in GATES
    for form in ({}, {"states": True}, {"both_ways": True, "lengths": LENGTHS, "states": True})
]


def as_pairs(x: Any) -> Any:
    return torch.view_as_real(x)


TRANSFORMS = [
    TorchCase("DFT", lambda x, *_: as_pairs(torch.fft.fft(x[..., 0], dim=1)), [(2, 6, 1), None, whole(1)[0]]),
    TorchCase(
        "DFT",
        lambda x, *_: as_pairs(torch.fft.fft(torch.view_as_complex(x), n=5, dim=1)),
        [(2, 6, 2), whole(5)[0], whole(1)[0]],
    ),
    TorchCase(
        "DFT", lambda x, *_: as_pairs(torch.fft.rfft(x[..., 0], dim=1)), [(2, 6, 1), None, whole(1)[0]], {"onesided": 1}
    ),
    TorchCase(
        "DFT",
        lambda x, *_: as_pairs(torch.fft.ifft(torch.view_as_complex(x), dim=1)),
        [(2, 6, 2), None, whole(1)[0]],
        {"inverse": 1},
    ),
    TorchCase(
        "STFT",
        lambda x, step, window: as_pairs(
            torch.stft(x[..., 0], 4, int(step), window=window, center=False, return_complex=True)
        ).transpose(1, 2),
        [(2, 12, 1), whole(3)[0], (4,)],
    ),
]

CASES = [*NETWORKS, *TRANSFORMS]
