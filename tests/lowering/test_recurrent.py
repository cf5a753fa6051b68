from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from onnxtrain.errors import OperatorError, UnsupportedError
from tests.lowering.one_node import run_node

STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 4, 2
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@dataclass(frozen=True)
class Variant:
    """A recurrent node: its attributes and which of its optional inputs it has."""

    op_type: str
    attributes: dict[str, Any] = field(default_factory=dict)
    inputs: str = "B sequence_lens initial_h initial_c P"


VARIANTS = {
    "plain": [Variant(op_type, {}, "") for op_type in GATES],
    "everything": [Variant(op_type) for op_type in GATES],
    "without sequence_lens": [Variant(op_type, {}, "B initial_h initial_c") for op_type in GATES],
    "linear before reset": [
        Variant("GRU", {"linear_before_reset": 1}),
        Variant("GRU", {"linear_before_reset": 1}, ""),
    ],
    "coupled gates": [Variant("LSTM", {"input_forget": 1})],
    "clip": [Variant("RNN", {"clip": 0.3}), Variant("GRU", {"clip": 0.3})],
    "other functions": [
        Variant("RNN", {"activations": ["Relu"]}),
        Variant("RNN", {"activations": ["Softsign"]}),
        Variant("RNN", {"activations": ["Softplus"]}),
        Variant("RNN", {"activations": ["Elu"]}),
        Variant("RNN", {"activations": ["LeakyRelu"]}),
        Variant("RNN", {"activations": ["LeakyRelu"], "activation_alpha": [0.5]}),
        Variant("RNN", {"activations": ["ScaledTanh"], "activation_alpha": [0.5], "activation_beta": [2.0]}),
        Variant("RNN", {"activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.1]}),
        Variant("RNN", {"activations": ["ThresholdedRelu"], "activation_alpha": [0.2]}),
        Variant("GRU", {"activations": ["HardSigmoid", "Softsign"]}),
        Variant("LSTM", {"activations": ["HardSigmoid", "LeakyRelu", "Tanh"], "activation_alpha": [0.3, 0.1]}),
    ],
}
DIRECTIONS = ("forward", "reverse", "bidirectional")
COMPARED = [("everything", direction) for direction in DIRECTIONS]
COMPARED += [(kind, "bidirectional") for kind in VARIANTS if kind != "everything"]


def make_inputs(variant: Variant, direction: str, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """Every input of the node by name; lengths differ and one sequence is full."""
    generator = np.random.default_rng(3)
    directions, gates = 1 + (direction == "bidirectional"), GATES[variant.op_type]
    shapes = {
        "X": (STEPS, BATCH, INPUTS),
        "W": (directions, gates * HIDDEN, INPUTS),
        "R": (directions, gates * HIDDEN, HIDDEN),
        "B": (directions, 2 * gates * HIDDEN),
        "initial_h": (directions, BATCH, HIDDEN),
        "initial_c": (directions, BATCH, HIDDEN),
        "P": (directions, 3 * HIDDEN),
    }
    values = {name: generator.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    values["sequence_lens"] = np.array([5, 2, 4], np.int32)
    names = ["X", "W", "R", "B", "sequence_lens", "initial_h"] + ["initial_c", "P"] * (variant.op_type == "LSTM")
    wanted = {"X", "W", "R", *variant.inputs.split()}
    return {name: values[name] for name in names if name in wanted}


def attributes_of(variant: Variant, direction: str) -> dict[str, Any]:
    attributes = {**variant.attributes, "direction": direction, "hidden_size": HIDDEN}
    if direction == "bidirectional":
        for name in ("activations", "activation_alpha", "activation_beta"):
            if name in attributes:
                attributes[name] = attributes[name] * 2
    return attributes


def input_names(variant: Variant, inputs: dict[str, Any]) -> list[str]:
    names = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"]
    return [name if name in inputs else "" for name in names[: 8 if variant.op_type == "LSTM" else 6]]


def run(variant: Variant, direction: str, inputs: dict[str, Any], **attributes: Any) -> tuple[Any, ...]:
    values = [inputs.get(name) if name else None for name in input_names(variant, inputs)]
    return run_node(
        variant.op_type,
        values,
        opset=22,
        outputs=3 if variant.op_type == "LSTM" else 2,
        **{key: _tuple(value) for key, value in {**attributes_of(variant, direction), **attributes}.items()},
    )


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def run_elsewhere(variant: Variant, direction: str, inputs: dict[str, np.ndarray]) -> Sequence[Any]:
    outputs = ["Y", "Y_h", "Y_c"][: 3 if variant.op_type == "LSTM" else 2]
    node = helper.make_node(variant.op_type, input_names(variant, inputs), outputs, **attributes_of(variant, direction))
    graph = helper.make_graph(
        [node],
        "recurrent",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in inputs.items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(outputs, inputs)


@pytest.mark.parametrize(("kind", "direction"), COMPARED)
def test_recurrent_operators_agree_with_onnxruntime(kind: str, direction: str) -> None:
    for variant in VARIANTS[kind]:
        inputs = make_inputs(variant, direction)
        for found, expected in zip(
            run(variant, direction, inputs), run_elsewhere(variant, direction, inputs), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=str(variant))


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def test_clip_bounds_the_input_of_every_activation_of_lstm() -> None:
    """Also of h, as the document says; onnxruntime leaves that one out."""
    variant = Variant("LSTM", {"clip": 0.3}, "")
    inputs = make_inputs(variant, "forward")
    hidden = cell = np.zeros((BATCH, HIDDEN), np.float32)

    def clip(value: Any) -> Any:
        return np.clip(value, -0.3, 0.3)

    for x in inputs["X"]:
        i, o, f, c = np.split(clip(x @ inputs["W"][0].T + hidden @ inputs["R"][0].T), 4, axis=1)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(c)
        hidden = sigmoid(o) * np.tanh(clip(cell))
    _, y_h, y_c = run(variant, "forward", inputs)
    np.testing.assert_allclose(y_h[0], hidden, rtol=1e-5)
    np.testing.assert_allclose(y_c[0], cell, rtol=1e-5)


@pytest.mark.parametrize("op_type", GATES)
def test_layout_1_has_the_batch_first(op_type: str) -> None:
    variant = Variant(op_type)
    inputs = make_inputs(variant, "bidirectional")
    swapped = {
        name: np.swapaxes(value, 0, 1) if name in ("X", "initial_h", "initial_c") else value
        for name, value in inputs.items()
    }
    y, *last = run(variant, "bidirectional", inputs)
    y_swapped, *last_swapped = run(variant, "bidirectional", swapped, layout=1)
    np.testing.assert_array_equal(y_swapped, np.transpose(y, (2, 0, 1, 3)))
    for state, state_swapped in zip(last, last_swapped, strict=True):
        np.testing.assert_array_equal(state_swapped, np.swapaxes(state, 0, 1))


@pytest.mark.parametrize("opset", [1, 3, 7, 14])
@pytest.mark.parametrize("op_type", GATES)
def test_old_versions_of_recurrent_operators_compute_the_same(op_type: str, opset: int) -> None:
    variant = Variant(op_type)
    inputs = make_inputs(variant, "forward")
    values = [inputs.get(name) if name else None for name in input_names(variant, inputs)]
    attributes: dict[str, Any] = {"output_sequence": 1} if opset < 7 else {"layout": 0}
    if opset == 1 and op_type == "GRU":
        del attributes["output_sequence"]  # its default direction is misspelt, and must work all the same
    outputs = 3 if op_type == "LSTM" else 2
    found = run_node(op_type, values, opset=opset, outputs=outputs, **attributes if opset != 7 else {})
    for value, expected in zip(found, run(variant, "forward", inputs), strict=True):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("op_type", GATES)
def test_padding_beyond_a_sequence_s_length_changes_nothing(op_type: str) -> None:
    variant = Variant(op_type)
    inputs = make_inputs(variant, "bidirectional")
    beyond = np.arange(STEPS)[:, None] >= inputs["sequence_lens"]
    padded = {**inputs, "X": np.where(beyond[..., None], np.float32(100), inputs["X"])}
    outputs = run(variant, "bidirectional", inputs)
    for found, expected in zip(run(variant, "bidirectional", padded), outputs, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert not np.any(np.transpose(outputs[0], (0, 2, 1, 3))[beyond])


@pytest.mark.parametrize("op_type", GATES)
def test_gradients_flow_through_recurrent_operators(op_type: str, x64: None) -> None:
    variant = Variant(op_type)
    inputs = make_inputs(variant, "bidirectional", np.float64)
    lengths = inputs.pop("sequence_lens")

    def total(values: dict[str, Any]) -> Any:
        outputs = run(variant, "bidirectional", {**values, "sequence_lens": lengths})
        return sum(jnp.sum(jnp.sin(output)) for output in outputs)

    gradients = jax.grad(total)(inputs)
    assert set(gradients) == set(inputs)
    generator = np.random.default_rng(0)
    direction = {name: generator.normal(size=value.shape) for name, value in inputs.items()}
    ahead, behind = (
        total({name: value + step * direction[name] for name, value in inputs.items()}) for step in (1e-6, -1e-6)
    )
    along = sum(np.vdot(gradients[name], direction[name]) for name in inputs)
    np.testing.assert_allclose(along, (ahead - behind) / 2e-6, rtol=1e-6)


def test_an_unknown_activation_is_refused_with_the_known_ones() -> None:
    variant = Variant("RNN", {"activations": ["Swish"]})
    with pytest.raises(UnsupportedError, match=r"'Swish' is unknown. Known are Relu, Tanh"):
        run(variant, "forward", make_inputs(variant, "forward"))


def test_an_unknown_direction_is_refused() -> None:
    with pytest.raises(OperatorError, match="'sideways'"):
        run(Variant("RNN"), "sideways", make_inputs(Variant("RNN"), "forward"))
