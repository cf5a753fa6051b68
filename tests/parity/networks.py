"""Two networks in PyTorch, small but with the parts of the real ones, and how to export them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import onnx
import torch
from torch import nn
from torch.nn import functional

EXPORTERS = ("torchscript", "dynamo")


class ResidualBlock(nn.Module):
    """Two convolutions, and a shortcut round them."""

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 with an eighth of its channels: the stem, four stages of two blocks, the head."""

    def __init__(self, width: int = 8, classes: int = 10):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks, channels_in = [], width
        for stage in range(4):
            channels = width * 2**stage
            blocks.append(ResidualBlock(channels_in, channels, 1 if stage == 0 else 2))
            blocks.append(ResidualBlock(channels, channels, 1))
            channels_in = channels
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels_in, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.blocks(self.stem(x))).flatten(1))


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project_in(x).chunk(3, -1)]
        mixed = functional.scaled_dot_product_attention(*split, is_causal=True)
        return self.project_out(mixed.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Attention and a layer of neurons, each behind its normalization."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.normalize_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.normalize_2 = nn.LayerNorm(width)
        self.neurons = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.normalize_1(x))
        return x + self.neurons(self.normalize_2(x))


class Gpt(nn.Module):
    """GPT-2 with two layers; its last layer is the embedding of the tokens once more, the same tensor."""

    def __init__(self, vocabulary: int = 31, context: int = 16, width: int = 32, heads: int = 4):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(TransformerBlock(width, heads), TransformerBlock(width, heads))
        self.normalize = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.positions(positions))
        return self.normalize(x) @ self.tokens.weight.T


def export(network: nn.Module, example: torch.Tensor, exporter: str, free_axes: Sequence[str]) -> onnx.ModelProto:
    """The network in inference mode as an ONNX model, its weights untouched.

    Both exporters would fold BatchNormalization into the convolutions, and weights into what is computed of them alone,
    if they were not told to leave that: what is trained must still be there.
    """
    network.eval()
    names: dict[str, Any] = {"input_names": ["x"], "output_names": ["y"]}
    axes = dict(enumerate(free_axes))
    if exporter == "dynamo":
        shapes = ({axis: torch.export.Dim(name) for axis, name in axes.items()},)
        program = torch.onnx.export(
            network, (example,), dynamo=True, optimize=False, dynamic_shapes=shapes, verbose=False, **names
        )
        assert program is not None
        return program.model_proto
    file: Any = io.BytesIO()  # a buffer will do, although the annotation asks for a path
    torch.onnx.export(
        network,
        (example,),
        file,
        dynamo=False,
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
        dynamic_axes={"x": axes},
        **names,
    )
    return onnx.load_from_string(file.getvalue())
