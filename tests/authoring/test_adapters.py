"""Low-rank adapters: they alone train, merge into the weights at export, and travel without their model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import optax
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain as ot
from onnxtrain.authoring import LoRA, load_adapters, make_trainable, merge_adapters, replace_head, save_adapters
from onnxtrain.errors import MissingExtraError, ModelError
from onnxtrain.export import inference_model
from tests.authoring.inference_models import (
    OPSETS,
    convolutional,
    floats,
    mlp,
    model_of,
    weights,
    with_constant_nodes,
)
from tests.authoring.training_graphs import combined, infer, nodes_of, trained

node = helper.make_node


def dense(*nodes: onnx.NodeProto, tensors: list[onnx.TensorProto], opset: int = 17) -> onnx.ModelProto:
    return model_of(nodes, [floats("x", 6, 4)], [floats("y", "M", 3)], tensors, opset=opset)


def convolution_of_rank(rank: int) -> onnx.ModelProto:
    axes = [9] * rank
    layer = node("Conv", ["x", "W", "b"], ["y"], "conv", strides=[2] * rank, pads=[1] * 2 * rank)
    tensors = [weights("W", 5, 3, *[3] * rank), weights("b", 5)]
    return model_of([layer], [floats("x", "N", 3, *axes)], [floats("y", "N", 5, *["S"] * rank)], tensors)


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "Gemm": mlp,
    "convolutions": convolutional,
    "Constant nodes": lambda: with_constant_nodes(mlp()),
    "float64": lambda: mlp(dtype="float64"),
    "Conv1d": lambda: convolution_of_rank(1),
    "Conv3d": lambda: convolution_of_rank(3),
    "MatMul": lambda: dense(node("MatMul", ["x", "W"], ["y"]), tensors=[weights("W", 4, 3)]),
    "Gemm with everything": lambda: dense(
        node("Transpose", ["x"], ["turned"]),
        node("Gemm", ["turned", "W", "b"], ["y"], "dense", transA=1, transB=1, alpha=0.5, beta=2.0),
        tensors=[weights("W", 3, 4), weights("b", 3)],
    ),
    "turned on the way": lambda: dense(
        node("Transpose", ["W"], ["turned"]),
        node("MatMul", ["x", "turned"], ["y"]),
        tensors=[weights("W", 3, 4)],
    ),
    "Gemm without its bias": lambda: dense(node("Gemm", ["x", "W", ""], ["y"]), tensors=[weights("W", 4, 3)]),
}


def some_input(model: onnx.ModelProto, batch: int = 6) -> dict[str, np.ndarray]:
    stored = {tensor.name for tensor in model.graph.initializer}
    (value,) = (value for value in model.graph.input if value.name not in stored)
    dims = [dim.dim_value or batch for dim in value.type.tensor_type.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    return {value.name: np.random.default_rng(0).normal(size=dims).astype(dtype)}


def trained_session(model: onnx.ModelProto, lora: LoRA, steps: int = 3) -> ot.TrainingSession:
    """A session in which the adapters have learned something."""
    session = ot.TrainingSession(
        make_trainable(model, loss="mean_squared_error", learning_rate=0.05, adapters=lora), seed=0
    )
    inputs = some_input(model)
    (output,) = infer(model, inputs)
    for _ in range(steps):
        session.step({**inputs, "labels": np.ones_like(output)})
    return session


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_a_new_adapter_changes_nothing(network):
    model = network()
    prepared = make_trainable(model, loss="mean_squared_error", adapters=LoRA(rank=2))
    onnx.checker.check_model(prepared)
    onnx.checker.check_model(combined(prepared), full_check=True)
    assert ot.validate(prepared) == []
    inputs = some_input(model)
    # onnxruntime fuses other nodes with a layer than with a call
    np.testing.assert_allclose(infer(prepared, inputs)[0], infer(model, inputs)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_export_merges_adapters_into_the_weights_of_the_same_structure(network, tmp_path):
    model = network()
    session = trained_session(model, LoRA(rank=2, alpha=3.0))
    session.export(tmp_path / "merged.onnx")
    merged = onnx.load(tmp_path / "merged.onnx")
    assert list(merged.graph.node) == list(model.graph.node) or "Constant" in {n.op_type for n in model.graph.node}
    assert [n.op_type for n in merged.graph.node] == [n.op_type for n in model.graph.node]
    assert [tensor.name for tensor in merged.graph.initializer] == [tensor.name for tensor in model.graph.initializer]
    assert not merged.functions
    assert {entry.domain for entry in merged.opset_import} == {""}
    inputs = some_input(model)
    (expected,) = session.infer(inputs).values()
    (found,) = infer(merged, inputs)
    np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-4, atol=1e-5)
    assert np.abs(found - infer(model, inputs)[0]).max() > 1e-3


def test_the_merged_weight_is_the_weight_and_the_scaled_product():
    model = dense(node("MatMul", ["x", "W"], ["y"]), tensors=[weights("W", 4, 3)])
    prepared = make_trainable(model, loss="mean_squared_error", adapters=LoRA(rank=2, alpha=3.0))
    session = ot.TrainingSession(prepared)
    first = np.arange(8, dtype=np.float32).reshape(4, 2)
    second = np.arange(6, dtype=np.float32).reshape(2, 3)
    session.variables["W/lora_A"], session.variables["W/lora_B"] = first, second
    exported = inference_model(session.model, dict(session.variables))
    (merged,) = exported.graph.initializer
    before = numpy_helper.to_array(model.graph.initializer[0])
    np.testing.assert_allclose(numpy_helper.to_array(merged), before + 1.5 * first @ second, rtol=1e-6)


def test_a_hundred_steps_follow_optax():
    model = mlp()
    prepared = make_trainable(
        model, loss="mean_squared_error", optimizer="adam", learning_rate=0.01, adapters=LoRA(rank=2, alpha=3.0)
    )
    session = ot.TrainingSession(prepared)
    fixed = {tensor.name: jnp.asarray(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
    adapters: dict[str, Any] = {name: jnp.asarray(session.variables[name]) for name in trained(prepared)}

    def loss(adapters: dict[str, Any], x: Any, y: Any) -> Any:
        first = fixed["W1"] + 1.5 * adapters["W1/lora_A"] @ adapters["W1/lora_B"]
        second = fixed["W2"].T + 1.5 * adapters["W2/lora_A"] @ adapters["W2/lora_B"]
        scores = jax.nn.relu(x @ first + fixed["b1"]) @ second + fixed["b2"]
        return jnp.mean(jnp.square(scores - y))

    optimizer = optax.adam(0.01)
    state = optimizer.init(adapters)
    gradient = jax.jit(jax.grad(loss))
    generator = np.random.default_rng(0)
    for _ in range(100):
        x, y = (generator.normal(size=(8, size)).astype(np.float32) for size in (4, 3))
        session.step({"x": x, "labels": y})
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(gradient(adapters, x, y), state)
        adapters = cast(dict[str, Any], optax.apply_updates(adapters, updates))
    for name, expected in adapters.items():
        np.testing.assert_allclose(session.variables[name], expected, rtol=1e-4, atol=1e-5)


def test_only_the_adapters_are_trained():
    prepared = make_trainable(convolutional(), adapters=LoRA(rank=2))
    expected = [f"{name}/lora_{suffix}" for name in ("kernel1", "kernel2", "W") for suffix in "AB"]
    assert sorted(trained(prepared)) == sorted(expected)


def test_a_new_head_is_trained_beside_the_adapters():
    model = replace_head(convolutional(), 7)
    prepared = make_trainable(model, adapters=LoRA("kernel*", rank=2), trainable=["W", "b"])
    assert set(trained(prepared)) == {f"kernel{i}/lora_{s}" for i in "12" for s in "AB"} | {"W", "b"}


@pytest.mark.parametrize(("patterns", "expected"), [("W2", {"W2"}), (["W*"], {"W1", "W2"}), ("node:hidden", {"W1"})])
def test_adapters_are_chosen_by_pattern(patterns, expected):
    names = trained(make_trainable(mlp(), adapters=LoRA(patterns)))
    assert {name.split("/")[0] for name in names} == expected


def test_a_weight_that_several_layers_read_gets_no_adapter():
    nodes = [
        node("Gather", ["W", "indices"], ["embedded"]),
        node("Transpose", ["W"], ["turned"]),
        node("MatMul", ["embedded", "turned"], ["scores"]),
    ]
    indices = helper.make_tensor_value_info("indices", TensorProto.INT64, ["N"])
    model = model_of(nodes, [indices], [floats("scores", "N", 6)], [weights("W", 6, 4)])
    with pytest.raises(ModelError, match="that no other layer reads"):
        make_trainable(model, adapters=LoRA("W"))


def test_a_layer_that_the_loss_does_not_depend_on_gets_no_adapter():
    model = mlp()
    model.graph.node.append(node("Gemm", ["hidden", "W3"], ["other"]))
    model.graph.output.append(floats("other", "batch", 2))
    model.graph.initializer.append(weights("W3", 5, 2))
    names = trained(make_trainable(model, output="scores", adapters=LoRA()))
    assert {name.split("/")[0] for name in names} == {"W1", "W2"}


def test_a_model_without_such_layers_is_refused():
    model = model_of(
        [node("PRelu", ["x", "slope"], ["y"])], [floats("x", "N", 3)], [floats("y", "N", 3)], [weights("slope", 3)]
    )
    with pytest.raises(ModelError, match="can have an adapter"):
        make_trainable(model, adapters=LoRA())


@pytest.mark.parametrize("opset", OPSETS)
def test_adapters_with_dropout_are_written_at_every_opset(opset):
    prepared = make_trainable(mlp(opset), adapters=LoRA(rank=2, dropout=0.25))
    onnx.checker.check_model(combined(prepared), full_check=True)
    assert ot.validate(prepared) == []
    dropped = nodes_of(prepared, "Dropout") or nodes_of(prepared, "RandomUniformLike")
    assert len(dropped) == 2


def test_dropout_acts_on_the_adapter_alone_and_only_in_training():
    model = mlp()
    session = trained_session(model, LoRA("W1", rank=2, dropout=0.5))
    inputs = some_input(model)
    labels = {"labels": np.ones_like(infer(model, inputs)[0])}
    losses = set()
    for _ in range(4):
        state = {name: session.variables[name].copy() for name in session.variables}
        losses.add(float(session.step({**inputs, **labels})["loss"]))
        session.variables.update(state)
    assert len(losses) == 4
    session.variables["W1/lora_B"] = np.zeros_like(session.variables["W1/lora_B"])
    (silent,) = session.infer(inputs).values()
    np.testing.assert_allclose(silent, infer(model, inputs)[0], rtol=1e-5, atol=1e-6)


def test_a_reset_that_draws_all_weights_makes_the_adapters_new():
    prepared = make_trainable(mlp(), adapters=LoRA(rank=2), trainable="b2", initialize="he_normal")
    session = ot.TrainingSession(prepared)
    session.variables["W1/lora_B"] = np.ones((2, 5), np.float32)
    session.initialize()
    assert not session.variables["W1/lora_B"].any()
    assert 0 < np.abs(session.variables["W1/lora_A"]).max() <= 0.5  # one over the square root of 4 inputs
    assert not session.variables["b2"].any()


def test_layers_of_one_kind_share_a_function():
    prepared = make_trainable(convolutional(), adapters=LoRA("kernel*", rank=2))
    assert [body.name for body in prepared.functions] == ["ConvWithAdapter"]


def test_adapters_stay_on_request(tmp_path):
    model = mlp()
    session = trained_session(model, LoRA(rank=2))
    session.export(tmp_path / "kept.onnx", keep_adapters=True)
    kept = onnx.load(tmp_path / "kept.onnx")
    onnx.checker.check_model(kept, full_check=True)
    inputs = some_input(model)
    np.testing.assert_allclose(infer(kept, inputs)[0], session.infer(inputs)["scores"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(infer(merge_adapters(kept), inputs)[0], infer(kept, inputs)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_adapters_travel_to_another_copy_of_the_model(dtype, tmp_path):
    pytest.importorskip("safetensors", reason="a file of adapters is in the safetensors format")
    model = mlp(dtype=dtype)
    session = trained_session(model, LoRA("W*", rank=2, alpha=5.0, dropout=0.25))
    session.save(tmp_path / "trained.onnx")
    save_adapters(tmp_path / "trained.onnx", tmp_path / "adapters.safetensors")
    assert (tmp_path / "adapters.safetensors").stat().st_size < 1000
    loaded = load_adapters(mlp(dtype=dtype), tmp_path / "adapters.safetensors")
    onnx.checker.check_model(loaded, full_check=True)
    inputs = some_input(model)
    np.testing.assert_allclose(infer(loaded, inputs)[0], session.infer(inputs)["scores"], rtol=2e-3, atol=2e-3)
    again = make_trainable(loaded, loss="mean_squared_error")
    assert set(trained(again)) == set(trained(onnx.load(tmp_path / "trained.onnx")))
    assert [body.SerializeToString() for body in again.functions] == [
        body.SerializeToString() for body in onnx.load(tmp_path / "trained.onnx").functions
    ]


def saved_adapters(path: Path) -> Path:
    pytest.importorskip("safetensors", reason="a file of adapters is in the safetensors format")
    save_adapters(make_trainable(mlp(), adapters=LoRA(rank=2)), path / "adapters.safetensors")
    return path / "adapters.safetensors"


def test_adapters_do_not_go_on_a_model_of_another_shape(tmp_path):
    with pytest.raises(ModelError, match=r"adapter of 'W2'.*needs \[5, 2\] and \[2, 9\]"):
        load_adapters(replace_head(mlp(), 9), saved_adapters(tmp_path))


def test_adapters_do_not_go_on_another_model(tmp_path):
    with pytest.raises(ModelError, match="adapter for the weight 'W1'"):
        load_adapters(convolutional(), saved_adapters(tmp_path))


def test_adapters_do_not_go_on_adapters(tmp_path):
    path = saved_adapters(tmp_path)
    with pytest.raises(ModelError, match="has adapters already"):
        load_adapters(load_adapters(mlp(), path), path)


def test_a_model_without_adapters_has_none_to_save(tmp_path):
    pytest.importorskip("safetensors", reason="a file of adapters is in the safetensors format")
    with pytest.raises(ModelError, match="has no adapters"):
        save_adapters(make_trainable(mlp()), tmp_path / "none.safetensors")


def test_a_file_of_other_tensors_is_refused(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy", reason="a file of adapters is in the safetensors format")
    safetensors.save_file({"W": np.ones(2, np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match="holds no adapters"):
        load_adapters(mlp(), tmp_path / "other.safetensors")


def test_without_safetensors_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    with pytest.raises(MissingExtraError, match=r"onnxtrain\[adapters\]"):
        save_adapters(mlp(), tmp_path / "adapters.safetensors")


@pytest.mark.parametrize("wrong", [{"rank": 0}, {"dropout": 1.0}])
def test_impossible_adapters_are_refused(wrong):
    with pytest.raises(ModelError, match="rank of 1 or more"):
        LoRA(**wrong)


def test_a_training_model_is_merged_by_export_only():
    with pytest.raises(ModelError, match="Export it for inference first"):
        merge_adapters(make_trainable(mlp(), adapters=LoRA()))
