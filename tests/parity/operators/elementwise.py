"""Operators that work on each element, at their kinks, at zero and far out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.parity.operators.records import INFINITY, TorchCase, real

EVERYWHERE = real(-100, -3, -2.5, -1, -0.5, 0, 0.5, 1, 2, 3, 6, 100)
POSITIVE = real(0, 1e-3, 1, 2, 100)
INSIDE = real(-0.9, -0.5, 0, 0.1, 0.9)
OUTSIDE = real(1.1, 2, 100)
NONZERO = real(-100, -1, 0.5, 2, 100)

# operator, function, point
UNARY: list[tuple[str, Callable[..., Any], Any]] = [
    *((name, getattr(torch, name.lower()), EVERYWHERE) for name in ("Abs", "Ceil", "Floor", "Round", "Sign", "Neg")),
    *(
        (name, getattr(torch, name.lower()), EVERYWHERE)
        for name in ("Exp", "Sin", "Cos", "Tan", "Sinh", "Cosh", "Tanh")
    ),
    *((name, getattr(torch, name.lower()), EVERYWHERE) for name in ("Asinh", "Atan", "Erf", "Sigmoid")),
    *((name, getattr(torch, name.lower()), INSIDE) for name in ("Asin", "Acos", "Atanh")),
    ("Acosh", torch.acosh, OUTSIDE),
    ("Log", torch.log, POSITIVE),
    ("Sqrt", torch.sqrt, POSITIVE),
    ("Reciprocal", torch.reciprocal, NONZERO),
    ("Identity", lambda x: x.clone(), EVERYWHERE),
    ("Softplus", F.softplus, EVERYWHERE),
    ("Softsign", F.softsign, EVERYWHERE),
    ("Relu", F.relu, EVERYWHERE),
    ("HardSwish", F.hardswish, EVERYWHERE),
    ("Mish", F.mish, EVERYWHERE),
    ("Swish", F.silu, EVERYWHERE),
    ("Elu", F.elu, EVERYWHERE),
    ("Celu", F.celu, EVERYWHERE),
    ("Gelu", F.gelu, EVERYWHERE),
]

WITH_ATTRIBUTES = [
    TorchCase("Gelu", lambda x: F.gelu(x, approximate="tanh"), [EVERYWHERE], {"approximate": "tanh"}),
    # PyTorch has this sixth in float32
    TorchCase("HardSigmoid", F.hardsigmoid, [EVERYWHERE], {"alpha": 1 / 6, "beta": 0.5}, rtol=1e-7),
    TorchCase("Selu", F.selu, [EVERYWHERE], {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}),
    TorchCase("ThresholdedRelu", lambda x: F.threshold(x, 2, 0), [EVERYWHERE], {"alpha": 2.0}),
    TorchCase("Elu", lambda x: F.elu(x, 0.5), [EVERYWHERE], {"alpha": 0.5}),
    TorchCase("Celu", lambda x: F.celu(x, 2.0), [EVERYWHERE], {"alpha": 2.0}),
    TorchCase("LeakyRelu", lambda x: F.leaky_relu(x, 0.25), [EVERYWHERE], {"alpha": 0.25}),
    TorchCase("Swish", lambda x: x * torch.sigmoid(2 * x), [EVERYWHERE], {"alpha": 2.0}),
    TorchCase("Shrink", lambda x: F.hardshrink(x, 0.5), [EVERYWHERE], {"lambd": 0.5}),
    TorchCase("Shrink", lambda x: F.softshrink(x, 0.5), [EVERYWHERE], {"lambd": 0.5, "bias": 0.5}),
    TorchCase("Clip", lambda x: torch.clamp(x, -1, 1), [EVERYWHERE], {"min": -1.0, "max": 1.0}, opset=6),
    TorchCase("Cast", lambda x: x.to(torch.float32), [EVERYWHERE], {"to": 1}),
    TorchCase("Cast", lambda x: x.to(torch.float64), [EVERYWHERE], {"to": 11}),
    TorchCase("CastLike", lambda x, like: x.to(like.dtype), [EVERYWHERE, real(0)]),
]

LEFT = real(-2, -1, 0, 0.5, 1, 3)
RIGHT = real(3, -1, 0, 0.5, -0.0, 2)

BINARY = [
    TorchCase("Add", torch.add, [(3, 4), (4,)]),
    TorchCase("Sub", torch.sub, [(3, 4), (3, 1)]),
    TorchCase("Mul", torch.mul, [(1, 4), (3, 1)]),
    TorchCase("Div", torch.div, [LEFT, real(3, -1, 2, 0.5, -4, 2)]),
    TorchCase("Max", torch.maximum, [LEFT, RIGHT]),
    TorchCase("Min", torch.minimum, [LEFT, RIGHT]),
    TorchCase("Max", lambda x: x.clone(), [LEFT]),
    TorchCase("Mean", lambda *x: sum(x) / 3, [(3, 4), (4,), (1,)]),
    TorchCase("Sum", lambda *x: sum(x), [(3, 4), (4,), (1,)]),
    TorchCase("Mod", torch.fmod, [real(-7, -3.5, 3.5, 7), real(2, 2, -2, 3)], {"fmod": 1}),
    TorchCase("Pow", torch.pow, [real(0, 0, 0, 0.5, 2, 100), real(0, 1, 2, 3, 0, 0.5)]),
    TorchCase("Pow", lambda x, _: x**2, [real(-3, 0, 2), [2]]),
    TorchCase("PRelu", F.prelu, [EVERYWHERE, real(0.25)]),
    TorchCase("PRelu", lambda x, slope: F.prelu(x, slope.reshape(-1)), [(2, 3, 4), (3, 1)]),
    TorchCase("Clip", torch.clamp, [EVERYWHERE, real(-1).reshape(()), real(1).reshape(())]),
    TorchCase("Clip", lambda x, low: torch.clamp(x, low), [EVERYWHERE, real(-1).reshape(())]),
    TorchCase("Where", torch.where, [LEFT > 0, LEFT, RIGHT]),
    TorchCase("Where", torch.where, [LEFT > 0, (3, 1), real(-INFINITY)]),
]

CASES = [*(TorchCase(name, twin, [point]) for name, twin, point in UNARY), *WITH_ATTRIBUTES, *BINARY]
