"""Operators that move, choose and scatter elements, with repeated and negative indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.parity.operators.records import TorchCase, real, whole

CUBE = (2, 3, 4)


def chosen(*shape: int) -> np.ndarray:
    """A mask."""
    return np.arange(np.prod(shape)).reshape(shape) % 3 == 0


MOVES = [
    TorchCase("Reshape", lambda x, _: x.reshape(4, 6), [CUBE, whole(4, -1)]),
    TorchCase("Flatten", lambda x: x.reshape(6, 4), [CUBE], {"axis": 2}),
    TorchCase("Transpose", lambda x: x.permute(2, 0, 1), [CUBE], {"perm": (2, 0, 1)}),
    TorchCase("Squeeze", lambda x, _: x.squeeze(1), [(2, 1, 3), whole(1)]),
    TorchCase("Unsqueeze", lambda x, _: x.unsqueeze(1), [(2, 3), whole(1)]),
    TorchCase("Expand", lambda x, _: x.expand(2, 3, 4), [(3, 1), whole(2, 3, 4)]),
    TorchCase("Tile", lambda x, _: x.repeat(2, 3), [(2, 3), whole(2, 3)]),
    TorchCase("Concat", lambda *x: torch.cat(x, 1), [(2, 3), (2, 4)], {"axis": 1}),
    TorchCase("Split", lambda x, _: x.split([1, 2], 1), [(2, 3), whole(1, 2)], {"axis": 1}, 2),
    TorchCase("Slice", lambda x, *_: x[:, 1:3].flip(1), [(2, 4), whole(2), whole(0), whole(1), whole(-1)]),
    TorchCase("DepthToSpace", lambda x: F.pixel_shuffle(x, 2), [(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
    TorchCase(
        "SpaceToDepth",
        lambda x: F.pixel_unshuffle(x, 2).reshape(1, 2, 4, 2, 3).transpose(1, 2).reshape(1, 8, 2, 3),
        [(1, 2, 4, 6)],
        {"blocksize": 2},
    ),
    TorchCase("Trilu", lambda x, _: x.triu(1), [(3, 4), np.array(1)]),
    TorchCase("Trilu", lambda x: x.tril(), [CUBE], {"upper": 0}),
    TorchCase(
        "ReverseSequence",
        lambda x, _: torch.stack([torch.cat([x[:2, 0].flip(0), x[2:, 0]]), x[:, 1].flip(0)], 1),
        [(3, 2, 4), whole(2, 3)],
    ),
    TorchCase("CenterCropPad", lambda x, _: F.pad(x[1:3], (1, 1)), [(4, 3), whole(2, 5)]),
    TorchCase(
        "Col2Im",
        lambda x, *_: F.fold(x, (4, 5), (2, 3), padding=1, stride=2),
        [(1, 12, 9), whole(4, 5), whole(2, 3)],
        {"pads": (1, 1, 1, 1), "strides": (2, 2)},
    ),
]

PADDING = whole(0, 0, 2, 1, 0, 0, 1, 3)
PADS = [
    TorchCase("Pad", lambda x, _: F.pad(x, (1, 3, 2, 1)), [(1, 2, 4, 5), PADDING]),
    TorchCase(
        "Pad", lambda x, _, value: F.pad(x - value, (1, 3, 2, 1)) + value, [(1, 2, 4, 5), PADDING, real(3).reshape(())]
    ),
    *(
        TorchCase("Pad", lambda x, _, name=name: F.pad(x, (1, 3, 2, 1), name), [(1, 2, 4, 5), PADDING], {"mode": mode})
        for mode, name in {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}.items()
    ),
]

TIED = real([3, 1, 2], [0, 0, 0])
SMALL = real([3, 0, 5], [0, 1, -1])
COLUMNS = whole([0, 0, 2], [1, -1, 1])
FROM_START = torch.tensor([[0, 0, 2], [1, 2, 1]])
PAIRS = whole([0, 1], [0, 1], [1, -1])
PLACES = (torch.tensor([0, 0, 1]), torch.tensor([1, 1, 2]))

INDICES = [
    TorchCase("Gather", lambda x, i: x[:, i % 4], [CUBE[1:], whole([0, -1], [0, 2])], {"axis": 1}),
    TorchCase("Gather", lambda x, i: x[i], [CUBE, np.array(-1)]),
    TorchCase("GatherElements", lambda x, _: x.gather(1, FROM_START), [TIED, COLUMNS], {"axis": 1}),
    TorchCase("GatherND", lambda x, _: x[PLACES], [(2, 3, 4), PAIRS]),
    TorchCase(
        "GatherND",
        lambda x, i: x.gather(1, i[:, :, None].expand(2, 1, 4)).squeeze(1),
        [(2, 3, 4), whole([2], [0])[:, :, None][:, :, 0]],
        {"batch_dims": 1},
    ),
    TorchCase("Compress", lambda x, c: x[:, c], [(2, 3), np.array([True, False, True])], {"axis": 1}),
    TorchCase("Where", torch.where, [chosen(2, 3), (2, 3), (3,)]),
    TorchCase("TopK", lambda x, _: x.topk(2, 1), [(2, 5), whole(2)], {}, 2),
    TorchCase("TopK", lambda x, _: x.topk(2, 0, largest=False), [(5, 2), whole(2)], {"axis": 0, "largest": 0}, 2),
    TorchCase("OneHot", lambda i, _, v: F.one_hot(i, 4) * (v[1] - v[0]) + v[0], [whole(3, 0), whole(4), (2,)]),
]

REDUCED = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def scattered_pairs(name: str, source: Any, _: Any, updates: Any) -> Any:
    flat = PLACES[0] * source.shape[1] + PLACES[1]
    return source.reshape(-1).scatter_reduce(0, flat, updates, name).reshape(source.shape)


SCATTERS = [
    TorchCase(
        "ScatterElements",
        lambda x, _, u: x.scatter(1, torch.tensor([[1, 0, 2], [2, 0, 1]]), u),
        [
            (2, 3),
            whole([1, 0, 2], [-1, 0, 1]),
            (2, 3),
        ],
        {"axis": 1},
    ),
    TorchCase(
        "ScatterND",
        lambda x, _, u: x.index_put((torch.tensor([2, 0]),), u),
        [
            (3, 4),
            whole([2], [0]),
            (2, 4),
        ],
    ),
    *(
        TorchCase(
            "ScatterElements",
            lambda x, _, u, name=name: x.scatter_reduce(1, FROM_START, u, name),
            [TIED, COLUMNS, SMALL],
            {"axis": 1, "reduction": reduction},
        )
        for reduction, name in REDUCED.items()
    ),
    *(
        TorchCase(
            "ScatterND",
            lambda x, i, u, name=name: scattered_pairs(name, x, i, u),
            [TIED, PAIRS, updates],
            {"reduction": reduction},
        )
        for reduction, name in REDUCED.items()
        for updates in (real(2, 0.5, -1), real(1, 1, 0))
    ),
]

CASES = [*MOVES, *PADS, *INDICES, *SCATTERS]
