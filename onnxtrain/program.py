"""A training model as pure functions: `initialize`, `step` and `infer` over a `TrainingState`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import onnxtrain.lowering  # noqa: F401  (importing it registers the rules)
from onnxtrain import dtypes
from onnxtrain.errors import ModelError, StateError, ValidationError
from onnxtrain.graph import combine
from onnxtrain.graph.model import Graph, Model
from onnxtrain.graph.order import captured_names
from onnxtrain.graph.read import read_model
from onnxtrain.graph.validate import find_problems
from onnxtrain.inputs import check_inputs, missing_input, unknown_name
from onnxtrain.lowering import static
from onnxtrain.lowering.context import Context
from onnxtrain.lowering.interpreter import missing_values, run_graph
from onnxtrain.state import TrainingState

if TYPE_CHECKING:
    import onnx

__all__ = ["Program", "lower"]

# Larger initializers are arguments of the compiled function instead of constants in it. Integers get more room
# than floats: they are shapes, axes and indices, which rules need while tracing.
STATIC_INTEGERS = 1024
STATIC_FLOATS = 64


def lower(model: str | os.PathLike[str] | onnx.ModelProto | Model, *, straight_through: bool = True) -> Program:
    """Lowers a model to pure functions that JAX can transform.

    Args:
      model: a path, an `onnx.ModelProto` (which stays untouched), or a model that has been read.
      straight_through: what the gradient through a quantization is: as if nothing had been rounded, or exactly zero.

    Raises:
      ValidationError: the training information breaks the specification; the error lists every problem.

    Example::

        program = ot.lower("model.onnx")
        state = program.initialize(jax.random.key(0))
        state, outputs = jax.jit(program.step)(state, {"x": x, "labels": labels})
    """
    return Program(model if isinstance(model, Model) else read_model(model), straight_through)


class Program:
    """The pure functions of one model. They follow JAX's present 64-bit setting and refuse what it cannot hold.

    A fed numpy array is static: it is known while tracing. A JAX array, or any argument of a jitted function, is
    traced. Values that a model needs as shapes or axes must be static.
    """

    def __init__(self, model: Model, straight_through: bool = True):
        problems = find_problems(model) if model.training_info else []
        if problems:
            raise ValidationError(problems)
        self.model = model
        self.functions = model.functions
        self.straight_through = straight_through

    # The three methods of the specification

    def initialize(self, key: jax.Array) -> TrainingState:
        """The state after a reset (T-04): stored values first, then every initialization graph in order.

        Args:
          key: a typed PRNG key, such as `jax.random.key(0)`; random nodes derive theirs from it.
        """
        return self.run_initializations(self.stored_state(key))

    def step(
        self,
        state: TrainingState,
        inputs: Mapping[str, Any],
        algorithm: int | None = None,
        outputs: Sequence[str] | None = None,
        *,
        given: Mapping[str, Any] | None = None,
    ) -> tuple[TrainingState, dict[str, Any]]:
        """One training iteration (T-07): every algorithm in order, or the one with this index.

        Args:
          state: the state to start from; it is not changed.
          inputs: arrays by input name.
          algorithm: an index into `training_info`, or None for all.
          outputs: names of any values of the combined graphs; by default the algorithms' outputs that no binding
            assigns. A value that several algorithms compute is taken from the last.
          given: values of the combined graphs that are known already and are not computed; constants to Gradient.

        Returns:
          The new state, and the outputs by name.
        """
        indices = self._algorithms(algorithm)
        wanted = self.step_outputs(algorithm) if outputs is None else tuple(outputs)
        fed = check_inputs(self.step_inputs(algorithm), inputs)
        self._require_known(wanted, indices)
        found: dict[str, Any] = {}
        variables = state.variables
        for index in indices:
            variables, computed = self._run_algorithm(index, replace(state, variables=variables), fed, wanted, given)
            found.update(computed)
        return replace(state, variables=variables, step=state.step + 1), {name: found[name] for name in wanted}

    def infer(
        self, state: TrainingState, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Runs the inference graph with the current values; nothing changes.

        Args:
          state: the state to read.
          inputs: arrays by input name.
          outputs: names of any values of the inference graph; by default its outputs.
        """
        wanted = self.inference_graph.output_names if outputs is None else tuple(outputs)
        return self.evaluate(state, check_inputs(self.infer_inputs, inputs), wanted)

    def evaluate(
        self,
        state: TrainingState,
        inputs: Mapping[str, Any],
        names: Sequence[str],
        algorithm: int | None = None,
        *,
        given: Mapping[str, Any] | None = None,
        on_host: bool = False,
    ) -> dict[str, Any]:
        """Any values of the inference graph, or of one algorithm's combined graph; nothing is assigned.

        Args:
          state: the state to read.
          inputs: arrays by input name.
          names: the values to compute.
          algorithm: an index into `training_info`, or None for the inference graph.
          given: values of the graph that are known already and are not computed; constants to Gradient.
          on_host: run node by node, each on numpy arrays, so that every value is known when a rule asks for it.
        """
        if algorithm is None:
            graph, accepted = self.inference_graph, self.infer_inputs
            context = self._context(state, "inference/", state.step)
        else:
            graph, accepted = self.combined_graphs[algorithm], self._algorithm_inputs[algorithm]
            context = self._context(state, "", algorithm, state.step)
        given = given or {}
        fed = {name: value for name, value in inputs.items() if name in accepted}
        known = {**self._initializers(graph, state), **fed, **given}
        return self._run(graph, known, names, replace(context, given=frozenset(given), on_host=on_host))

    # The two halves of initialize, which a session compiles apart

    def stored_state(self, key: jax.Array, step: int = 0) -> TrainingState:
        """The state before anything has run (T-03): every state variable holds its stored value."""
        variables = {name: _stored(self.model, name) for name in self.model.state_variables}
        return TrainingState(
            variables={name: jnp.array(static.representable(value)) for name, value in variables.items()},
            constants={name: jnp.array(static.representable(value)) for name, value in self._large_constants.items()},
            key=key,
            step=jnp.asarray(step, jnp.int32),
        )

    def run_initializations(self, state: TrainingState) -> TrainingState:
        """Runs the initialization graphs in order and assigns their outputs; a later one sees the earlier ones'."""
        self._require_training()
        for index, info in enumerate(self.model.training_info):
            if not info.initialization_binding:
                continue
            graph = combine.initialization_graph(self.model, index)
            # Its own initializers are constants of its own, whatever variable has the same name.
            outer = captured_names(graph) - frozenset(graph.initializers)
            known = {**{name: self._value(state, name) for name in outer}, **graph.initializers}
            wanted = [output for _, output in info.initialization_binding]
            values = self._run(graph, known, wanted, self._context(state, "initialization/", index))
            updates = {variable: values[output] for variable, output in info.initialization_binding}
            where = f"training_info[{index}].initialization_binding"
            state = replace(state, variables=_assign(state.variables, updates, where))
        return replace(state, step=jnp.zeros((), jnp.int32))

    # What the methods take and give

    @cached_property
    def inference_graph(self) -> Graph:
        """The inference graph, sorted."""
        return combine.inference_graph(self.model)

    @cached_property
    def combined_graphs(self) -> tuple[Graph, ...]:
        """The combined graph of each algorithm (T-08), sorted."""
        return tuple(combine.algorithm_graph(self.model, index) for index in range(len(self.model.training_info)))

    @cached_property
    def infer_inputs(self) -> Mapping[str, combine.DataInput]:
        """The inputs that `infer` accepts, by name."""
        return {value.name: value for value in combine.data_inputs(self.model, self.inference_graph)}

    def step_inputs(self, algorithm: int | None = None) -> Mapping[str, combine.DataInput]:
        """The inputs that `step` accepts, by name."""
        accepted: dict[str, combine.DataInput] = {}
        for index in self._algorithms(algorithm):
            accepted.update(self._algorithm_inputs[index])
        return accepted

    def step_outputs(self, algorithm: int | None = None) -> tuple[str, ...]:
        """The outputs that `step` gives by default: the algorithms' outputs that no binding assigns."""
        names: dict[str, None] = {}
        for index in self._algorithms(algorithm):
            info = self.model.training_info[index]
            assigned = {output for _, output in info.update_binding}
            names.update(dict.fromkeys(name for name in info.algorithm.output_names if name not in assigned))
        return tuple(names)

    def values_by_algorithm(self, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """Which values of a step over all algorithms come from each: those that no later one computes."""
        indices = self._algorithms(None)
        last = {name: index for index in indices for name in names if name in self._values_of(index)}
        return tuple(tuple(name for name in names if last[name] == index) for index in indices)

    @cached_property
    def _algorithm_inputs(self) -> tuple[Mapping[str, combine.DataInput], ...]:
        return tuple(
            {value.name: value for value in combine.data_inputs(self.model, graph)} for graph in self.combined_graphs
        )

    # Running one graph

    def _run_algorithm(
        self,
        index: int,
        state: TrainingState,
        fed: Mapping[str, Any],
        wanted: Sequence[str],
        given: Mapping[str, Any] | None,
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        binding = self.model.training_info[index].update_binding
        here = [name for name in wanted if name in self._values_of(index)]
        values = self.evaluate(state, fed, [*here, *(output for _, output in binding)], index, given=given)
        updates = {variable: values[output] for variable, output in binding}
        where = f"training_info[{index}].update_binding"
        return _assign(state.variables, updates, where), {name: values[name] for name in here}

    def _run(self, graph: Graph, known: dict[str, Any], wanted: Sequence[str], context: Context) -> dict[str, Any]:
        declared = {value.name: value for value in graph.inputs}
        for name in missing_values(graph, known, wanted):
            raise missing_input(declared[name]) if name in declared else unknown_name("value", name, known)
        return run_graph(graph, known, wanted, context)

    def _initializers(self, graph: Graph, state: TrainingState) -> dict[str, Any]:
        return {name: self._value(state, name) for name in graph.initializers}

    def _value(self, state: TrainingState, name: str) -> Any:
        """The present value of an initializer of the inference graph or of an algorithm."""
        if name in state.variables:
            return state.variables[name]
        return state.constants[name] if name in state.constants else self._constants[name]

    def _context(self, state: TrainingState, path: str, *salts: Any) -> Context:
        return Context(
            self.functions,
            self.model.opset_imports,
            key=state.key,
            salts=salts,
            path=path,
            straight_through=self.straight_through,
        )

    # What is constant

    @cached_property
    def _constants(self) -> Mapping[str, np.ndarray]:
        graphs = (self.model.graph, *(info.algorithm for info in self.model.training_info))
        variables = frozenset(self.model.state_variables)
        return {
            name: value
            for graph in reversed(graphs)
            for name, value in graph.initializers.items()
            if name not in variables
        }

    @cached_property
    def _large_constants(self) -> Mapping[str, np.ndarray]:
        return {name: value for name, value in self._constants.items() if not stands_in_function(value)}

    # Names

    def _values_of(self, index: int) -> frozenset[str]:
        graph = self.combined_graphs[index]
        written = (name for node in graph.nodes for name in node.outputs)
        return frozenset((*graph.input_names, *graph.initializers, *written))

    def _require_known(self, wanted: Sequence[str], indices: Sequence[int]) -> None:
        known = frozenset().union(*(self._values_of(index) for index in indices))
        for name in wanted:
            if name not in known:
                raise unknown_name("value", name, known)

    def _algorithms(self, algorithm: int | None) -> Sequence[int]:
        self._require_training()
        count = len(self.model.training_info)
        if algorithm is None:
            return range(count)
        if not 0 <= algorithm < count:
            raise IndexError(f"Algorithm {algorithm} does not exist: the model has {count}, numbered from 0.")
        return (algorithm,)

    def _require_training(self) -> None:
        if not self.model.training_info:
            raise ModelError(
                "The model has no training information, so it can be inferred but not initialized or trained. "
                "Add it with onnxtrain.make_trainable(model), or: onnxtrain prepare MODEL -o OUT"
            )


def stands_in_function(value: Any) -> bool:
    """Whether an array is small enough to be a constant of the compiled function; strings always are."""
    if value.dtype.kind == "O":
        return True
    return value.size <= (STATIC_FLOATS if dtypes.is_float(value.dtype) else STATIC_INTEGERS)


def _stored(model: Model, name: str) -> np.ndarray:
    value = model.find_initializer(name)
    if value is None:  # validation has refused such a model already
        raise ModelError(f"State variable {name!r} has no initializer.")
    return value


def _assign(variables: Mapping[str, Any], updates: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The variables with the updates in place of the old values; shapes and types stay (T-14)."""
    for name, value in updates.items():
        old = variables[name]
        if not hasattr(value, "dtype") or (value.shape, static.device_dtype(value.dtype)) != (old.shape, old.dtype):
            raise StateError(
                f"{where}[{name!r}] assigns {_describe(value)} to a variable that is {_describe(old)}. "
                "An update has its variable's shape and element type; Reshape or Cast it in the graph."
            )
    return {**variables, **{name: static.traced(value) for name, value in updates.items()}}


def _describe(value: Any) -> str:
    return f"{dtypes.name_of(value.dtype)}{list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__
