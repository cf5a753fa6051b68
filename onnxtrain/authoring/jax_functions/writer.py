"""The writer of jaxprs: it goes through the equations in order and lets the rule of each primitive add its nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax import dtypes, random
from jax.extend.core import ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, Var
from onnx import TensorProto, helper

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.jax_functions.sizes import Size, Symbols
from onnxtrain.errors import UnsupportedError


@dataclass(frozen=True)
class TensorType:
    """The element type and shape of a value: a NumPy dtype, and sizes that are numbers or expressions of symbols."""

    dtype: np.dtype[Any]
    shape: tuple[Size, ...]

    @property
    def element_type(self) -> int:
        """The element type, as a `TensorProto.DataType`."""
        return helper.np_dtype_to_tensor_dtype(self.dtype)


@dataclass(frozen=True)
class Equation:
    """One equation of a jaxpr as its rule sees it: the primitive, its parameters, and the types around it."""

    primitive: str
    params: Mapping[str, Any]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]

    @property
    def output(self) -> TensorType:
        """The type of the only output."""
        (output,) = self.outputs
        return output


# What is as large as a maximum of the same values, as one subtracts it for the sake of rounding alone.
_LIKE_MAXIMA = ("broadcast_in_dim", "convert_element_type", "max", "reshape", "select_n", "squeeze", "stop_gradient")

Rule = Callable[..., str | Sequence[str]]
RULES: dict[str, Rule] = {}


def rule(*primitives: str) -> Callable[[Rule], Rule]:
    """Makes a function the rule of some primitives.

    It is given the writer, the equation and the names of the inputs, and returns the names of the outputs.
    """

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(primitives, function))
        return function

    return register


def type_of(aval: Any) -> TensorType:
    """The type of an abstract value; a random key is written as its words."""
    if jnp.issubdtype(aval.dtype, dtypes.prng_key):
        words = random.key_data(random.key(0)).shape
        return TensorType(np.dtype(np.uint32), (*aval.shape, *words))
    return TensorType(np.dtype(aval.dtype), tuple(aval.shape))


class Writer:
    """Adds the operations of jaxprs to a graph.

    Attributes:
      builder: takes the nodes.
      label: what the names of all values start with.
      symbols: the sizes that are known when the graph runs.
      differentiated: whether a Gradient goes through what is written.
      maxima: the values that are a maximum over axes, or go back to one.
    """

    def __init__(self, builder: GraphBuilder, label: str, symbols: Symbols, *, differentiated: bool = False):
        self.builder, self.label, self.symbols = builder, label, symbols
        self.differentiated = differentiated
        self.maxima: set[str] = set()
        self._constants: dict[tuple[int, tuple[int, ...], bytes], str] = {}

    def nested(self) -> Writer:
        """A writer for a subgraph, which sees all values of this one."""
        inner = Writer(self.builder.nested(), self.label, self.symbols.nested(), differentiated=self.differentiated)
        inner._constants, inner.maxima = self._constants, self.maxima
        return inner

    def write(self, jaxpr: Jaxpr, constants: Sequence[Any], inputs: Sequence[str]) -> list[str]:
        """Adds the nodes of a jaxpr; takes the names of its inputs and returns those of its outputs."""
        known: dict[Var, str] = dict(zip(jaxpr.invars, inputs, strict=True))
        for variable, constant in zip(jaxpr.constvars, constants, strict=True):
            known[variable] = self.constant(np.asarray(constant))
        for equation in _needed(jaxpr):
            found = self._write_equation(equation, [self._read(known, value) for value in equation.invars])
            known.update(zip(equation.outvars, found, strict=True))
        return [self._read(known, value) for value in jaxpr.outvars]

    def inline(self, closed: ClosedJaxpr, inputs: Sequence[str]) -> list[str]:
        """Adds the nodes of a jaxpr that has its constants with it."""
        return self.write(closed.jaxpr, closed.consts, inputs)

    def trace(self, function: Callable[..., Any], types: Sequence[TensorType], *inputs: str) -> list[str]:
        """Adds the nodes of a function in which a rule says in JAX what a primitive is."""
        specs = [jax.ShapeDtypeStruct(kind.shape, kind.dtype) for kind in types]
        return self.inline(jax.make_jaxpr(function)(*specs), inputs)

    def constant(self, value: Any, dtype: Any = None) -> str:
        """Adds an initializer, of the dtype of the value or another one; equal ones are one."""
        array = np.asarray(value, dtype)
        element_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        key = (element_type, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.builder.initializer(f"{self.label}/constant", array, element_type)
        return self._constants[key]

    def integers(self, values: int | Sequence[int]) -> str:
        """Adds an initializer of int64: a shape, axes, an index."""
        return self.constant(values, np.int64)

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node of ai.onnx with one output.

        Raises:
          UnsupportedError: the opset does not have this operator.
        """
        return self.ops(op_type, inputs, 1, **attributes)[0]

    def ops(self, op_type: str, inputs: Sequence[str], count: int, **attributes: Any) -> tuple[str, ...]:
        """Adds a node of ai.onnx with so many outputs."""
        opset = self.builder.opset
        known = onnx.defs.get_schema(op_type, opset).attributes if has_operator(op_type, opset) else None
        if known is None or not attributes.keys() <= known.keys():
            what = f"{op_type} with {', '.join(attributes)}" if known is not None else op_type
            raise UnsupportedError(
                f"A JAX function needs the operator {what}, which opset {opset} does not have. "
                "Convert the model to a newer opset first (onnx.version_converter)."
            )
        outputs = [f"{self.label}/{op_type.lower()}"] * count
        return self.builder.add_node(op_type, inputs, outputs, **attributes)

    def takes(self, op_type: str, dtype: Any) -> bool:
        """Whether an operator of this opset takes a first input of this type."""
        return takes(op_type, self.builder.opset, np.dtype(dtype))

    def cast(self, value: str, dtype: Any) -> str:
        """Adds a Cast to a NumPy dtype."""
        return self.op("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def typed(self, op_type: str, dtype: Any, *inputs: str, result: Any = None, **attributes: Any) -> str:
        """Adds a node whose inputs have this dtype, in float64 where the operator does not take that type.

        Args:
          op_type: the operator.
          dtype: that of the inputs.
          inputs: their names.
          result: the dtype of the output; by default that of the inputs.
          attributes: those of the node.
        """
        if self.takes(op_type, dtype):
            return self.op(op_type, *inputs, **attributes)
        wide = np.int32 if dtype == np.bool_ else np.float64
        value = self.op(op_type, *(self.cast(name, wide) for name in inputs), **attributes)
        return value if result == np.bool_ else self.cast(value, dtype)

    def shape(self, sizes: Sequence[Size]) -> str:
        """A shape as a vector of int64; it is computed where it depends on symbols."""
        if all(isinstance(size, int | np.integer) for size in sizes):
            return self.integers([int(size) for size in sizes])
        parts = [self.op("Reshape", self.size(size), self.integers([1])) for size in sizes]
        return self.op("Concat", *parts, axis=0)

    def size(self, size: Size) -> str:
        """A size as an int64 scalar."""
        return self.symbols.write(self, size)

    def reshape(self, value: str, sizes: Sequence[Size]) -> str:
        """Adds a Reshape."""
        return self.op("Reshape", value, self.shape(sizes))

    def expand(self, value: str, sizes: Sequence[Size]) -> str:
        """Adds an Expand."""
        return self.op("Expand", value, self.shape(sizes))

    def transpose(self, value: str, order: Sequence[int]) -> str:
        """Adds a Transpose, unless the axes are in this order."""
        return value if list(order) == sorted(order) else self.op("Transpose", value, perm=list(order))

    def iota(self, size: Size) -> str:
        """The numbers 0 to `size` - 1, as int64."""
        if isinstance(size, int | np.integer):
            return self.integers(list(range(int(size))))
        return self.op("Range", self.integers(0), self.size(size), self.integers(1))

    def declaration(self, name: str, kind: TensorType) -> onnx.ValueInfoProto:
        """The declaration of an input or output of a subgraph."""
        sizes = [int(size) if isinstance(size, int | np.integer) else None for size in kind.shape]
        return helper.make_tensor_value_info(name, kind.element_type, sizes)

    def _read(self, known: Mapping[Var, str], value: Var | Literal) -> str:
        if isinstance(value, Literal):
            return self.constant(value.val, type_of(value.aval).dtype)
        return known[value]

    def _write_equation(self, equation: JaxprEqn, inputs: Sequence[str]) -> Sequence[str]:
        primitive, params = equation.primitive.name, equation.params
        if primitive not in RULES:
            raise UnsupportedError(
                f"A JAX function uses the primitive {primitive!r}, which is not written in ONNX. "
                "Write that part of the function with other operations of jax.numpy."
            )
        given = tuple(type_of(value.aval) for value in equation.invars)
        wanted = tuple(type_of(value.aval) for value in equation.outvars)
        outputs = RULES[primitive](self, Equation(primitive, params, given, wanted), *inputs)
        outputs = (outputs,) if isinstance(outputs, str) else outputs
        if primitive == "reduce_max" or (primitive in _LIKE_MAXIMA and not self.maxima.isdisjoint(inputs)):
            self.maxima.update(outputs)
        return outputs


def _needed(jaxpr: Jaxpr) -> list[JaxprEqn]:
    """The equations that the outputs depend on."""
    wanted = {value for value in jaxpr.outvars if isinstance(value, Var)}
    found = []
    for equation in reversed(jaxpr.eqns):
        if any(value in wanted for value in equation.outvars if not isinstance(value, DropVar)):
            found.append(equation)
            wanted |= {value for value in equation.invars if isinstance(value, Var)}
    return found[::-1]


def has_operator(op_type: str, opset: int) -> bool:
    """Whether an opset of ai.onnx has an operator."""
    return onnx.defs.has(op_type, max_inclusive_version=opset)


def takes(op_type: str, opset: int, dtype: np.dtype[Any]) -> bool:
    """Whether an operator of this opset takes a first input of this type; True where the opset has no such operator."""
    if not has_operator(op_type, opset):
        return True
    schema = onnx.defs.get_schema(op_type, opset)
    name = TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(dtype)).lower()
    return f"tensor({name})" in schema.inputs[0].types


def count_of(sizes: Sequence[Size]) -> Size:
    """How many elements a shape has."""
    return math.prod(sizes)
