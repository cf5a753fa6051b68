"""LinearClassifier and LinearRegressor."""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import ModelWarning, OperatorError
from onnxtrain.lowering.ml.scores import ML, as_float, choose_labels, keep_static, transform
from onnxtrain.lowering.registry import Array, Floats, Ints, op


@op("LinearClassifier", domain=ML, folds=True, ignores={"multi_class"})
def linear_classifier(
    x: Array,
    *,
    coefficients: Floats,
    intercepts: Floats = (),
    classlabels_ints: Ints = (),
    classlabels_strings: tuple[str, ...] = (),
    post_transform: str,
) -> tuple[Array, Array]:
    """One row of coefficients for two classes scores the second; the first has the opposite.

    Unsupported: labels that are strings, unless the input is known while tracing.
    """
    count = max(len(classlabels_ints), len(classlabels_strings))

    def classify(x: Any) -> tuple[Any, Any]:
        scores = _product(x, coefficients, intercepts)
        if scores.shape[1] == 1 and count == 2:
            scores = jnp.concatenate([-scores, scores], axis=1)
        scores = transform(scores, post_transform)
        if scores.shape[1] > 1:
            return jnp.argmax(scores, axis=1), scores.astype(np.float32)
        threshold = 0 if post_transform == "NONE" else 0.5
        return (scores[:, 0] < threshold).astype(np.int32), scores.astype(np.float32)

    indices, scores = keep_static(classify, x)
    # A lone class is told from its absence, which has the label 0 or "".
    integers = (*classlabels_ints, 0) if count == 1 else classlabels_ints
    strings = (*classlabels_strings, "") if count == 1 and classlabels_strings else classlabels_strings
    return choose_labels(indices, integers, strings), scores


@op("LinearRegressor", domain=ML)
def linear_regressor(
    x: Array, *, coefficients: Floats = (), intercepts: Floats = (), targets: int, post_transform: str
) -> Array:
    return transform(_product(x, coefficients, intercepts), post_transform).astype(np.float32)


def _product(x: Any, coefficients: Floats, intercepts: Floats) -> Any:
    x = as_float(jnp.asarray(x))
    needed = len(intercepts) * x.shape[1] or len(coefficients)
    if len(coefficients) != needed:
        message = (
            f"{len(coefficients)} coefficients are not {len(intercepts)} rows of {x.shape[1]}, one for each intercept."
        )
        if len(coefficients) < needed:
            raise OperatorError(message)
        warnings.warn(f"{message} The first {needed} are taken, as onnxruntime does.", ModelWarning, stacklevel=2)
    weights = jnp.asarray(np.array(coefficients[:needed]).reshape(-1, x.shape[1]).T, x.dtype)
    scores = jnp.matmul(x, weights)
    return scores + jnp.asarray(intercepts, x.dtype) if intercepts else scores
