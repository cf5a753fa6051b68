"""How rules of operators outside ONNX's domains are registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from onnxtrain.lowering.registry import op

_Function = TypeVar("_Function", bound=Callable[..., Any])

# QONNX's own, and those that Brevitas and FINN wrote before it.
_QONNX = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")


def microsoft(
    op_type: str,
    *,
    folds: bool = False,
    host: bool = False,
    carries: bool = False,
    ignores: frozenset[str] | set[str] = frozenset(),
) -> Callable[[_Function], _Function]:
    """Registers the decorated function as the rule of an operator of onnxruntime; see `registry.op`."""
    return op(
        op_type,
        domain="com.microsoft",
        folds=folds,
        host=host,
        carries=carries,
        ignores=ignores,
        states_schema=True,
    )


def qonnx(op_type: str) -> Callable[[_Function], _Function]:
    """Registers the decorated function as the rule of an operator of QONNX."""

    def register(function: _Function) -> _Function:
        for domain in _QONNX:
            op(op_type, domain=domain, states_schema=True)(function)
        return function

    return register
