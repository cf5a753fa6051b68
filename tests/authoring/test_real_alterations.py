"""Real models get new heads, adapters and integer weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxtrain as ot
from onnxtrain.authoring import LoRA, fake_quantize, free_batch, make_trainable, replace_head
from onnxtrain.training.calibration import calibrate
from onnxtrain.training.fit import fit
from tests.authoring.test_quantization import operators_in_onnxruntime
from tests.authoring.training_graphs import infer, trained

HEADS = {
    "mnist_cntk_op8": "a kernel that is stored in another shape, IR version 3",
    "magika_v3_3": "a Softmax in parts, with the maximum taken off first",
    "mtcnn_pnet": "a convolution, a Transpose and a Softmax",
    "ppocr_cls_v2": "a MatMul and an Add, with scales of 1 around them",
    "gh_cifar_resnet20_op7": "a Gemm after a pooled convolution",
}


@pytest.mark.parametrize("name", HEADS)
def test_the_head_of_a_real_classifier_is_replaced(name: str, models_dir: Path):
    model = onnx.load(models_dir / name / "model.onnx")
    changed = replace_head(model, 7, model.graph.output[0].name)
    onnx.checker.check_model(changed, full_check=True)
    sample = np.load(models_dir / name / "io.npz")
    stored = {tensor.name for tensor in changed.graph.initializer}
    inputs = [value.name for value in changed.graph.input if value.name not in stored]
    found = infer(changed, {value: sample[f"in{index}"] for index, value in enumerate(inputs)})[0]
    assert 7 in found.shape
    assert found.ndim == sample["out0"].ndim
    assert np.isfinite(found).all()


def test_adapters_of_a_real_network_learn_and_merge(models_dir: Path, tmp_path: Path):
    path = models_dir / "gh_cifar_resnet20_op7" / "model.onnx"
    prepared = make_trainable(path, adapters=LoRA(rank=4), learning_rate=1e-3)
    assert all("/lora_" in name for name in trained(prepared))
    image = np.load(path.with_name("io.npz"))["in0"]
    name = next(value.name for value in prepared.graph.input)
    session = ot.TrainingSession(prepared, seed=0)
    losses = [float(session.step({name: image, "labels": np.array([3])})["loss"]) for _ in range(4)]
    assert losses[-1] < losses[0]

    session.export(tmp_path / "merged.onnx")
    merged = onnx.load(tmp_path / "merged.onnx")
    assert [node.op_type for node in merged.graph.node] == [node.op_type for node in onnx.load(path).graph.node]
    (expected,) = session.infer({name: image}).values()
    np.testing.assert_allclose(infer(merged, {name: image})[0], expected, rtol=1e-3, atol=1e-4)


def test_a_real_digit_classifier_keeps_its_accuracy_in_int8(models_dir: Path, data_dir: Path, tmp_path: Path):
    data = np.load(data_dir / "mnist_5k.npz")
    images, labels = data["x"][:, None].astype(np.float32), data["y"].astype(np.int64)
    training = {"Input3": images[:4000], "labels": labels[:4000]}
    model = free_batch(models_dir / "mnist_cntk_op8" / "model.onnx")
    ranges = calibrate(model, {name: array[:300] for name, array in training.items()})
    session = ot.TrainingSession(make_trainable(fake_quantize(model, ranges), learning_rate=1e-5), seed=0)
    fit(session, training, epochs=1, batch_size=100)
    session.export(tmp_path / "int8.onnx")

    int8, held_out = onnx.load(tmp_path / "int8.onnx"), {"Input3": images[4000:]}
    right = [np.mean(infer(one, held_out)[0].argmax(1) == labels[4000:]) for one in (model, int8)]
    assert right[0] > 0.97
    assert right[1] > right[0] - 0.01
    assert "QLinearConv" in operators_in_onnxruntime(tmp_path / "int8.onnx")
    kinds = {numpy_helper.to_array(tensor).dtype.name for tensor in int8.graph.initializer if len(tensor.dims) == 4}
    assert "int8" in kinds
