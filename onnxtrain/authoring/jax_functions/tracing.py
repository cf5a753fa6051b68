"""Traces a function and writes what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
from jax import export

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.jax_functions.sizes import Symbols
from onnxtrain.authoring.jax_functions.writer import Writer, type_of
from onnxtrain.authoring.protos import reads
from onnxtrain.authoring.value_types import Value


def write_function(
    builder: GraphBuilder, function: Callable[..., Any], *arguments: Any, label: str, differentiated: bool = False
) -> Any:
    """Adds the nodes of a JAX function.

    The function is traced for the types of its arguments, with 64-bit types where one of them has such a type, and its
    operations are written one by one. A custom derivative is not kept: ONNX differentiates what is written.

    Args:
      builder: takes the nodes.
      function: what JAX can trace.
      arguments: those of the function, with a `Value` in place of every array.
      label: what the names of all new values start with.
      differentiated: whether a Gradient goes through the nodes, so that `stop_gradient` means something.

    Returns:
      What the function returns, with a `Value` in place of every array.

    Raises:
      UnsupportedError: the function uses a primitive or a size that has no counterpart in ONNX, or the opset is old.
    """
    values, structure = jax.tree.flatten(arguments)
    sources, specs = _specifications(values)
    known = len(builder.initializers)
    with types_for(values):
        traced, result = jax.make_jaxpr(function, return_shape=True)(*jax.tree.unflatten(structure, specs))
        writer = Writer(builder, label, Symbols(sources), differentiated=differentiated)
        names = writer.inline(traced, [value.name for value in values])
    _drop_unread(builder, known, names)
    written = [_value(name, aval) for name, aval in zip(names, traced.out_avals, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(result), written)


@contextmanager
def types_for(values: Iterable[Value]) -> Iterator[None]:
    """The settings of JAX in which functions of these values are traced: 64-bit types where they have them."""
    is_wide = any(value.dtype.itemsize == 8 for value in values)
    with jax.enable_x64(True) if is_wide else nullcontext(), jax.numpy_dtype_promotion("standard"):
        yield


def _specifications(values: Sequence[Value]) -> tuple[Mapping[str, tuple[str, int]], list[jax.ShapeDtypeStruct]]:
    """What stands for the values while tracing, and where its symbolic sizes are found."""
    symbols: dict[str | tuple[str, int], str] = {}
    sources: dict[str, tuple[str, int]] = {}
    for value in values:
        for axis, size in enumerate(value.dims):
            if isinstance(size, int):
                continue
            # an unnamed size is its own; any name of ONNX becomes one that JAX reads
            symbol = symbols.setdefault(size or (value.name, axis), f"size{len(symbols)}")
            sources.setdefault(symbol, (value.name, axis))
    sizes = dict(zip(sources, export.symbolic_shape(", ".join(sources)), strict=True)) if sources else {}
    return sources, [
        jax.ShapeDtypeStruct(
            tuple(
                size if isinstance(size, int) else sizes[symbols[size or (value.name, axis)]]
                for axis, size in enumerate(value.dims)
            ),
            value.dtype,
        )
        for value in values
    ]


def _drop_unread(builder: GraphBuilder, known: int, outputs: Sequence[str]) -> None:
    """Removes those of the new initializers that no rule had a use for."""
    read = {*outputs, *(name for node in builder.nodes for name in reads(node))}
    builder.initializers[known:] = [tensor for tensor in builder.initializers[known:] if tensor.name in read]


def _value(name: str, aval: Any) -> Value:
    kind = type_of(aval)
    return Value(name, kind.element_type, tuple(size if isinstance(size, int) else None for size in kind.shape))
