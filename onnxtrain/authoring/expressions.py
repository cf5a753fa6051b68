"""Arithmetic on scalars, written as it is read: each operation adds its node."""

from __future__ import annotations

from dataclasses import dataclass

from onnxtrain.authoring.builder import GraphBuilder


@dataclass(frozen=True)
class Scalar:
    """A scalar value of a graph under construction, with the operators of Python for those of ONNX.

    Attributes:
      builder: writes the nodes.
      value: its name.
      element_type: a float type, its own and that of all that is computed from it.
      label: what the names of the nodes start with.
    """

    builder: GraphBuilder
    value: str
    element_type: int
    label: str

    def __add__(self, other: Scalar | float) -> Scalar:
        return self._apply("Add", self, other)

    def __sub__(self, other: Scalar | float) -> Scalar:
        return self._apply("Sub", self, other)

    def __rsub__(self, other: float) -> Scalar:
        return self._apply("Sub", other, self)

    def __mul__(self, other: Scalar | float) -> Scalar:
        return self._apply("Mul", self, other)

    def __truediv__(self, other: Scalar | float) -> Scalar:
        return self._apply("Div", self, other)

    def __pow__(self, other: Scalar | float) -> Scalar:
        return self._apply("Pow", self, other)

    def __rpow__(self, other: float) -> Scalar:
        return self._apply("Pow", other, self)

    __radd__ = __add__
    __rmul__ = __mul__

    def at_most(self, other: Scalar | float) -> Scalar:
        """The smaller of the two."""
        return self._apply("Min", self, other)

    def at_least(self, other: Scalar | float) -> Scalar:
        """The larger of the two."""
        return self._apply("Max", self, other)

    def cosine(self) -> Scalar:
        """The cosine of an angle in radians."""
        return self._apply("Cos", self)

    def floor(self) -> Scalar:
        """The next integer below."""
        return self._apply("Floor", self)

    def before(self, limit: float, then: Scalar, otherwise: Scalar) -> Scalar:
        """`then` where this is less than `limit`, else `otherwise`; both are computed and finite."""
        builder = self.builder
        is_less = builder.add("Less", (self.value, self._operand(limit)), f"{self.label}/is_before")
        # in arithmetic, because Where is younger than opset 9
        mask = self._named(builder.cast(is_less, self.element_type, f"{self.label}/mask"))
        return mask * then + (1.0 - mask) * otherwise

    def _apply(self, op_type: str, *operands: Scalar | float) -> Scalar:
        names = [self._operand(operand) for operand in operands]
        return self._named(self.builder.add(op_type, names, f"{self.label}/{op_type.lower()}"))

    def _operand(self, operand: Scalar | float) -> str:
        if isinstance(operand, Scalar):
            return operand.value
        return self.builder.initializer(f"{self.label}/constant", operand, self.element_type)

    def _named(self, value: str) -> Scalar:
        return Scalar(self.builder, value, self.element_type, self.label)
