"""Sizes that are known only when a graph runs, such as that of a batch."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onnxtrain.errors import UnsupportedError

if TYPE_CHECKING:
    from onnxtrain.authoring.jax_functions.writer import Writer

Size = Any  # an int, or one of JAX's expressions of symbolic sizes

_OPERATORS = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul"}
_FUNCTIONS = {"max": "Max", "min": "Min"}


class Symbols:
    """Where symbolic sizes come from: for each symbol, an input that has it and the axis."""

    def __init__(self, sources: Mapping[str, tuple[str, int]]):
        self._sources = sources
        self._written: dict[str, str] = {}

    def nested(self) -> Symbols:
        """The same symbols in a subgraph, whose values are not to be seen outside."""
        inner = Symbols(self._sources)
        inner._written = dict(self._written)
        return inner

    def write(self, writer: Writer, size: Size) -> str:
        """Adds the nodes that compute a size, an int64 scalar."""
        text = str(size)  # JAX documents this form: `export.symbolic_shape` reads it
        if text not in self._written:
            self._written[text] = self._expression(writer, ast.parse(text, mode="eval").body)
        return self._written[text]

    def _expression(self, writer: Writer, expression: ast.expr) -> str:
        match expression:
            case ast.Constant(value=int(value)):
                return writer.integers(value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return writer.op("Neg", self._expression(writer, operand))
            case ast.Name(id=symbol):
                name, axis = self._sources[symbol]
                return writer.op("Gather", writer.op("Shape", name), writer.integers(axis), axis=0)
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
                parts = self._expression(writer, left), self._expression(writer, right)
                return writer.op(_OPERATORS[type(operator)], *parts)
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))):
                base = self._expression(writer, left)
                value = base
                for _ in range(power - 1):
                    value = writer.op("Mul", value, base)
                return value
            case ast.Call(func=ast.Name(id=function), args=[left, right]):
                return self._call(writer, function, self._expression(writer, left), self._expression(writer, right))
        raise UnsupportedError(
            f"The size {ast.unparse(expression)!r} of a value in a JAX function is not written in ONNX. "
            "Fix the sizes of the model's inputs, or write the function without it."
        )

    def _call(self, writer: Writer, function: str, left: str, right: str) -> str:
        if function in _FUNCTIONS:
            return writer.op(_FUNCTIONS[function], left, right)
        if function not in ("floordiv", "mod"):
            raise UnsupportedError(f"A size in a JAX function needs {function!r}, which is not written in ONNX.")
        rest = writer.op("Mod", left, right)  # as in Python, with the sign of the divisor
        return rest if function == "mod" else writer.op("Div", writer.op("Sub", left, rest), right)
