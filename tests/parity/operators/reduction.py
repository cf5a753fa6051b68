"""Sums, products, extremes and norms over axes, with ties and zeros, and what builds on them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.parity.operators.records import INFINITY, TorchCase, real, whole

ROWS = real([-1, 2, 2, 0], [0, 0, 0, 0], [3, -3, 1, 3])
FAR = real([-100, 100, 0, 100], [0, 0, 0, 0], [-100, -100, -100, -100])
POSITIVE = real([1, 2, 2, 0.5], [1e-3, 100, 3, 1])
AXIS = whole(1)


def reduced(op_type: str, twin: Any, x: Any, **attributes: Any) -> TorchCase:
    """A reduction of the last axis of two."""
    return TorchCase(op_type, lambda x, _: twin(x), [x, AXIS], attributes)


REDUCTIONS = [
    reduced("ReduceSum", lambda x: x.sum(1), ROWS, keepdims=0),
    reduced("ReduceMean", lambda x: x.mean(1, keepdim=True), ROWS),
    reduced("ReduceProd", lambda x: x.prod(1), ROWS, keepdims=0),
    reduced("ReduceProd", lambda x: x.prod(1), real([0, 2, 3], [0, 0, 3], [1, 2, 3]), keepdims=0),
    reduced("ReduceMax", lambda x: x.amax(1), ROWS, keepdims=0),
    reduced("ReduceMin", lambda x: x.amin(1, keepdim=True), ROWS),
    reduced("ReduceL1", lambda x: torch.linalg.vector_norm(x, 1, 1), ROWS, keepdims=0),
    reduced("ReduceL2", lambda x: torch.linalg.vector_norm(x, 2, 1), ROWS, keepdims=0),
    reduced("ReduceLogSum", lambda x: x.sum(1).log(), POSITIVE, keepdims=0),
    reduced("ReduceLogSumExp", lambda x: x.logsumexp(1), FAR, keepdims=0),
    reduced("ReduceLogSumExp", lambda x: x.logsumexp(1), real([-INFINITY, 0], [0, 1]), keepdims=0),
    reduced("ReduceLogSumExp", lambda x: x.logsumexp(1), real([-INFINITY, -INFINITY]), keepdims=0),
    reduced("ReduceSumSquare", lambda x: x.square().sum(1), ROWS, keepdims=0),
    TorchCase("ReduceSum", lambda x: x.sum(), [(2, 3)], {"keepdims": 0}),
]

SOFTMAXES = [
    TorchCase("Softmax", lambda x: F.softmax(x, -1), [FAR]),
    TorchCase("Softmax", lambda x: F.softmax(x, 0), [FAR], {"axis": 0}),
    TorchCase("Softmax", lambda x: F.softmax(x, -1), [real([0, -INFINITY, 1])]),
    TorchCase("LogSoftmax", lambda x: F.log_softmax(x, -1), [FAR]),
    TorchCase("LogSoftmax", lambda x: F.log_softmax(x, 0), [FAR], {"axis": 0}),
    TorchCase("Softmax", lambda x: F.softmax(x.flatten(1), 1).reshape(x.shape), [(2, 3, 4)], opset=11),
]

CUMULATIVE = [
    TorchCase("CumSum", lambda x, _: x.cumsum(1), [ROWS, AXIS[0]]),
    TorchCase("CumSum", lambda x, _: x.flip(1).cumsum(1).flip(1), [ROWS, AXIS[0]], {"reverse": 1}),
    TorchCase("CumSum", lambda x, _: F.pad(x, (1, 0))[:, :-1].cumsum(1), [ROWS, AXIS[0]], {"exclusive": 1}),
    TorchCase("CumProd", lambda x, _: x.cumprod(1), [ROWS, AXIS[0]]),
    TorchCase("CumProd", lambda x, _: x.cumprod(1), [real([1, 0, 2, 0, 3]), AXIS[0]]),
]

PRODUCTS = [
    TorchCase("MatMul", torch.matmul, [(2, 3, 4), (4, 5)]),
    TorchCase("MatMul", torch.matmul, [(4,), (2, 4, 5)]),
    TorchCase(
        "Gemm",
        lambda a, b, c: 0.5 * a.T @ b.T + 2 * c,
        [(4, 3), (5, 4), (5,)],
        {
            "alpha": 0.5,
            "beta": 2.0,
            "transA": 1,
            "transB": 1,
        },
    ),
    TorchCase("Gemm", lambda a, b: a @ b, [(3, 4), (4, 5)]),
    *(
        TorchCase("Einsum", lambda *x, equation=equation: torch.einsum(equation, *x), shapes, {"equation": equation})
        for equation, shapes in {
            "bij,bjk->bik": [(2, 3, 4), (2, 4, 5)],
            "...ij->...ji": [(2, 3, 4)],
            "ii->i": [(3, 3)],
            "ij,j,k->ik": [(2, 3), (3,), (4,)],
        }.items()
    ),
    TorchCase("Det", torch.det, [(2, 3, 3)]),
    TorchCase("Inverse", torch.linalg.inv, [(2, 3, 3)], opset=1, domain="com.microsoft"),
]

CASES = [*REDUCTIONS, *SOFTMAXES, *CUMULATIVE, *PRODUCTS]
