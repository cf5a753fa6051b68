"""Options of `prepare` that alter the model first, or say where its weights begin and what is trained beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxtrain.authoring.head import replace_head
from onnxtrain.authoring.initializers import Initialization
from onnxtrain.authoring.quantization import fake_quantize
from onnxtrain.authoring.schemes import KEEP
from onnxtrain.authoring.surgery import cut

if TYPE_CHECKING:
    import onnx

Classes = Annotated[
    int | None,
    typer.Option(
        "--classes", min=1, metavar="N", help="Give the classifier a new last layer, for N classes.", show_default=False
    ),
]
Cut = Annotated[
    list[str] | None,
    typer.Option(
        "--cut",
        metavar="NAME",
        help="End the model at this value inside it; may be repeated, for several outputs.",
        show_default=False,
    ),
]
Initialize = Annotated[
    list[str] | None,
    typer.Option(
        "--initialize",
        metavar="SCHEME",
        help="What `init` does with the weights: keep, or draw them by glorot_, he_ or lecun_ uniform or normal, "
        "orthogonal, normal:STD, truncated_normal:STD, uniform:BOUND, zeros or ones. PATTERN=SCHEME means "
        "the weights that match; may be repeated. \\[default: keep]",
        show_default=False,
    ),
]
Adapt = Annotated[
    list[str] | None,
    typer.Option(
        "--lora",
        metavar="PATTERN",
        help="Train low-rank adapters beside the weights that match, instead of the weights; may be repeated.",
        show_default=False,
    ),
]
Rank = Annotated[int, typer.Option("--lora-rank", min=1, help="The rank of the adapters.")]
Alpha = Annotated[float, typer.Option("--lora-alpha", help="Adapters are scaled by alpha / rank.")]
AdapterDropout = Annotated[
    float, typer.Option("--lora-dropout", min=0, max=0.99, help="The share of its inputs that an adapter drops.")
]
QuantizeOn = Annotated[
    Path | None,
    typer.Option(
        "--quantize",
        metavar="FILE.npz",
        help="Train for int8: round as the int8 model that `export` then writes, in ranges measured on these examples.",
        show_default=False,
    ),
]


def altered(
    model: Path,
    *,
    cut_at: Sequence[str] | None,
    classes: int | None,
    output: str | None,
    quantize_on: Path | None,
) -> Path | onnx.ModelProto:
    """The model with another end, a new head and rounded values, as far as these are asked for."""
    result: Path | onnx.ModelProto = model
    if cut_at:
        result = cut(result, cut_at)
    if classes is not None:
        result = replace_head(result, classes, output)
    if quantize_on is not None:
        from onnxtrain.training.calibration import calibrate  # imports JAX
        from onnxtrain.training.data import read_npz

        ranges = calibrate(result, read_npz(quantize_on), source=str(quantize_on))
        result = fake_quantize(result, ranges)
    return result


def initialization(options: Iterable[str]) -> Initialization:
    """What the values of `--initialize` mean: those with a pattern come first, one without is for all other weights."""
    schemes: dict[str, str] = {}
    rest = KEEP
    for option in options:
        pattern, _, scheme = option.rpartition("=")
        if pattern:
            schemes[pattern] = scheme
        else:
            rest = scheme
    return {**schemes, **({} if rest == KEEP else {"*": rest})} if schemes else rest


def adapters(patterns: Sequence[str] | None, rank: int, alpha: float, dropout: float) -> dict[str, Any] | None:
    """The adapters that are asked for, as a recipe says it."""
    if not patterns:
        return None
    return {"weights": list(patterns), "rank": rank, "alpha": alpha, "dropout": dropout}
