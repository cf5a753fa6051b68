"""A training model as the stateful object that the specification describes: reset, train on a batch, infer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain import dtypes, export
from onnxtrain.errors import ModelError, StateError
from onnxtrain.execution import Execution, Method
from onnxtrain.graph import write
from onnxtrain.graph.model import Model
from onnxtrain.inputs import check_inputs, unknown_name
from onnxtrain.program import lower
from onnxtrain.state import DataPosition, TrainingState

if TYPE_CHECKING:
    import onnx


class TrainingSession:
    """A model with a current state.

    Each method is compiled once for each set of input shapes, with 64-bit types on whatever JAX's own setting is.
    The state stays on the device between steps, and a step reuses its memory.

    Args:
      model: a path, an `onnx.ModelProto` (which stays untouched), or a model that has been read.
      seed: where all random streams start. By default a saved run goes on with its own, and a new one starts at 0.
      straight_through: what the gradient through a quantization is: as if nothing had been rounded, or exactly zero.

    Raises:
      ValidationError: the training information breaks the specification; the error lists every problem.

    Example::

        session = ot.TrainingSession("model.onnx", seed=0)
        session.initialize()
        outputs = session.step({"x": x, "labels": labels})
        session.save("trained.onnx")
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | onnx.ModelProto | Model,
        seed: int | None = None,
        *,
        straight_through: bool = True,
    ):
        self.program = lower(model, straight_through=straight_through)
        self.model = self.program.model
        self._execution = Execution(self.program)
        self._lent = False
        self._position = _read_position(self.model)
        with jax.enable_x64(True):
            self._state = self.program.stored_state(_read_key(self.model, seed), _read_step(self.model))

    def initialize(self) -> None:
        """Resets every state variable (T-04): stored values first, then what the initialization graphs assign."""
        with jax.enable_x64(True):
            stored = self.program.stored_state(self._state.key)
            self._state, _ = self._execution.run(Method("initialize"), stored, {})
        self._lent = False
        self._position = None

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

        with jax.enable_x64(True):
            fed = check_inputs(self.program.step_inputs(algorithm), inputs)
            if algorithm is None and len(self.model.training_info) == 1:
                algorithm = 0  # the same step, and one whose parts can be run apart
            method = Method("step", algorithm, wanted)
            self._state, found = self._execution.run(method, self._own_state(), fed)
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

        with jax.enable_x64(True):
            fed = check_inputs(self.program.infer_inputs, inputs)
            _, found = self._execution.run(Method("evaluate", None, wanted), self._state, fed)
        return {name: found[name] for name in wanted}

    @property
    def state(self) -> TrainingState:
        """The current state. It stays valid when training goes on: the next step copies it instead of reusing it.

        Assigning a state that the session had before takes it back there.
        """
        self._lent = True
        return self._state

    @state.setter
    def state(self, state: TrainingState) -> None:
        with jax.enable_x64(True):
            variables, step = jax.tree.map(jnp.asarray, (state.variables, state.step))
        self._state = replace(state, variables=variables, step=step)
        self._lent = True

    @property
    def variables(self) -> MutableMapping[str, Any]:
        """The state variables by name: reading one gives a numpy copy, assigning to one sets it."""
        return _Variables(self)

    @property
    def step_count(self) -> int:
        """How many training iterations the run has done since its last reset, earlier sessions included."""
        return int(self._state.step)

    @property
    def position(self) -> DataPosition | None:
        """Where the run over data stands, which `fit` keeps and `save` writes; None when a step was taken otherwise."""
        position = self._position
        return position if position is not None and position.step == self.step_count else None

    @position.setter
    def position(self, position: DataPosition | None) -> None:
        self._position = position

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the training model with its current values; a session on that file goes on exactly from here.

        The file appears at once or not at all: an earlier one of that name stays whole until the new one is.
        """
        proto = export.training_model(
            self.model,
            self._values(),
            step=self.step_count,
            seed=_key_to_text(self._state.key),
            position=self.position.to_text() if self.position else "",
        )
        write.save_proto(proto, path)

    def export(self, path: str | os.PathLike[str], *, averaged: bool = False, keep_adapters: bool = False) -> None:
        """Writes the inference model with its current values, without training information.

        Args:
          path: the file, which appears at once or not at all.
          averaged: write the moving averages of the weights, which `make_trainable(average=...)` makes a model keep.
          keep_adapters: leave low-rank adapters beside the weights, instead of adding them to these.
        """
        proto = export.inference_model(self.model, self._values(), averaged=averaged, keep_adapters=keep_adapters)
        write.save_proto(proto, path)

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


def _read_step(model: Model) -> int:
    return int(model.metadata.get(export.STEP_KEY, 0))


def _read_position(model: Model) -> DataPosition | None:
    text = model.metadata.get(export.POSITION_KEY)
    if not text:
        return None
    try:
        return DataPosition.from_text(text)
    except ValueError as error:
        raise ModelError(
            f"metadata_props[{export.POSITION_KEY!r}] is {text!r}, and that is no position in data ({error}). "
            "Delete the entry."
        ) from error


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
