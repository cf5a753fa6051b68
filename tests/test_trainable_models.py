"""Real inference models train: the loss falls, a saved run goes on exactly, and onnxruntime runs what is exported."""

from __future__ import annotations

import pytest

from tests.test_real_models import NAMES, TABLE
from tests.trainable_models import DOCUMENT, Refusal, Result, train

# One of each kind of exporter, and all that are refused; the others are slow together.
QUICK = {
    "atspm_head",
    "atspm_lgbm_function",
    "gh_keras_mlp_dynamic",
    "mnist_cntk_op8",
    "mnist_qdq_u8s8",
    "ort_logreg_iris",
    "oww_hey_jarvis",
    "surfaces_knn_clf_mlp",
    "surfaces_validity_tree",
}

pytestmark = pytest.mark.skipif(not NAMES, reason="set ONNXTRAIN_MODELS to a folder with real models")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]
)
def test_a_real_model_trains_or_says_why_not(name: str) -> None:
    result = train(name)
    if name in TABLE["untrainable"]:
        assert isinstance(result, Refusal)
        assert TABLE["untrainable"][name] in result.reason
    else:
        assert isinstance(result, Result)


def test_every_real_model_stands_in_the_document() -> None:
    rows = {line.split(" | ")[0].removeprefix("| ") for line in DOCUMENT.read_text("utf-8").splitlines()}
    assert set(NAMES) <= rows


def test_the_table_names_models_of_the_folder() -> None:
    listed = {*TABLE["classifiers"], *TABLE["trained_output"], *TABLE["untrainable"], *QUICK}
    assert listed <= set(NAMES)
