"""Runs the methods of a program compiled, and what cannot be compiled on the host in between.

A method is compiled once for each set of input shapes. A model may need values while tracing that are only known
at run time: NonZero, a Reshape to a computed shape, text. Then the method is cut: one compiled part computes what the
node reads, the node runs on the host, and what it gives goes into the next compiled part, whose shapes follow from
it. The cuts that a method needs are found once, by tracing. A step over several algorithms that needs any is run as
one method for each: what one of them reads may follow from what the one before assigned.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import StaticValueError
from onnxtrain.graph.order import reads
from onnxtrain.lowering import static
from onnxtrain.program import Program, stands_in_function
from onnxtrain.state import TrainingState

# The compiler for CPUs in this version of jaxlib fuses a reduction with a product by a large uniform constant, and gets
# it wrong: the mean of relu(x @ full) is whatever was in memory. The option leaves such fusions out.
_COMPILER_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""} if version("jaxlib") == "0.10.2" else {}


@dataclass(frozen=True)
class Method:
    """What is compiled: a method of the program with the values that it gives.

    `kind` is "initialize", "step", or "evaluate"; the last runs the inference graph, or without updates the combined
    graph of `algorithm`.
    """

    kind: str
    algorithm: int | None = None
    wanted: tuple[str, ...] = ()

    def run(
        self, program: Program, state: TrainingState, fed: Mapping[str, Any], given: Mapping[str, Any]
    ) -> tuple[TrainingState, dict[str, Any]]:
        """The new state, and the wanted values by name."""
        if self.kind == "initialize":
            return program.run_initializations(state), {}
        if self.kind == "step":
            return program.step(state, fed, self.algorithm, self.wanted, given=given)
        return state, program.evaluate(state, fed, self.wanted, self.algorithm, given=given)


@dataclass(frozen=True)
class Cut:
    """A place where a method leaves the compiled code: the node that gives `outputs` from `inputs` runs on the host.

    Without outputs, the inputs themselves are fetched and stand in the next compiled part as constants.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What a method needs beside compiling: inputs that are constants of the compiled part, and cuts in order."""

    static_inputs: frozenset[str] = frozenset()
    cuts: tuple[Cut, ...] = ()


@dataclass
class Execution:
    """The compiled methods of one program."""

    program: Program
    _plans: dict[Method, Plan] = field(default_factory=dict)
    _in_turn: set[Method] = field(default_factory=set)
    _compiled: dict[Hashable, _Compiled] = field(default_factory=dict)

    def run(
        self, method: Method, state: TrainingState, fed: Mapping[str, Any], given: Mapping[str, Any] | None = None
    ) -> tuple[TrainingState, dict[str, Any]]:
        """The new state and the values of a method, from checked inputs; `given` are values known already.

        A step takes over the buffers of the state's variables.
        """
        while method not in self._in_turn:
            plan = self._plans.get(method, Plan())
            known = dict(given or {})
            for cut in plan.cuts:
                known.update(self._cross(cut, method.algorithm, state, fed, known))
            try:
                return self._call(method, plan.static_inputs, state, fed, known)
            except StaticValueError as error:
                if method.kind == "step" and method.algorithm is None:
                    self._in_turn.add(method)
                else:
                    self._plans[method] = _extended(plan, fed, error)
        return self._run_in_turn(method, state, fed)

    def _run_in_turn(
        self, method: Method, state: TrainingState, fed: Mapping[str, Any]
    ) -> tuple[TrainingState, dict[str, Any]]:
        """One iteration, its algorithms as methods of their own: each sees what those before assigned.

        The state that it starts from is copied, so that it is still there when a later algorithm fails.
        """
        begun = state.step
        state = replace(state, variables=jax.tree.map(jnp.copy, state.variables))
        found: dict[str, Any] = {}
        for index, wanted in enumerate(self.program.values_by_algorithm(method.wanted)):
            state = replace(state, step=jnp.copy(begun))
            accepted = self.program.step_inputs(index)
            here = {name: value for name, value in fed.items() if name in accepted}
            state, values = self.run(Method("step", index, wanted), state, here)
            found.update(values)
        return state, found

    def _cross(
        self, cut: Cut, algorithm: int | None, state: TrainingState, fed: Mapping[str, Any], known: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The values of one cut, on the host."""
        missing = tuple(name for name in cut.inputs if name not in known and name not in fed)
        _, found = self.run(Method("evaluate", algorithm, missing), state, fed, known)
        values = static.on_host({**{name: fed[name] for name in cut.inputs if name in fed}, **found})
        if not cut.outputs:
            return values
        given = {**known, **values}
        found = self.program.evaluate(state, fed, cut.outputs, algorithm, given=given, on_host=True)
        return {name: _on_device(value) for name, value in found.items()}

    def _call(
        self,
        method: Method,
        static_names: frozenset[str],
        state: TrainingState,
        fed: Mapping[str, Any],
        known: Mapping[str, Any],
    ) -> tuple[TrainingState, dict[str, Any]]:
        constants = (
            {name: value for name, value in fed.items() if name in static_names or not _traceable(value)},
            {name: value for name, value in known.items() if static.is_static(value)},
        )
        arguments = tuple(
            {name: value for name, value in values.items() if name not in fixed}
            for values, fixed in zip((fed, known), constants, strict=True)
        )
        signature = (method, _value_signature(list(constants)), _shape_signature(arguments))
        compiled = self._compiled.get(signature) or _Compiled(self.program, method, constants)
        result = compiled(state, arguments)
        self._compiled[signature] = compiled
        return result


def _extended(plan: Plan, fed: Mapping[str, Any], error: StaticValueError) -> Plan:
    """The plan with what this failure calls for, or the error again where nothing helps."""
    if error.source in fed and error.source not in plan.static_inputs and stands_in_function(fed[error.source]):
        return replace(plan, static_inputs=plan.static_inputs | {error.source})
    cut = _cut(error)
    if cut is None or cut in plan.cuts:
        raise error
    return replace(plan, cuts=(*plan.cuts, cut))


def _cut(error: StaticValueError) -> Cut | None:
    if error.node is None:
        return None
    if error.input and (error.shape_like or error.differentiated):
        return Cut((error.input,))  # the node stays in the compiled part, and with it its gradient
    if error.differentiated:
        return None
    return Cut(tuple(sorted(reads(error.node))), tuple(name for name in error.node.outputs if name))


class _Compiled:
    """One method for one set of shapes. Outputs that are known while tracing never reach the device."""

    def __init__(self, program: Program, method: Method, constants: tuple[Mapping[str, Any], Mapping[str, Any]]):
        self._program = program
        self._method = method
        self._constants = static.on_host(constants)
        self._static_outputs: dict[str, Any] = {}
        self._changes_state = method.kind != "evaluate"
        # Constants and key are read by every call, so only the variables and the step are given away.
        self._function = jax.jit(
            self._traced,
            donate_argnums=(0,) if self._changes_state else (),
            compiler_options=_COMPILER_OPTIONS,
        )

    def _traced(self, changing: tuple[Any, Any], kept: tuple[Any, Any], arguments: tuple[Any, Any]) -> tuple[Any, Any]:
        state = TrainingState(changing[0], kept[0], kept[1], changing[1])
        fed, given = ({**traced, **known} for traced, known in zip(arguments, self._constants, strict=True))
        state, outputs = self._method.run(self._program, state, fed, given)
        self._static_outputs = {name: value for name, value in outputs.items() if static.is_static(value)}
        traced = {name: value for name, value in outputs.items() if name not in self._static_outputs}
        return (state.variables, state.step) if self._changes_state else None, traced

    def __call__(self, state: TrainingState, arguments: Any) -> tuple[TrainingState, dict[str, Any]]:
        changed, outputs = self._function((state.variables, state.step), (state.constants, state.key), arguments)
        if changed is not None:
            state = replace(state, variables=changed[0], step=changed[1])
        return state, {**outputs, **self._static_outputs}


def _traceable(value: Any) -> bool:
    """Whether a value can be an argument of a compiled function: text and maps cannot."""
    if isinstance(value, list):
        return all(_traceable(item) for item in value)
    return value is None or (hasattr(value, "dtype") and value.dtype.kind not in "OUS")


def _on_device(value: Any) -> Any:
    """The value as an argument of the next compiled part, so that only its shape stands in the code."""
    if isinstance(value, list):
        return [_on_device(item) for item in value]
    return jnp.asarray(value) if value is not None and _traceable(value) else value


def _value_signature(values: Any) -> Hashable:
    """What tells two sets of static values apart."""
    if isinstance(values, Mapping):
        return tuple(sorted((str(key), _value_signature(value)) for key, value in values.items()))
    if isinstance(values, list):
        return tuple(_value_signature(value) for value in values)
    array = np.asarray(values)
    return (array.shape, str(array.dtype), repr(array.tolist()))


def _shape_signature(values: Any) -> Hashable:
    leaves, structure = jax.tree.flatten(values)
    return (structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
