"""Fine-tuning an inference model: freeze the first layer, train the rest, export.

python examples/fine_tuning.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import onnxtrain as ot
from onnxtrain.training.evaluation import Evaluator
from onnxtrain.training.fit import fit


def make_classifier(path: Path) -> None:
    """Stands for the file that you have: two inputs, a hidden layer, and scores for two classes."""
    generator = np.random.default_rng(0)
    shapes = {"hidden.weight": (2, 64), "hidden.bias": (64,), "head.weight": (64, 2), "head.bias": (2,)}
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["points", "hidden.weight", "hidden.bias"], ["hidden"]),
            helper.make_node("Relu", ["hidden"], ["active"]),
            helper.make_node("Gemm", ["active", "head.weight", "head.bias"], ["scores"]),
        ],
        "classifier",
        [helper.make_tensor_value_info("points", TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 2])],
        [numpy_helper.from_array(generator.normal(size=s).astype(np.float32), n) for n, s in shapes.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def make_data(size: int, seed: int) -> dict[str, np.ndarray]:
    """Points in a square; the class says whether they are inside a circle."""
    points = np.random.default_rng(seed).uniform(-1, 1, (size, 2)).astype(np.float32)
    return {"points": points, "labels": (np.hypot(*points.T) < 0.7).astype(np.int64)}


with TemporaryDirectory() as directory:
    given, tuned = Path(directory, "given.onnx"), Path(directory, "tuned.onnx")
    make_classifier(given)

    model = ot.make_trainable(
        given, loss="softmax_cross_entropy", optimizer="adam", learning_rate=0.01, frozen="hidden.*"
    )
    session = ot.TrainingSession(model, seed=0)
    evaluate = Evaluator(session, make_data(1000, seed=2))
    print("before:", evaluate())

    history = fit(session, make_data(1000, seed=1), epochs=20, batch_size=50)
    losses = [epoch.training["loss"] for epoch in history.epochs]
    print(f"loss in the first epoch: {losses[0]:.3f}, in the last: {losses[-1]:.3f}")
    print("after:", evaluate())
    assert evaluate()["accuracy"] > 0.95

    session.export(tuned)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(tuned).graph.initializer}
    frozen = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(given).graph.initializer}
    assert np.array_equal(weights["hidden.weight"], frozen["hidden.weight"])
    assert not np.array_equal(weights["head.weight"], frozen["head.weight"])
