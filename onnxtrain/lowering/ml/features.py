"""Preparation of features: scaling, normalizing, imputing, selecting and one-hot encoding."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import OperatorError
from onnxtrain.lowering.ml.scores import ML, as_float
from onnxtrain.lowering.registry import Array, Floats, Ints, op
from onnxtrain.lowering.static import is_static, magnitude, namespace


@op("Scaler", domain=ML)
def scaler(x: Array, *, scale: Floats = (), offset: Floats = ()) -> Array:
    """(x - offset) * scale, in float32; an absent one changes nothing."""
    x = as_float(x)
    shifted = x - jnp.asarray(offset or (0.0,), x.dtype)
    return (shifted * jnp.asarray(scale or (1.0,), x.dtype)).astype(np.float32)


@op("Normalizer", domain=ML)
def normalizer(x: Array, *, norm: str) -> Array:
    """Divides each row by its largest value, its sum of magnitudes, or its length; a row of zeros stays as it is."""
    x = as_float(jnp.asarray(x))
    if norm == "MAX":
        divisor = jnp.max(x, axis=-1, keepdims=True)
    elif norm == "L1":
        divisor = jnp.sum(magnitude(x), axis=-1, keepdims=True)
    elif norm == "L2":
        squares = jnp.sum(x * x, axis=-1, keepdims=True)
        # The square root of 0 has no finite gradient.
        divisor = jnp.where(squares == 0, 0, jnp.sqrt(jnp.where(squares == 0, 1, squares)))
    else:
        raise OperatorError(f"Attribute 'norm' is {norm!r}; it must be 'MAX', 'L1' or 'L2'.")
    return (x / jnp.where(divisor == 0, 1, divisor)).astype(np.float32)


@op("Binarizer", domain=ML)
def binarizer(x: Array, *, threshold: float) -> Array:
    return (as_float(jnp.asarray(x)) > threshold).astype(x.dtype)


@op("Imputer", domain=ML)
def imputer(
    x: Array,
    *,
    imputed_value_floats: Floats = (),
    imputed_value_int64s: Ints = (),
    replaced_value_float: float,
    replaced_value_int64: int,
) -> Array:
    """Replaces one value, which may be NaN, by another, or by one for each column."""
    if jnp.issubdtype(x.dtype, np.integer):
        missing, values = x == replaced_value_int64, imputed_value_int64s
    else:
        missing = jnp.isnan(x) if math.isnan(replaced_value_float) else x == replaced_value_float
        values = imputed_value_floats
    if len(values) not in (1, x.shape[-1]):
        raise OperatorError(f"There are {len(values)} values to impute for {x.shape[-1]} columns.")
    return jnp.where(missing, jnp.asarray(values, x.dtype), x)


@op("FeatureVectorizer", domain=ML, ignores={"inputdimensions"})
def feature_vectorizer(*x: Array) -> Array:
    """Concatenates the columns of all inputs; a vector counts as one row."""
    columns = [jnp.asarray(value).astype(np.float32) for value in x]
    return jnp.concatenate([value.reshape(1, -1) if value.ndim == 1 else value for value in columns], axis=1)


@op("ArrayFeatureExtractor", domain=ML, folds=True)
def array_feature_extractor(x: Array, y: Array) -> Array:
    """Columns by their index, counted along the last axis; a vector counts as one row."""
    arrays = namespace(x, y)
    found = arrays.take(x, y.reshape(-1), axis=-1)
    return found.reshape(1, -1) if x.ndim == 1 else found


@op("OneHotEncoder", domain=ML, folds=True)
def one_hot_encoder(x: Array, *, cats_int64s: Ints = (), cats_strings: tuple[str, ...] = (), zeros: bool) -> Array:
    """Undefined in ONNX: without `zeros` an unknown category is an error, which a traced input cannot raise."""
    categories = np.array(cats_strings, object) if cats_strings else np.array(cats_int64s, np.int64)
    if cats_strings:
        found = x[..., None] == categories
    else:
        arrays = namespace(x)
        whole = x.astype(np.int32) if jnp.issubdtype(x.dtype, np.floating) else x
        found = whole[..., None] == arrays.asarray(categories, whole.dtype)
    if not zeros and is_static(found) and not found.any(axis=-1).all():
        raise OperatorError("The input holds a category that is not listed, and attribute 'zeros' is 0.")
    return found.astype(np.float32)
