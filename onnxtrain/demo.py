"""The main job on real data, from nothing: a network for handwritten digits, in about a minute."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, checker, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from rich.console import Console

import onnxtrain as ot
from onnxtrain.errors import OnnxTrainError, missing_extra
from onnxtrain.training.data import write_npz
from onnxtrain.training.evaluation import Evaluator
from onnxtrain.training.fit import Epoch, fit
from onnxtrain.training.plots import plot_history, require_plots
from onnxtrain.training.prediction import predict
from onnxtrain.training.progress import ProgressLine, describe_measures

EPOCHS = 20
BATCH_SIZE = 64
LEARNING_RATE = 2e-3
SCHEME = "he_normal"
HELD_OUT = 450
GOAL = 0.97  # the share of held-out digits that must be right at the end


class DemoError(OnnxTrainError):
    """The demo ran to its end, but the result is not what it should be."""


def run(directory: Path, console: Console) -> None:
    """Builds, prepares, initializes, trains, evaluates, exports and checks a model; the files stay in the directory.

    Raises:
      MissingExtraError: scikit-learn or matplotlib is not installed.
      DemoError: the trained model is not as good as it should be, or the exported one gives other outputs.
    """
    training, held_out = load_digits()
    curve = directory / "learning_curve.png"
    require_plots(curve)
    directory.mkdir(parents=True, exist_ok=True)
    narrator = Narrator(console, directory)

    narrator.begin("Real data", f"{len(training['labels']):,} handwritten digits to learn from, {HELD_OUT} held out")
    write_npz(narrator.file("digits.npz"), training)
    write_npz(narrator.file("held_out.npz"), held_out)

    narrator.begin("A plain inference model", "convolutions, BatchNormalization, Dropout; random weights")
    onnx.save(build_network(), narrator.file("network.onnx"))

    narrator.begin("Prepare it", "loss, gradients and Adam become part of the file, as ONNX training information")
    narrator.command(
        f"prepare network.onnx -o training.onnx --optimizer adam --lr {LEARNING_RATE} --initialize {SCHEME}"
    )
    prepared = ot.make_trainable(
        directory / "network.onnx",
        loss="softmax_cross_entropy",
        optimizer="adam",
        learning_rate=LEARNING_RATE,
        initialize=SCHEME,
    )
    onnx.save(prepared, narrator.file("training.onnx"))

    narrator.begin("Initialize it", "the initialization graph draws new weights")
    narrator.command("init training.onnx -o training.onnx")
    session = ot.TrainingSession(directory / "training.onnx")
    session.initialize()
    session.save(narrator.file("training.onnx"))

    narrator.begin("Train it", f"{EPOCHS} times through the digits")
    narrator.command(
        f"train training.onnx -o trained.onnx --data digits.npz --validation held_out.npz --epochs {EPOCHS} "
        f"--batch-size {BATCH_SIZE} --plot {curve.name}"
    )
    _train(session, training, held_out, console, narrator.file("trained.onnx"), narrator.file(curve.name))

    narrator.begin("Evaluate it", "on digits that it has not seen")
    narrator.command("evaluate trained.onnx --data held_out.npz")
    measures = Evaluator(session, held_out, source="the held-out digits")()
    console.print(f"  {describe_measures(measures)}")

    narrator.begin("Export it", "an ordinary inference model again, with the new weights")
    narrator.command("export trained.onnx -o better_network.onnx")
    exported = narrator.file("better_network.onnx")
    session.export(exported)

    narrator.begin("Check the exported file", "the same answers elsewhere")
    runtime, logits = run_elsewhere(exported, held_out["image"])
    _compare(logits, predict(session, {"image": held_out["image"]})["logits"])
    right = float(np.mean(logits.argmax(axis=1) == held_out["labels"]))
    console.print(f"  onnx.checker accepts it; {runtime} gives the same outputs: {right:.2%} of held-out digits right")
    if right < GOAL:
        raise DemoError(f"The trained model recognises {right:.2%} of the held-out digits; {GOAL:.0%} were expected.")
    narrator.end()


class Narrator:
    """Says what the demo does, step by step, and which command would do the same."""

    def __init__(self, console: Console, directory: Path):
        self._console = console
        self._directory = directory
        self._steps = 0

    def begin(self, title: str, explanation: str) -> None:
        """Announces a step."""
        self._steps += 1
        self._console.print(f"\n{self._steps}. {title}: {explanation}", style="bold")

    def command(self, arguments: str) -> None:
        """Shows the command that does what this step does."""
        self._console.print(f"  $ onnxtrain {arguments}", style="cyan")

    def file(self, name: str) -> Path:
        """The path of a file that this step writes, which is announced."""
        self._console.print(f"  -> {self._directory / name}", style="dim")
        return self._directory / name

    def end(self) -> None:
        """Says where everything is."""
        self._console.print(
            f"\nAll files are in {self._directory}. Try: onnxtrain inspect {self._directory}/trained.onnx"
        )


def load_digits() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Scikit-learn's handwritten digits, shuffled: those to learn from, and those held out.

    Each half holds `image`, float32 [N, 1, 8, 8] from 0 to 1, and `labels`, int64 [N].

    Raises:
      MissingExtraError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise missing_extra("scikit-learn", "demo", "The demo") from error
    images, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    arrays = {
        "image": (images[order].reshape(-1, 1, 8, 8) / images.max()).astype(np.float32),
        "labels": labels[order].astype(np.int64),
    }
    training = {name: array[HELD_OUT:] for name, array in arrays.items()}
    return training, {name: array[:HELD_OUT] for name, array in arrays.items()}


def build_network() -> onnx.ModelProto:
    """A small convolutional network as an exporter would write it: `image` [N, 1, 8, 8] in, `logits` [N, 10] out."""
    weights = _random_weights(
        {
            "conv1.weight": (16, 1, 3, 3),
            "conv2.weight": (32, 16, 3, 3),
            "dense.weight": (64, 32 * 4 * 4),
            "dense.bias": (64,),
            "head.weight": (10, 64),
            "head.bias": (10,),
        }
    )
    nodes = [
        *_convolution("conv1", "image", 16, weights),
        *_convolution("conv2", "conv1.out", 32, weights),
        helper.make_node("MaxPool", ["conv2.out"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "dense.weight", "dense.bias"], ["dense.sum"], transB=1),
        helper.make_node("Relu", ["dense.sum"], ["dense.out"]),
        helper.make_node("Dropout", ["dense.out", "dropout.ratio"], ["kept"]),
        helper.make_node("Gemm", ["kept", "head.weight", "head.bias"], ["logits"], transB=1),
    ]
    weights["dropout.ratio"] = np.array(0.25, np.float32)
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _random_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {name: (0.05 * generator.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def _convolution(name: str, source: str, channels: int, weights: dict[str, np.ndarray]) -> list[NodeProto]:
    """A convolution with BatchNormalization and Relu, whose output is `<name>.out`; adds what it needs to `weights`."""
    for statistic, value in (("scale", 1), ("shift", 0), ("mean", 0), ("variance", 1)):
        weights[f"{name}.{statistic}"] = np.full(channels, value, np.float32)
    normalization = [f"{name}.{part}" for part in ("sum", "scale", "shift", "mean", "variance")]
    return [
        helper.make_node("Conv", [source, f"{name}.weight"], [f"{name}.sum"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", normalization, [f"{name}.normal"]),
        helper.make_node("Relu", [f"{name}.normal"], [f"{name}.out"]),
    ]


def _train(
    session: ot.TrainingSession,
    training: Mapping[str, np.ndarray],
    held_out: Mapping[str, np.ndarray],
    console: Console,
    trained: Path,
    curve: Path,
) -> None:
    def finish_epoch(epoch: Epoch) -> None:
        session.save(trained)
        line.print_epoch(epoch, EPOCHS)

    with ProgressLine(console) as line:
        history = fit(
            session,
            training,
            epochs=EPOCHS,
            batch_size=BATCH_SIZE,
            validation=held_out,
            on_epoch=finish_epoch,
            on_step=line.show_step,
        )
    plot_history(history, curve, title="Handwritten digits")


def run_elsewhere(path: Path, images: np.ndarray) -> tuple[str, np.ndarray]:
    """Checks a file and runs it without onnxtrain: the name of the runtime, and the logits.

    That is onnxruntime where it is installed, and the reference implementation of ONNX otherwise.
    """
    checker.check_model(str(path), full_check=True)
    if importlib.util.find_spec("onnxruntime"):
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return "onnxruntime", np.asarray(session.run(["logits"], {"image": images})[0])
    outputs = cast(Sequence[np.ndarray], ReferenceEvaluator(str(path)).run(["logits"], {"image": images}))
    return "onnx.reference", outputs[0]


def _compare(found: np.ndarray, expected: np.ndarray) -> None:
    error = float(np.abs(found - expected).max())
    if not np.allclose(found, expected, rtol=1e-3, atol=1e-3):
        raise DemoError(f"The exported model gives other outputs than the session: they differ by up to {error:.3g}.")
