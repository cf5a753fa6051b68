"""Arithmetic on values, written as it is read: each operation adds its node."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from onnxtrain.authoring.builder import GraphBuilder


@dataclass(frozen=True)
class Expression:
    """A value of a graph under construction, with the operators of Python for those of ONNX.

    Shapes broadcast. A float64 beside another type takes that type: coefficients are exact until they meet a tensor.

    Attributes:
      builder: writes the nodes.
      value: its name.
      element_type: its float type.
      label: what the names of the nodes start with.
    """

    builder: GraphBuilder
    value: str
    element_type: int
    label: str

    def __add__(self, other: Expression | float) -> Expression:
        return self._apply("Add", self, other)

    def __sub__(self, other: Expression | float) -> Expression:
        return self._apply("Sub", self, other)

    def __rsub__(self, other: float) -> Expression:
        return self._apply("Sub", other, self)

    def __mul__(self, other: Expression | float) -> Expression:
        return self._apply("Mul", self, other)

    def __truediv__(self, other: Expression | float) -> Expression:
        return self._apply("Div", self, other)

    def __rtruediv__(self, other: float) -> Expression:
        return self._apply("Div", other, self)

    def __pow__(self, other: Expression | float) -> Expression:
        return self._apply("Pow", self, other)

    def __rpow__(self, other: float) -> Expression:
        return self._apply("Pow", other, self)

    __radd__ = __add__
    __rmul__ = __mul__

    def at_most(self, other: Expression | float) -> Expression:
        """The smaller of the two."""
        return self._apply("Min", self, other)

    def at_least(self, other: Expression | float) -> Expression:
        """The larger of the two."""
        return self._apply("Max", self, other)

    def cosine(self) -> Expression:
        """The cosine of an angle in radians."""
        return self._apply("Cos", self)

    def root(self) -> Expression:
        """The square root."""
        return self._apply("Sqrt", self)

    def sign(self) -> Expression:
        """-1, 0 or 1."""
        return self._apply("Sign", self)

    def mean(self) -> Expression:
        """The mean of all elements, a scalar."""
        return self._named(self.builder.mean(self.value, f"{self.label}/mean"))

    def norm(self) -> Expression:
        """The length, a scalar."""
        return self._named(self.builder.add("ReduceL2", (self.value,), f"{self.label}/norm", keepdims=0))

    def is_above(self, limit: float) -> Expression:
        """1 where this is greater than `limit`, else 0."""
        return self._mask("Greater", limit)

    def floor(self) -> Expression:
        """The next integer below."""
        return self._apply("Floor", self)

    def before(self, limit: float, then: Expression, otherwise: Expression) -> Expression:
        """`then` where this is less than `limit`, else `otherwise`; both are computed and finite."""
        mask = self._mask("Less", limit)  # in arithmetic, because Where is younger than opset 9
        return mask * then + (1.0 - mask) * otherwise

    def _mask(self, op_type: str, limit: float) -> Expression:
        builder, label = self.builder, f"{self.label}/{op_type.lower()}"
        holds = builder.add(op_type, (self.value, self._operand(limit, self.element_type)), label)
        return self._named(builder.cast(holds, self.element_type, f"{self.label}/mask"))

    def _apply(self, op_type: str, *operands: Expression | float) -> Expression:
        types = {operand.element_type for operand in operands if isinstance(operand, Expression)}
        element_type = next(iter(types - {TensorProto.DOUBLE}), TensorProto.DOUBLE)
        names = [self._operand(operand, element_type) for operand in operands]
        value = self.builder.add(op_type, names, f"{self.label}/{op_type.lower()}")
        return Expression(self.builder, value, element_type, self.label)

    def _operand(self, operand: Expression | float, element_type: int) -> str:
        if not isinstance(operand, Expression):
            return self.builder.initializer(f"{self.label}/constant", operand, element_type)
        if operand.element_type != element_type:
            return self.builder.cast(operand.value, element_type, f"{self.label}/cast")
        return operand.value

    def _named(self, value: str) -> Expression:
        return Expression(self.builder, value, self.element_type, self.label)
