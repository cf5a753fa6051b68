"""Optimizers of optax: what `init` and `update` do is written into the file, whatever they are made of.

JAX is imported when there is such an optimizer, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxtrain.authoring.builder import GraphBuilder
from onnxtrain.authoring.names import Names
from onnxtrain.authoring.optimizers.rule import Parameter
from onnxtrain.authoring.protos import needed_nodes
from onnxtrain.authoring.state import State
from onnxtrain.authoring.value_types import Value
from onnxtrain.errors import UnsupportedError

_LABEL = "optax"


def is_transformation(optimizer: object) -> bool:
    """Whether this is a `GradientTransformation` of optax, or looks like one: it has an `init` and an `update`."""
    return hasattr(optimizer, "init") and hasattr(optimizer, "update")


@dataclass(frozen=True)
class OptaxTransformation:
    """Any `optax.GradientTransformation`: chains, schedules, masks and all.

    It sees the weights as a dict from their names to arrays: masks and labels go by these names. The leaves of its
    state become state variables, named after their path, such as `optax/0/mu/W1`. A transformation that takes more
    arguments is given the loss as `value`.

    Attributes:
      transformation: as optax makes it.
    """

    transformation: Any

    def write(self, builder: GraphBuilder, parameters: Sequence[Parameter], state: State) -> list[str]:
        """Adds the nodes of one step."""
        import jax
        import optax

        from onnxtrain.authoring.jax_functions import write_function

        transformation = optax.with_extra_args_support(self.transformation)
        weights = {one.name: Value(one.value, one.element_type, one.dims) for one in parameters}
        gradients = {one.name: Value(one.gradient, one.element_type, one.dims) for one in parameters}
        memory = _Memory(transformation, weights, {one.name: one.stored for one in parameters})
        variables = memory.declare(builder, state)

        def update(gradients: Any, leaves: Any, weights: Any, loss: Any) -> Any:
            changes, after = _update(transformation, gradients, memory.restore(leaves), weights, loss)
            return jax.tree.map(lambda old, by: (old + by).astype(old.dtype), weights, changes), memory.leaves(after)

        moved, after = write_function(builder, update, gradients, variables, weights, state.loss, label=_LABEL)
        for variable, value in zip(variables, after, strict=True):
            _check(variable, value)
            state.assign(variable.name, builder.add("Identity", (value.name,), f"{variable.name}/updated"))
        return [builder.add("Identity", (moved[name].name,), f"{name}/updated") for name in weights]


def _update(transformation: Any, gradients: Any, memory: Any, weights: Any, loss: Any) -> Any:
    try:
        return transformation.update(gradients, memory, weights, value=loss)
    except TypeError as error:  # what a function says that lacks an argument
        raise UnsupportedError(
            "The optax transformation does not take what a step gives it: gradients, its state, weights and the loss "
            f"as `value`. {error}. A line search, for one, computes the loss several times, which no step does."
        ) from error


def _check(variable: Value, value: Value) -> None:
    if (variable.element_type, variable.dims) != (value.element_type, value.dims):
        raise UnsupportedError(
            f"The state {variable.name!r} of the optax transformation is {variable.dtype}{list(variable.dims)} at "
            f"first and {value.dtype}{list(value.dims)} after an update. Its init must return what its update returns."
        )


class _Memory:
    """The state of a transformation, leaf by leaf, with random keys as their words."""

    def __init__(self, transformation: Any, weights: Mapping[str, Value], stored: Mapping[str, np.ndarray]):
        import jax

        from onnxtrain.authoring.jax_functions import types_for

        self._transformation, self._weights, self._stored = transformation, weights, stored
        with types_for(weights.values()):
            arrays = {name: jax.numpy.asarray(stored[name], value.dtype) for name, value in weights.items()}
            found = transformation.init(arrays)
            after = jax.eval_shape(lambda: _update(transformation, arrays, found, arrays, 0.0)[1])
        self._leaves, self._structure = jax.tree.flatten(found)
        self._are_keys = [_is_key(leaf) for leaf in self._leaves]
        self._paths = [
            jax.tree_util.keystr(path, simple=True, separator="/")
            for path, _ in jax.tree_util.tree_flatten_with_path(found)[0]
        ]
        # a count may start as a Python number, and a float32 become a float64 with the first update
        kinds = zip(jax.tree.leaves(after), self._are_keys, strict=True)
        dtypes = [None if is_key else leaf.dtype for leaf, is_key in kinds]
        self._values = [np.asarray(leaf, dtype) for leaf, dtype in zip(self.leaves(found), dtypes, strict=True)]

    def leaves(self, memory: Any) -> list[Any]:
        """The leaves of the state."""
        import jax

        return [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in jax.tree.leaves(memory)]

    def restore(self, leaves: Sequence[Any]) -> Any:
        """The state with these leaves."""
        import jax

        restored = [
            jax.random.wrap_key_data(leaf) if is_key else leaf
            for leaf, is_key in zip(leaves, self._are_keys, strict=True)
        ]
        return jax.tree.unflatten(self._structure, restored)

    def declare(self, builder: GraphBuilder, state: State) -> list[Value]:
        """Makes the leaves state variables."""
        start = _Start(self._init, self._weights, self._stored, builder.opset)
        return [
            self._declare(state, f"{_LABEL}/{path}", value, start, index)
            for index, (path, value) in enumerate(zip(self._paths, self._values, strict=True))
        ]

    def _init(self, weights: Any) -> list[Any]:
        leaves = self.leaves(self._transformation.init(weights))
        return [leaf.astype(value.dtype) for leaf, value in zip(leaves, self._values, strict=True)]

    def _declare(self, state: State, name: str, value: np.ndarray, start: _Start, index: int) -> Value:
        element_type = helper.np_dtype_to_tensor_dtype(value.dtype)
        first = value.flat[0] if value.size else None
        if not start.depends(index) and first is not None and (value == first).all():
            variable = state.variable(name, value.shape, element_type, first.item())
        else:
            variable = state.derived(name, value, element_type, start.derivation(index, value))
        return Value(variable, element_type, value.shape)


class _Start:
    """How the initial state follows from the weights, for an initialization that gives these new values."""

    def __init__(
        self,
        init: Callable[..., Any],
        weights: Mapping[str, Value],
        stored: Mapping[str, np.ndarray],
        opset: int,
    ):
        self._init, self._weights, self._stored = init, weights, stored
        self._written: dict[int, list[Value]] = {}
        scratch = GraphBuilder(Names(onnx.ModelProto()), opset)
        leaves = self._write(scratch, {name: scratch.names.fresh(name) for name in weights})
        self._sources = [needed_nodes(scratch.nodes, [leaf.name])[1] & weights.keys() for leaf in leaves]

    def depends(self, index: int) -> bool:
        """Whether a leaf starts with something that the weights decide."""
        return bool(self._sources[index])

    def derivation(self, index: int, value: np.ndarray) -> Callable[[GraphBuilder, Mapping[str, str]], str | None]:
        """What adds the nodes of the initial value of a leaf."""

        def derive(builder: GraphBuilder, drawn: Mapping[str, str]) -> str | None:
            if not self._sources[index]:
                constant = builder.initializer(_LABEL, value, helper.np_dtype_to_tensor_dtype(value.dtype))
                return builder.add("Identity", (constant,), f"{_LABEL}/initial")
            if drawn.keys().isdisjoint(self._sources[index]):
                return None
            if id(builder) not in self._written:
                self._written[id(builder)] = self._write(builder, self._names(builder, drawn))
            leaf = self._written[id(builder)][index].name
            return builder.add("Identity", (leaf,), f"{_LABEL}/initial")

        return derive

    def _write(self, builder: GraphBuilder, names: Mapping[str, str]) -> list[Value]:
        from onnxtrain.authoring.jax_functions import write_function

        given = {name: Value(names[name], one.element_type, one.dims) for name, one in self._weights.items()}
        return write_function(builder, self._init, given, label=f"{_LABEL}/init")

    def _names(self, builder: GraphBuilder, drawn: Mapping[str, str]) -> dict[str, str]:
        """The weights in an initialization graph; those that keep their values have the ones they have now."""
        return {
            name: builder.cast(drawn[name], one.element_type, f"{name}/exact")
            if name in drawn
            else builder.initializer(name, self._stored[name], one.element_type)
            for name, one in self._weights.items()
        }


def _is_key(leaf: Any) -> bool:
    import jax

    return jax.numpy.issubdtype(jax.numpy.result_type(leaf), jax.dtypes.prng_key)
