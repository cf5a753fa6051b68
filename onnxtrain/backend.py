"""The backend interface of ONNX, for tools that run models by way of `onnx.backend`.

Models are inferred with the values that they have stored. Outputs are a tuple of numpy arrays, which can also be
indexed by the outputs' names; sequences are lists, maps are dicts, and an absent optional is None.

>>> import numpy as np
>>> import onnx
>>> import onnxtrain.backend
>>> model = onnx.parser.parse_model(
...     '''<ir_version: 10, opset_import: ["": 21]>
...        double (float[N] x) => (float[N] y) { y = Add(x, x) }'''
... )
>>> prepared = onnxtrain.backend.prepare(model)
>>> prepared.run([np.ones(2, np.float32)])
Outputs(y=array([2., 2.], dtype=float32))
>>> prepared.run({"x": np.ones(3, np.float32)})["y"]
array([2., 2., 2.], dtype=float32)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx
from onnx import helper
from onnx.backend import base

from onnxtrain import schema
from onnxtrain.errors import InputError, UnsupportedError
from onnxtrain.graph.order import needed_nodes
from onnxtrain.graph.read import read_model
from onnxtrain.lowering.context import Context, require_rules
from onnxtrain.session import TrainingSession

__all__ = ["Backend", "PreparedModel", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]

# JAX's name for each type of device that ONNX knows.
_PLATFORMS = {"CPU": "cpu", "CUDA": "cuda"}


class PreparedModel(base.BackendRep):
    """A model on a device, to be run any number of times; each set of input shapes is compiled once.

    Attributes:
      session: the session that runs the model; its variables can be read and set.
    """

    def __init__(self, session: TrainingSession, device: Any):
        self.session = session
        self._device = device
        self._input_names = tuple(session.program.infer_inputs)
        self._outputs = base.namedtupledict("Outputs", session.program.inference_graph.output_names)

    def run(self, inputs: Any, **kwargs: Any) -> Any:
        """Infers, and returns the outputs as a tuple that can also be indexed by name.

        Args:
          inputs: a list in the order of the model's inputs, a mapping by name, or one array for a model of one input.
          kwargs: what other backends take; there is nothing to choose here.

        Raises:
          InputError: a name, number, shape or element type does not fit the model.
        """
        with jax.default_device(self._device):
            found = self.session.infer(self._by_name(inputs))
        return self._outputs(*map(_to_numpy, found.values()))

    def _by_name(self, inputs: Any) -> Mapping[str, Any]:
        if isinstance(inputs, Mapping):
            return inputs
        listed = inputs if isinstance(inputs, list | tuple) else [inputs]
        if len(listed) > len(self._input_names):
            names = ", ".join(map(repr, self._input_names)) or "none"
            raise InputError(
                f"The model has {len(self._input_names)} inputs ({names}), and {len(listed)} were given. "
                "Give at most as many, or a mapping by name; what an initializer holds for good is no input."
            )
        return dict(zip(self._input_names, listed, strict=False))


class Backend(base.Backend):
    """The operations of the interface; each is a function of this module too."""

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto | str | os.PathLike[str], device: str = "CPU", **kwargs: Any
    ) -> PreparedModel:
        """Reads a model and places it on a device.

        Args:
          model: an `onnx.ModelProto`, which stays untouched, or a path.
          device: `"CPU"`, `"CUDA"` or, to number it, `"CUDA:1"`.
          kwargs: what other backends take; there is nothing to choose here.

        Raises:
          ModelError: the model breaks ONNX.
          UnsupportedError: there is no such device.
        """
        chosen = _find_device(device)
        with jax.default_device(chosen):
            return PreparedModel(TrainingSession(model), chosen)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto | str | os.PathLike[str], inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> Any:
        """Infers once: `prepare` and `PreparedModel.run` in one."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Runs one node on its own.

        Args:
          node: the node.
          inputs: a list of arrays in the order of the inputs that the node names, or a mapping by name.
          device: as in `prepare`.
          outputs_info: element types and shapes of the outputs; they follow from the inputs, so nobody needs them.
          kwargs: `opset_version` is the version of the node's domain, by default the newest that onnxtrain knows.

        Raises:
          UnsupportedOperatorError: no rule runs the operator.
          OperatorError: the operator failed on these inputs.
        """
        domain = schema.normalize_domain(node.domain)
        opset = kwargs.get("opset_version", schema.NEWEST_TESTED.get(domain, 1))
        names = dict.fromkeys(filter(None, node.input))
        graph = helper.make_graph(
            [node],
            "node",
            [onnx.ValueInfoProto(name=name) for name in names],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, opset)])
        return cls.run_model(model, inputs, device)

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto | str | os.PathLike[str], device: str = "CPU", **kwargs: Any) -> bool:
        """Whether there is such a device, and a rule for every operator that the model's outputs need."""
        read = read_model(model)
        needed = needed_nodes(read.graph.nodes, read.graph.output_names)
        try:
            require_rules(Context(read.functions, read.opset_imports), read.graph.name, needed)
        except UnsupportedError:
            return False
        return cls.supports_device(device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether this machine has the device, and JAX can use it."""
        try:
            _find_device(device)
        except UnsupportedError:
            return False
        return True


def _find_device(device: str) -> Any:
    """The JAX device that one of ONNX's device strings names."""
    kind, _, number = device.partition(":")
    present = {f"{name}:{i}": found for name in _PLATFORMS for i, found in enumerate(_devices(name))}
    found = present.get(f"{kind}:{number or 0}")
    if found is not None:
        return found
    raise UnsupportedError(
        f"There is no device {device!r}; JAX finds {', '.join(present)}. Choose one of these. "
        "For an NVIDIA GPU, install JAX's part for it with: pip install 'onnxtrain[cuda]'"
    )


def _devices(kind: str) -> Sequence[Any]:
    try:
        return jax.devices(_PLATFORMS[kind])
    except RuntimeError:  # that is how JAX says that it has no such platform
        return ()


def _to_numpy(value: Any) -> Any:
    """The value in numpy, and a copy: the session may hold on to its own."""
    if isinstance(value, list):
        return [_to_numpy(item) for item in value]
    return value if value is None or isinstance(value, dict) else np.array(value)


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
