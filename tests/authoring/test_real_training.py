"""Fine-tuning a real model on real data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

import onnxtrain as ot
from onnxtrain.authoring import make_trainable
from tests.authoring.training_graphs import infer

EPOCHS = 5
BATCH_SIZE = 100


def images(values: np.ndarray) -> np.ndarray:
    return values[:, None].astype(np.float32) / 255


def test_a_digit_classifier_with_a_fixed_batch_learns_fashion(models_dir: Path, data_dir: Path, tmp_path: Path):
    model = models_dir / "mnist_cntk_op8" / "model.onnx"  # [1, 1, 28, 28], with the batch inside a Reshape
    data = np.load(data_dir / "fashion_mnist.npz")
    x, labels = images(data["x_train"]), data["y_train"].astype(np.int64)
    held_out, expected = images(data["x_test"]), data["y_test"]
    prepared = make_trainable(model, free_batch=True, learning_rate=3e-3)
    assert np.mean(infer(prepared, {"Input3": held_out})[0].argmax(1) == expected) < 0.25

    session = ot.TrainingSession(prepared, seed=0)
    generator = np.random.default_rng(0)
    for _ in range(EPOCHS):
        for chosen in generator.permutation(len(x)).reshape(-1, BATCH_SIZE):
            session.step({"Input3": x[chosen], "labels": labels[chosen]})

    session.export(tmp_path / "fashion.onnx")
    scores = session.infer({"Input3": held_out})["Plus214_Output_0"]
    right = np.mean(np.asarray(scores).argmax(1) == expected)
    exported = infer(onnx.load(tmp_path / "fashion.onnx"), {"Input3": held_out})[0]
    assert right > 0.85
    assert np.mean(exported.argmax(1) == expected) == right
