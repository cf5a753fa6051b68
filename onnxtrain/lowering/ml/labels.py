"""Mapping of values: LabelEncoder and CategoryMapper over arrays, and the operators of maps.

A map is a Python dict, or a list of them for a batch. Maps and strings exist only while tracing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import OperatorError
from onnxtrain.lowering.ml.scores import ML
from onnxtrain.lowering.registry import Array, Floats, Ints, Static, Value, op
from onnxtrain.lowering.static import StaticInputError, is_static, traced


@op("LabelEncoder", domain=ML, folds=True)
def label_encoder_by_position(
    x: Array, *, classes_strings: tuple[str, ...] = (), default_int64: int, default_string: str
) -> Array:
    """Version 1 maps strings to their place in one list, and places to strings."""
    places = np.arange(len(classes_strings), dtype=np.int64)
    names = np.array(classes_strings, object)
    if x.dtype == object:
        return _encode(x, names, places, np.int64(default_int64))
    return _encode(x, places, names, default_string)


@op("LabelEncoder", domain=ML, since=2, folds=True)
def label_encoder(
    x: Array,
    *,
    keys_floats: Floats = (),
    keys_int64s: Ints = (),
    keys_strings: tuple[str, ...] = (),
    keys_tensor: np.ndarray | None = None,
    values_floats: Floats = (),
    values_int64s: Ints = (),
    values_strings: tuple[str, ...] = (),
    values_tensor: np.ndarray | None = None,
    default_float: float,
    default_int64: int,
    default_string: str,
    default_tensor: np.ndarray | None = None,
) -> Array:
    """NaN among the keys matches any NaN; of equal keys the last one counts."""
    keys = _listed(keys_tensor, keys_floats, keys_int64s, keys_strings)
    values = _listed(values_tensor, values_floats, values_int64s, values_strings)
    if default_tensor is not None:
        default = default_tensor.reshape(())[()]
    elif values.dtype == object:
        default = default_string
    else:
        default = values.dtype.type(default_float if values.dtype.kind == "f" else default_int64)
    return _encode(x, keys, values, default)


@op("CategoryMapper", domain=ML, host=True)
def category_mapper(
    x: Static, *, cats_int64s: Ints = (), cats_strings: tuple[str, ...] = (), default_int64: int, default_string: str
) -> np.ndarray:
    numbers, names = np.array(cats_int64s, np.int64), np.array(cats_strings, object)
    if x.dtype == object:
        return _encode(x, names, numbers, np.int64(default_int64))
    return _encode(x, numbers, names, default_string)


@op("DictVectorizer", domain=ML)
def dict_vectorizer(x: Value, *, int64_vocabulary: Ints = (), string_vocabulary: tuple[str, ...] = ()) -> Array:
    """Values of a map in the order of a vocabulary; keys that it lacks give zeros."""
    vocabulary = string_vocabulary or int64_vocabulary
    first = np.asarray(next(iter(x.values())))
    empty = np.array("", object) if first.dtype.kind in "OUS" else first.dtype.type(0)
    return np.array([np.asarray(x.get(key, empty)).reshape(())[()] for key in vocabulary], first.dtype)


@op("CastMap", domain=ML)
def cast_map(x: Value, *, cast_to: str, map_form: str, max_map: int) -> Array:
    """The values of a map [1, n] in the order of their keys; `SPARSE` puts each at the place of its key."""
    convert, missing, dtype = _CASTS[cast_to]
    values = {key: convert(np.asarray(value).reshape(())[()]) for key, value in x.items()}
    if map_form == "SPARSE":
        if any(not 0 <= key < max_map for key in values):
            raise OperatorError(f"The keys {sorted(values)} must be below {max_map}, the attribute 'max_map'.")
        row = [values.get(key, missing) for key in range(max_map)]
    else:
        row = [values[key] for key in sorted(values)]
    return np.array([row], dtype)


@op("ZipMap", domain=ML)
def zip_map(
    x: Array, *, classlabels_int64s: Ints = (), classlabels_strings: tuple[str, ...] = ()
) -> list[Mapping[Any, Any]]:
    """A map for each row, from label to score; the scores may be traced."""
    labels: Sequence[Any] = classlabels_strings or classlabels_int64s
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    if rows.shape[1] != len(labels):
        raise OperatorError(f"There are {len(labels)} labels for {rows.shape[1]} columns.")
    return [{label: row[i] for i, label in enumerate(labels)} for row in rows]


_CASTS: dict[str, tuple[Any, Any, Any]] = {
    "TO_FLOAT": (float, 0.0, np.float32),
    "TO_INT64": (int, 0, np.int64),
    "TO_STRING": (str, "", object),
}


def _listed(tensor: np.ndarray | None, floats: Floats, integers: Ints, strings: Sequence[str]) -> np.ndarray:
    if tensor is not None:
        return tensor.reshape(-1)
    if strings:
        return np.array(strings, object)
    return np.array(floats, np.float32) if floats else np.array(integers, np.int64)


def _encode(x: Any, keys: np.ndarray, values: np.ndarray, default: Any) -> Any:
    if not is_static(x):
        return _encode_traced(x, keys, values, default)
    mapping = {_key(key): value for key, value in zip(keys.tolist(), values.tolist(), strict=True)}
    found = [mapping.get(_key(item), default) for item in x.reshape(-1).tolist()]
    return np.array(found, values.dtype).reshape(x.shape)


def _key(value: Any) -> Any:
    """NaN differs from itself, and would never be found."""
    return "NaN" if isinstance(value, float) and value != value else value


def _encode_traced(x: Any, keys: np.ndarray, values: np.ndarray, default: Any) -> Any:
    if values.dtype == object:
        raise StaticInputError("X", 0)
    candidates = traced(keys.astype(x.dtype))
    same = x[..., None] == candidates
    if jnp.issubdtype(x.dtype, np.floating):
        same = same | (jnp.isnan(x)[..., None] & jnp.isnan(candidates))
    last = len(keys) - 1 - jnp.argmax(same[..., ::-1], axis=-1)
    known = traced(values)
    return jnp.where(same.any(axis=-1), known[last], jnp.asarray(default, known.dtype))
