"""Recipes: the arguments of `make_trainable` written as data, in a TOML file.

Every argument stands under its name. What is a number, a text or a list in Python is the same there; an object is a
table that says its kind and its fields:

```toml
loss = "softmax_cross_entropy"
frozen = ["backbone.*"]
clip = 1.0
average = 0.999

[optimizer]
kind = "adam"
beta2 = 0.99

[learning_rate]
kind = "warm_up"
steps = 100
then = { kind = "cosine", start = 1e-3, steps = 5000 }

[[groups]]
weights = "*.bias"
learning_rate_factor = 2.0
```
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx

from onnxtrain.authoring import clipping, schedules
from onnxtrain.authoring.adapters import LoRA
from onnxtrain.authoring.groups import Group
from onnxtrain.authoring.learning_rate import FedRate
from onnxtrain.authoring.loss_scaling import LossScale
from onnxtrain.authoring.losses import LOSSES, Term
from onnxtrain.authoring.optimizers import OPTIMIZERS
from onnxtrain.authoring.prepare import make_trainable
from onnxtrain.errors import ModelError, UnsupportedError
from onnxtrain.graph.write import RECIPE_KEY

Maker = Callable[..., Any]

_RATES: Mapping[str, Maker] = {
    "constant": schedules.Constant,
    "linear": schedules.linear,
    "polynomial": schedules.Polynomial,
    "cosine": schedules.Cosine,
    "exponential": schedules.Exponential,
    "stairs": schedules.Stairs,
    "one_cycle": schedules.OneCycle,
    "warm_up": schedules.WarmUp,
    "fed": FedRate,
}
_CLIPS: Mapping[str, Maker] = {
    "value": clipping.ClipByValue,
    "norm": clipping.ClipByNorm,
    "global_norm": clipping.ClipByGlobalNorm,
}


def read_recipe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The recipe in a TOML file, as plain data.

    Raises:
      ModelError: the file is no TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ModelError(f"{os.fspath(path)} is no TOML file: {error}.") from error


def prepare(model: str | os.PathLike[str] | onnx.ModelProto, recipe: Mapping[str, Any]) -> onnx.ModelProto:
    """`make_trainable` with the arguments of a recipe, which the result keeps in its metadata.

    Args:
      model: a file or a `ModelProto`, which is not changed.
      recipe: plain data, as `read_recipe` gives it.

    Raises:
      UnsupportedError: the recipe names an argument, a kind or a field that does not exist.
      ModelError: as `make_trainable`.
    """
    proto = make_trainable(model, **_arguments(recipe))
    proto.metadata_props.add(key=RECIPE_KEY, value=json.dumps(recipe, sort_keys=True))
    return proto


def _arguments(recipe: Mapping[str, Any]) -> dict[str, Any]:
    known = [name for name in inspect.signature(make_trainable).parameters if name != "model"]
    for name in recipe:
        if name not in known:
            raise UnsupportedError(f"A recipe has no entry {name!r}. Its entries are {', '.join(known)}.")
    return {name: _READERS.get(name, _as_it_is)(name, value) for name, value in recipe.items()}


def _as_it_is(where: str, value: Any) -> Any:
    del where
    return value


def _one_of(makers: Mapping[str, Maker]) -> Callable[[str, Any], Any]:
    """Reads a table of one of these kinds; what is no table stays as it is."""

    def read(where: str, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        kind = str(value.get("kind", ""))
        if kind not in makers:
            raise UnsupportedError(f"{where}.kind is {kind!r} in the recipe. Known are {', '.join(map(repr, makers))}.")
        return _make(where, makers[kind], {name: field for name, field in value.items() if name != "kind"})

    return read


def _read_rate(where: str, value: Any) -> Any:
    if isinstance(value, Mapping) and "then" in value:
        value = {**value, "then": _read_rate(f"{where}.then", value["then"])}
    if isinstance(value, Mapping) and "factors" in value:  # the keys of a TOML table are texts
        value = {**value, "factors": {int(step): factor for step, factor in value["factors"].items()}}
    return _one_of(_RATES)(where, value)


def _read_loss(where: str, value: Any) -> Any:
    if not isinstance(value, list):
        return _LOSS(where, value)
    return [
        _make(f"{where}[{index}]", Term, {name: _read_field(f"{where}[{index}]", name, table[name]) for name in table})
        for index, table in enumerate(value)
    ]


def _read_field(where: str, name: str, value: Any) -> Any:
    return _LOSS(f"{where}.loss", value) if name == "loss" else value


def _read_groups(where: str, value: Any) -> Any:
    return [_make(f"{where}[{index}]", Group, table) for index, table in enumerate(value)]


def _only(maker: Maker) -> Callable[[str, Any], Any]:
    return lambda where, value: _make(where, maker, value)


def _make(where: str, maker: Maker, fields: Mapping[str, Any]) -> Any:
    known = inspect.signature(maker).parameters
    for name in fields:
        if name not in known:
            raise UnsupportedError(f"{where} of the recipe has no field {name!r}. Its fields are {', '.join(known)}.")
    missing = [name for name, field in known.items() if field.default is field.empty and name not in fields]
    if missing:
        raise UnsupportedError(f"{where} of the recipe lacks {', '.join(map(repr, missing))}.")
    return maker(**fields)


def _variants(table: Mapping[str, Any]) -> dict[str, Maker]:
    """By name, what makes an object like the one in a table, with other values in some fields."""
    return {name: _variant_of(known) for name, known in table.items()}


def _variant_of(known: Any) -> Maker:
    def make(**fields: Any) -> Any:
        return dataclasses.replace(known, **fields)

    parameters = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=getattr(known, field.name))
        for field in dataclasses.fields(known)
    ]
    make.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return make


_LOSS = _one_of(_variants(LOSSES))
_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "loss": _read_loss,
    "optimizer": _one_of(_variants(OPTIMIZERS)),
    "learning_rate": _read_rate,
    "clip": _one_of(_CLIPS),
    "loss_scale": _only(LossScale),
    "groups": _read_groups,
    "adapters": _only(LoRA),
}
