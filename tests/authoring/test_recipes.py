"""The arguments of `make_trainable`, written as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxtrain.authoring import (
    Adam,
    ClipByNorm,
    ClipByValue,
    FedRate,
    Group,
    Lion,
    LossScale,
    make_trainable,
    recipes,
    schedules,
)
from onnxtrain.authoring.losses import Huber, Term
from onnxtrain.errors import ModelError, UnsupportedError
from tests.authoring.inference_models import mlp

FILE = """
loss = "softmax_cross_entropy"
frozen = ["W1"]
accumulate = 4
average = 0.99

[optimizer]
kind = "adam"
beta2 = 0.9

[learning_rate]
kind = "warm_up"
steps = 10
then = { kind = "stairs", start = 0.1, factors = { 50 = 0.1, 80 = 0.5 } }

[clip]
kind = "value"
limit = 0.5

[loss_scale]
patience = 7

[[groups]]
weights = "b*"
learning_rate_factor = 2.0
"""
ARGUMENTS: dict[str, Any] = {
    "frozen": ["W1"],
    "accumulate": 4,
    "average": 0.99,
    "optimizer": Adam(beta2=0.9),
    "learning_rate": schedules.WarmUp(10, schedules.Stairs(0.1, {50: 0.1, 80: 0.5})),
    "clip": ClipByValue(0.5),
    "loss_scale": LossScale(patience=7),
    "groups": [Group("b*", learning_rate_factor=2.0)],
}


def test_a_recipe_does_what_the_arguments_do_and_stays_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(FILE)
    recipe = recipes.read_recipe(path)
    made = recipes.prepare(mlp(), recipe)
    expected = make_trainable(mlp(), **ARGUMENTS)
    kept = {entry.key: entry.value for entry in made.metadata_props}
    assert json.loads(kept["onnxtrain.recipe"]) == recipe
    del made.metadata_props[:], expected.metadata_props[:]
    assert made == expected


@pytest.mark.parametrize(
    ("recipe", "arguments"),
    [
        ({}, {}),
        ({"learning_rate": 0.1, "clip": 2.0}, {"learning_rate": 0.1, "clip": 2.0}),
        ({"learning_rate": {"kind": "fed", "default": 0.1}}, {"learning_rate": FedRate(0.1)}),
        (
            {"learning_rate": {"kind": "linear", "start": 0.1, "end": 0.0, "steps": 9}},
            {"learning_rate": schedules.linear(0.1, 0.0, 9)},
        ),
        ({"clip": {"kind": "norm", "limit": 0.1}}, {"clip": ClipByNorm(0.1)}),
        ({"optimizer": "sgd", "loss": "mean_squared_error"}, {"optimizer": "sgd", "loss": "mean_squared_error"}),
        ({"optimizer": {"kind": "momentum"}}, {"optimizer": "momentum"}),
        ({"optimizer": {"kind": "lion", "beta2": 0.9}}, {"optimizer": Lion(beta2=0.9)}),
        ({"loss": {"kind": "huber", "delta": 0.5}}, {"loss": Huber(0.5)}),
        (
            {"loss": [{"weight": 2.0}, {"loss": {"kind": "huber", "delta": 0.5}, "labels": "goal"}]},
            {"loss": [Term(weight=2.0), Term(Huber(0.5), labels="goal")]},
        ),
    ],
)
def test_every_form_of_an_entry_means_its_argument(recipe: dict[str, Any], arguments: dict[str, Any]) -> None:
    made = recipes.prepare(mlp(), recipe)
    del made.metadata_props[:]
    assert made == make_trainable(mlp(), **arguments)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"optimiser": "adam"}, "no entry 'optimiser'. Its entries are loss, optimizer"),
        ({"optimizer": {"kind": "adan"}}, r"optimizer\.kind is 'adan'.*'sgd', 'momentum'"),
        ({"optimizer": {"kind": "adam", "beta3": 0.9}}, "optimizer of the recipe has no field 'beta3'.*beta1, beta2"),
        ({"learning_rate": {"kind": "cosine", "start": 0.1}}, "learning_rate of the recipe lacks 'steps'"),
        ({"learning_rate": {"kind": "warm_up", "steps": 1, "then": {"kind": "up"}}}, r"learning_rate\.then\.kind"),
        ({"groups": [{}, {"rate": 1.0}]}, r"groups\[1\] of the recipe has no field 'rate'"),
        ({"loss_scale": {"begin": 1.0}}, "loss_scale of the recipe has no field 'begin'"),
    ],
)
def test_what_a_recipe_cannot_say_is_refused_with_what_it_can(recipe: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        recipes.prepare(mlp(), recipe)


def test_a_file_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("optimizer = adam")
    with pytest.raises(ModelError, match=r"recipe\.toml is no TOML file"):
        recipes.read_recipe(tmp_path / "recipe.toml")


def test_a_recipe_leaves_no_trace_in_the_exported_model(tmp_path: Path) -> None:
    from onnxtrain import TrainingSession

    TrainingSession(recipes.prepare(mlp(), {"average": 0.9})).export(tmp_path / "out.onnx")
    assert not onnx.load(tmp_path / "out.onnx").metadata_props
