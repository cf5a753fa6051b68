"""A training model as the stateful object that the specification describes: reset, train on a batch, infer."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain import dtypes, export
from onnxtrain.errors import ModelError, StateError, StaticValueError
from onnxtrain.graph import write
from onnxtrain.graph.model import Model
from onnxtrain.inputs import check_inputs, unknown_name
from onnxtrain.lowering import static
from onnxtrain.program import Program, lower, stands_in_function
from onnxtrain.state import TrainingState

if TYPE_CHECKING:
    import onnx


class TrainingSession:
    """A model with a current state.

    Each method is compiled once for each set of input shapes, with 64-bit types on whatever JAX's own setting is.
    The state stays on the device between steps, and a step reuses its memory.

    Args:
      model: a path, an `onnx.ModelProto` (which stays untouched), or a model that has been read.
      seed: where all random streams start. By default a saved run goes on with its own, and a new one starts at 0.

    Raises:
      ValidationError: the training information breaks the specification; the error lists every problem.

    Example::

        session = ot.TrainingSession("model.onnx", seed=0)
        session.initialize()
        outputs = session.step({"x": x, "labels": labels})
        session.save("trained.onnx")
    """

    def __init__(self, model: str | os.PathLike[str] | onnx.ModelProto | Model, seed: int | None = None):
        self.program = lower(model)
        self.model = self.program.model
        self._compiled: dict[Hashable, _Compiled] = {}
        self._static_inputs: dict[Hashable, frozenset[str]] = {}
        self._lent = False
        with jax.enable_x64(True):
            self._state = self.program.stored_state(_read_key(self.model, seed), _read_step(self.model))

    def initialize(self) -> None:
        """Resets every state variable (T-04): stored values first, then what the initialization graphs assign."""
        with jax.enable_x64(True):
            stored = self.program.stored_state(self._state.key)
            compiled = self._compiled.setdefault("initialize", _Compiled(_run_initializations(self.program), {}, True))
            self._state, _ = compiled(stored, {})
        self._lent = False

    def step(
        self, inputs: Mapping[str, Any], algorithm: int | None = None, outputs: Sequence[str] | None = None
    ) -> dict[str, jax.Array]:
        """Runs one training iteration and returns its outputs by name, still on the device.

        Args:
          inputs: arrays by input name, in the declared shapes and element types.
          algorithm: run only the algorithm with this index; by default all of them, in order.
          outputs: names of any values of the combined graphs; by default the algorithms' outputs that no binding
            assigns, such as the loss.

        Raises:
          InputError: a name, shape or element type does not fit the model.
          StaticValueError: a shape depends on values that are only known while running.
        """
        wanted = self.program.step_outputs(algorithm) if outputs is None else tuple(outputs)

        def run(state: TrainingState, fed: Mapping[str, Any]) -> tuple[TrainingState, dict[str, Any]]:
            return self.program.step(state, fed, algorithm, wanted)

        with jax.enable_x64(True):
            fed = check_inputs(self.program.step_inputs(algorithm), inputs)
            self._state, found = self._call(("step", algorithm, wanted), run, self._own_state(), fed)
        return {name: found[name] for name in wanted}

    def infer(self, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None) -> dict[str, jax.Array]:
        """Runs the inference graph with the current values; nothing changes.

        Args:
          inputs: arrays by input name, in the declared shapes and element types.
          outputs: names of any values of the inference graph; by default its outputs.

        Raises:
          InputError: a name, shape or element type does not fit the model.
          StaticValueError: a shape depends on values that are only known while running.
        """
        wanted = self.program.inference_graph.output_names if outputs is None else tuple(outputs)

        def run(state: TrainingState, fed: Mapping[str, Any]) -> tuple[TrainingState, dict[str, Any]]:
            return state, self.program.infer(state, fed, wanted)

        with jax.enable_x64(True):
            fed = check_inputs(self.program.infer_inputs, inputs)
            _, found = self._call(("infer", wanted), run, self._state, fed)
        return {name: found[name] for name in wanted}

    @property
    def state(self) -> TrainingState:
        """The current state. It stays valid when training goes on: the next step copies it instead of reusing it."""
        self._lent = True
        return self._state

    @property
    def variables(self) -> MutableMapping[str, Any]:
        """The state variables by name: reading one gives a numpy copy, assigning to one sets it."""
        return _Variables(self)

    @property
    def step_count(self) -> int:
        """How many training iterations the run has done since its last reset, earlier sessions included."""
        return int(self._state.step)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the training model with its current values; a session on that file goes on exactly from here.

        The file appears at once or not at all: an earlier one of that name stays whole until the new one is.
        """
        proto = export.training_model(
            self.model, self._values(), step=self.step_count, seed=_key_to_text(self._state.key)
        )
        write.save_proto(proto, path)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Writes the inference model with its current values, without training information."""
        write.save_proto(export.inference_model(self.model, self._values()), path)

    def _values(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(value) for name, value in self._state.variables.items()}

    def _set_variable(self, name: str, value: jax.Array) -> None:
        self._state = replace(self._state, variables={**self._state.variables, name: value})

    def _own_state(self) -> TrainingState:
        """The state in buffers that nobody else holds, so that a step may reuse them."""
        if self._lent:
            copies = jax.tree.map(jnp.copy, (self._state.variables, self._state.step))
            self._state = replace(self._state, variables=copies[0], step=copies[1])
            self._lent = False
        return self._state

    def _call(
        self, method: tuple[Any, ...], run: _Method, state: TrainingState, fed: Mapping[str, Any]
    ) -> tuple[TrainingState, dict[str, Any]]:
        """Calls the compiled method, compiling it first for new shapes or new values of static inputs."""
        while True:
            known = self._static_inputs.get(method, frozenset())
            static_inputs = {name: value for name, value in fed.items() if name in known or not _traceable(value)}
            traced_inputs = {name: value for name, value in fed.items() if name not in static_inputs}
            signature = (method, _value_signature(static_inputs), _shape_signature(traced_inputs))
            compiled = self._compiled.get(signature) or _Compiled(run, static_inputs, changes_state=method[0] == "step")
            try:
                result = compiled(state, traced_inputs)
            except StaticValueError as error:
                # A shape that is fed: compiled once for each value, as long as those are few numbers.
                if error.source not in traced_inputs or not stands_in_function(traced_inputs[error.source]):
                    raise
                self._static_inputs[method] = known | {error.source}
                continue
            self._compiled[signature] = compiled
            return result


_Method = Callable[[TrainingState, Mapping[str, Any]], tuple[TrainingState, dict[str, Any]]]


class _Compiled:
    """One method for one set of shapes. Outputs that are known while tracing never reach the device."""

    def __init__(self, run: _Method, static_inputs: Mapping[str, Any], changes_state: bool):
        self._run = run
        self._static_inputs = _on_host(static_inputs)
        self._static_outputs: dict[str, Any] = {}
        self._changes_state = changes_state
        # Constants and key are read by every call, so only the variables and the step are given away.
        self._function = jax.jit(self._traced, donate_argnums=(0,) if changes_state else ())

    def _traced(self, changing: tuple[Any, Any], kept: tuple[Any, Any], fed: Mapping[str, Any]) -> tuple[Any, Any]:
        state = TrainingState(changing[0], kept[0], kept[1], changing[1])
        state, outputs = self._run(state, {**fed, **self._static_inputs})
        self._static_outputs = {name: value for name, value in outputs.items() if static.is_static(value)}
        traced = {name: value for name, value in outputs.items() if name not in self._static_outputs}
        return (state.variables, state.step) if self._changes_state else None, traced

    def __call__(self, state: TrainingState, fed: Mapping[str, Any]) -> tuple[TrainingState, dict[str, Any]]:
        changed, outputs = self._function((state.variables, state.step), (state.constants, state.key), fed)
        if changed is not None:
            state = replace(state, variables=changed[0], step=changed[1])
        return state, {**outputs, **self._static_outputs}


def _run_initializations(program: Program) -> _Method:
    return lambda state, _: (program.run_initializations(state), {})


class _Variables(MutableMapping[str, Any]):
    """The state variables of a session as a mapping; they can be set, but neither added nor deleted."""

    def __init__(self, session: TrainingSession):
        self._session = session

    def __getitem__(self, name: str) -> np.ndarray:
        return np.array(self._find(name))

    def __setitem__(self, name: str, value: Any) -> None:
        old = self._find(name)
        array = np.asarray(value) if hasattr(value, "dtype") else np.asarray(value, old.dtype)
        if (array.shape, array.dtype) != (old.shape, old.dtype):
            raise StateError(
                f"State variable {name!r} is {dtypes.name_of(old.dtype)}{list(old.shape)}, and it was assigned "
                f"{dtypes.name_of(array.dtype)}{list(array.shape)}. Shape and element type must be the same."
            )
        with jax.enable_x64(True):
            self._session._set_variable(name, jnp.array(array))

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"State variable {name!r} cannot be deleted: the model's bindings name it.")

    def __iter__(self) -> Iterator[str]:
        return iter(self._session.model.state_variables)

    def __len__(self) -> int:
        return len(self._session.model.state_variables)

    def __repr__(self) -> str:
        lines = (f"  {name!r}: {dtypes.name_of(self._find(name).dtype)}{list(self._find(name).shape)}" for name in self)
        return "\n".join(["State variables:", *lines])

    def _find(self, name: str) -> jax.Array:
        variables = self._session._state.variables
        if name not in variables:
            raise KeyError(str(unknown_name("state variable", name, tuple(self))))
        return variables[name]


def _traceable(value: Any) -> bool:
    """Whether a value can be an argument of a compiled function: text and maps cannot."""
    if isinstance(value, list):
        return all(_traceable(item) for item in value)
    return value is None or (hasattr(value, "dtype") and value.dtype.kind not in "OUS")


def _on_host(value: Any) -> Any:
    """The value with JAX arrays as numpy arrays, so that it is known while tracing."""
    if isinstance(value, Mapping):
        return {key: _on_host(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_on_host(item) for item in value]
    return np.asarray(value) if hasattr(value, "dtype") else value


def _value_signature(values: Any) -> Hashable:
    """What tells two sets of static values apart."""
    if isinstance(values, Mapping):
        return tuple(sorted((str(key), _value_signature(value)) for key, value in values.items()))
    if isinstance(values, list):
        return tuple(_value_signature(value) for value in values)
    array = np.asarray(values)
    return (array.shape, str(array.dtype), repr(array.tolist()))


def _shape_signature(values: Mapping[str, Any]) -> Hashable:
    leaves, structure = jax.tree.flatten(values)
    return (structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))


def _read_step(model: Model) -> int:
    return int(model.metadata.get(export.STEP_KEY, 0))


def _read_key(model: Model, seed: int | None) -> jax.Array:
    """The key that a saved run goes on with, unless a seed asks for another."""
    text = model.metadata.get(export.SEED_KEY)
    if seed is not None or text is None:
        return jax.random.key(seed or 0)
    implementation, _, digits = text.partition(":")
    try:
        data = np.frombuffer(bytes.fromhex(digits), np.dtype("<u4")).astype(np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(data), impl=implementation)
    except ValueError as error:
        raise ModelError(
            f"metadata_props[{export.SEED_KEY!r}] is {text!r}, and that is no saved random stream ({error}). "
            "Give a seed, or delete the entry."
        ) from error


def _key_to_text(key: jax.Array) -> str:
    data = np.asarray(jax.random.key_data(key)).astype("<u4")
    return f"{jax.random.key_impl(key)}:{data.tobytes().hex()}"
