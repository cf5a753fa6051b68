"""A network that PyTorch exported and `make_trainable` prepared follows PyTorch's own training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

from onnxtrain import TrainingSession, make_trainable
from tests.parity.twins import distance, stored

torch = pytest.importorskip("torch", reason="PyTorch is the twin (the extra `oracle`)")
pytest.importorskip("onnxscript", reason="PyTorch exports with onnxscript (the extra `oracle`)")

from tests.parity import networks  # noqa: E402  (it needs PyTorch)

STEPS = 20
TOLERANCE = 1e-3
EXACT_TOLERANCE = 1e-6  # for runs in float64
pytestmark = pytest.mark.filterwarnings(  # the exporters warn of their own parts
    "ignore::DeprecationWarning", "ignore::FutureWarning"
)


class AdamOfOnnx(torch.optim.Adam):
    """PyTorch's Adam with epsilon where ONNX has it: added before the correction of bias, not after.

    ONNX's epsilon is PyTorch's times the root of 1 - beta2**T. It is the same in every step here, so PyTorch's falls.
    """

    epsilon = stored(1e-8)
    taken = 0

    def __init__(self, parameters: Any, rate: float):
        super().__init__(parameters, rate, betas=(stored(0.9), stored(0.999)))

    def step(self, closure: Any = None) -> Any:
        self.taken += 1
        for group in self.param_groups:
            group["eps"] = self.epsilon / (1 - group["betas"][1] ** self.taken) ** 0.5
        return super().step(closure)


OPTIMIZERS: dict[str, Callable[[Any, float], Any]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda parameters, rate: torch.optim.SGD(parameters, rate, momentum=stored(0.9)),
    "adam": AdamOfOnnx,
}


@dataclass(frozen=True)
class Batch:
    """Examples and their labels."""

    x: np.ndarray
    labels: np.ndarray


def runs(*quick: tuple[str, str]) -> list[Any]:
    """Every exporter with every optimizer; those that are not quick wait for `pytest -m slow`."""
    return [
        pytest.param(*run, marks=[] if run in quick else pytest.mark.slow)
        for run in product(networks.EXPORTERS, OPTIMIZERS)
    ]


def images(dtype: npt.DTypeLike) -> list[Batch]:
    """Noise, with the picture of its class in each image."""
    generator = np.random.default_rng(0)
    pictures = generator.normal(size=(10, 3, 32, 32))
    labels = generator.integers(0, 10, (STEPS, 16))
    noise = generator.normal(scale=0.5, size=(STEPS, 16, 3, 32, 32))
    return [Batch((pictures[y] + more).astype(dtype), y) for y, more in zip(labels, noise, strict=True)]


def sentences() -> list[Batch]:
    """Tokens that each follow from the first; the labels are the tokens that come next."""
    first = np.random.default_rng(0).integers(0, 31, (STEPS, 8, 1))
    tokens = (3 * first + 5 * np.arange(14)) % 31
    return [Batch(some[:, :-1], some[:, 1:]) for some in tokens]


def train_in_torch(network: Any, optimizer: Any, batches: Sequence[Batch]) -> list[float]:
    network.train()
    losses = []
    for batch in batches:
        scores = network(torch.from_numpy(batch.x)).flatten(0, -2)
        loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(batch.labels).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_here(session: TrainingSession, batches: Sequence[Batch]) -> list[float]:
    return [float(session.step({"x": batch.x, "labels": batch.labels})["loss"]) for batch in batches]


def prepare(
    network: Any, batches: Sequence[Batch], exporter: str, axes: Sequence[str], **recipe: Any
) -> TrainingSession:
    example = torch.from_numpy(batches[0].x[:2])
    return TrainingSession(make_trainable(networks.export(network, example, exporter, axes), **recipe))


def changes(values: Callable[[str], Any], start: dict[str, np.ndarray]) -> np.ndarray:
    """How far tensors have come from where they started, all in one vector."""
    return np.concatenate([(np.asarray(values(name)) - tensor).ravel() for name, tensor in start.items()])


def arrays(network: Any) -> dict[str, np.ndarray]:
    """The state of a network, copied, without its counters of batches."""
    state = network.state_dict().items()
    return {name: value.numpy().copy() for name, value in state if not name.endswith("num_batches_tracked")}


def assert_infers_in_onnxruntime(session: TrainingSession, x: np.ndarray, path: Path) -> None:
    session.export(path)
    onnx.checker.check_model(path, full_check=True)
    ort = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = ort.run(["y"], {"x": x})
    np.testing.assert_allclose(np.asarray(found), session.infer({"x": x})["y"], rtol=1e-4, atol=1e-4)


def values_in_each_channel(network: Any, x: np.ndarray) -> dict[str, int]:
    """For each BatchNormalization, of how many values it takes the mean and variance."""
    counts = {}
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.register_forward_hook(
                lambda _, given, __, name=name: counts.update({name: given[0].numel() // given[0].shape[1]})
            )
    with torch.no_grad():
        network.eval()(torch.from_numpy(x))
    return counts


@pytest.mark.spec("T-11", "T-21", "G-01", "O-01")
@pytest.mark.parametrize(("exporter", "optimizer"), runs(("torchscript", "momentum"), ("dynamo", "adam")))
def test_a_resnet_with_batch_normalization_follows_pytorch(exporter: str, optimizer: str) -> None:
    """In float64: some of the many values before a Relu are so near to 0 that in float32 rounding decides on which side
    they fall. PyTorch's own runs in float32 come to differ by a percent when weights change in their last digit.

    Running variances differ by what they are: PyTorch's are of a sample, divided by N - 1, ONNX's of a population.
    """
    rate = {"sgd": 0.005, "momentum": 0.003, "adam": 3e-4}[optimizer]
    torch.manual_seed(0)
    network, batches = networks.ResNet18().double(), images(np.float64)
    start = arrays(network)
    session = prepare(network, batches, exporter, ["N"], optimizer=optimizer, learning_rate=rate)
    expected = train_in_torch(network, OPTIMIZERS[optimizer](network.parameters(), rate), batches)
    losses = train_here(session, batches)
    np.testing.assert_allclose(losses, expected, rtol=EXACT_TOLERANCE)
    assert losses[-1] < losses[0] / 1.5

    trained = arrays(network)
    for kind in ("weight", "bias", "running_mean"):
        of_kind = {name: value for name, value in start.items() if name.endswith(kind)}
        found = changes(session.variables.__getitem__, of_kind)
        assert distance(found, changes(trained.__getitem__, of_kind)) < EXACT_TOLERANCE
    for layer, count in values_in_each_channel(network, batches[0].x).items():
        name = f"{layer}.running_var"
        kept = 0.9**STEPS  # what is left of the 1 that each running variance starts at
        population, sample = session.variables[name] - kept, trained[name] - kept
        assert distance(population * (count / (count - 1)), sample) < 1e-5  # a file keeps 0.9 in float32
        assert distance(population, sample) == pytest.approx(1 / count, rel=0.01)


@pytest.mark.spec("T-21")
def test_a_resnet_in_float32_takes_every_step_as_pytorch_does(tmp_path: Path) -> None:
    """Each step starts from PyTorch's weights, so that what rounding does to one is not carried to the next."""
    torch.manual_seed(0)
    network, batches = networks.ResNet18(), images(np.float32)
    session = prepare(network, batches, "torchscript", ["N"], optimizer="sgd", learning_rate=0.01)
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    for batch in batches:
        start = {name: value for name, value in arrays(network).items() if "running" not in name}
        session.variables.update(start)
        (expected,) = train_in_torch(network, optimizer, [batch])
        assert train_here(session, [batch]) == pytest.approx([expected], rel=1e-5)
        found = changes(session.variables.__getitem__, start)
        assert distance(found, changes(arrays(network).__getitem__, start)) < 0.02
    assert_infers_in_onnxruntime(session, batches[0].x[:3], tmp_path / "inference.onnx")


@pytest.mark.spec("G-01", "G-09", "O-01")
@pytest.mark.parametrize(("exporter", "optimizer"), runs(("torchscript", "momentum"), ("dynamo", "adam")))
def test_a_gpt_with_tied_embeddings_follows_pytorch(exporter: str, optimizer: str, tmp_path: Path) -> None:
    """The bias of the keys moves no output, since softmax sees differences only: Adam follows the rounding there."""
    rate = {"sgd": 0.1, "momentum": 0.05, "adam": 3e-3}[optimizer]
    torch.manual_seed(0)
    network, batches = networks.Gpt(), sentences()
    start = {name: value for name, value in arrays(network).items() if not name.endswith("project_in.bias")}
    session = prepare(network, batches, exporter, ["N", "T"], optimizer=optimizer, learning_rate=rate)
    expected = train_in_torch(network, OPTIMIZERS[optimizer](network.parameters(), rate), batches)
    losses = train_here(session, batches)
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCE)
    assert losses[-1] < losses[0] / 1.2
    trained = arrays(network)
    found = changes(session.variables.__getitem__, start)
    assert distance(found, changes(trained.__getitem__, start)) < TOLERANCE
    assert_infers_in_onnxruntime(session, batches[0].x[:3, :9], tmp_path / "inference.onnx")


@pytest.mark.spec("O-01")
def test_losses_under_adam_follow_pytorch_although_epsilon_stands_elsewhere() -> None:
    torch.manual_seed(0)
    network, batches = networks.Gpt(), sentences()
    session = prepare(network, batches, "torchscript", ["N", "T"], optimizer="adam", learning_rate=3e-3)
    expected = train_in_torch(network, torch.optim.Adam(network.parameters(), 3e-3), batches)
    np.testing.assert_allclose(train_here(session, batches), expected, rtol=TOLERANCE)
