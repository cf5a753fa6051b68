"""Fine-tuning an image classifier: a network that reads handwritten digits learns to tell ten kinds of clothes.

python examples/fine_tune_classifier.py mnist-8.onnx fashion_mnist.npz -o fashion.onnx

The model is `mnist-8.onnx` of the ONNX model zoo (26 kB, from CNTK), whose file fixes a batch of one image; any other
classifier of images [N, 1, 28, 28] will do. The data are Fashion-MNIST, from
https://github.com/zalandoresearch/fashion-mnist, as an `.npz` file: uint8 images x_train and x_test [N, 28, 28], and
their classes y_train and y_test [N].

With 20,000 images, ten epochs take 90 s on two busy cores: from 18 % right to 88.2 % of 10,000 held-out images.
"""

from __future__ import annotations

import argparse
import importlib.util
import time

import numpy as np

import onnxtrain as ot
from onnxtrain.authoring.schedules import OneCycle
from onnxtrain.training.evaluation import Evaluator
from onnxtrain.training.fit import Epoch, fit

BATCH_SIZE = 100


def main() -> None:
    """Trains the model of the command line, and says what came of it."""
    arguments = read_arguments()
    training = read_images(arguments.data, "train", arguments.examples)
    held_out = read_images(arguments.data, "test")
    updates = arguments.epochs * -(-len(training["labels"]) // BATCH_SIZE)
    model = ot.make_trainable(
        arguments.model,
        loss="softmax_cross_entropy",
        optimizer="adam",
        learning_rate=OneCycle(peak=0.01, steps=updates),
        free_batch=True,
    )
    session = ot.TrainingSession(model, seed=0)
    (image,) = session.program.infer_inputs  # the name of the only input
    training[image], held_out[image] = training.pop("images"), held_out.pop("images")
    evaluate = Evaluator(session, held_out, batch_size=1000)
    print(f"before: {evaluate()['accuracy']:.1%} of the held-out images are right")

    started = time.perf_counter()
    fit(session, training, epochs=arguments.epochs, batch_size=BATCH_SIZE, on_epoch=print_epoch)
    seconds = time.perf_counter() - started
    print(f"after {seconds:.0f} s: {evaluate()['accuracy']:.1%} of the held-out images are right")

    session.export(arguments.output)
    check_in_onnxruntime(arguments.output, held_out[image], held_out["labels"])


def read_arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Fine-tunes a classifier of 28 x 28 images.")
    parser.add_argument("model", help="the .onnx file")
    parser.add_argument("data", help="the .npz file with x_train, y_train, x_test and y_test")
    parser.add_argument("-o", "--output", default="fine_tuned.onnx", help="where the new model is written")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--examples", type=int, help="how many images to learn from (all)")
    return parser.parse_args()


def read_images(path: str, half: str, count: int | None = None) -> dict[str, np.ndarray]:
    """Images [N, 1, 28, 28] from 0 to 1, and their classes."""
    with np.load(path) as data:
        images, labels = data[f"x_{half}"][:count], data[f"y_{half}"][:count]
    return {"images": images[:, None].astype(np.float32) / 255, "labels": labels.astype(np.int64)}


def print_epoch(epoch: Epoch) -> None:
    """One line on each pass over the data."""
    print(f"epoch {epoch.number}: loss {epoch.training['loss']:.3f} in {epoch.seconds:.0f} s", flush=True)


def check_in_onnxruntime(path: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Runs the exported file where it will be used."""
    if importlib.util.find_spec("onnxruntime") is None:
        print(f"{path} is written; onnxruntime is not installed, so it was not run there")
        return
    import onnxruntime

    runtime = onnxruntime.InferenceSession(path)
    scores = np.asarray(runtime.run(None, {runtime.get_inputs()[0].name: images})[0])
    print(f"{path} in onnxruntime: {np.mean(scores.argmax(axis=1) == labels):.1%} of them are right")


if __name__ == "__main__":
    main()
