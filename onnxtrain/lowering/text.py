"""Operators on text. Strings are never traced: they are computed on the host while the graph is traced."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import OperatorError
from onnxtrain.lowering.registry import Array, Floats, Ints, Static, op
from onnxtrain.lowering.static import cast, is_static, namespace, traced

_CASES = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


@op("StringNormalizer", host=True, ignores={"locale"})
def string_normalizer(
    x: Static, *, case_change_action: str, is_case_sensitive: bool, stopwords: tuple[str, ...] = ()
) -> np.ndarray:
    """Stop words are whole elements. Upper and lower case follow Unicode, whatever the locale."""
    change = _CASES[case_change_action]
    key = str if is_case_sensitive else str.lower
    stops = {key(word) for word in stopwords}
    kept = [change(text) for text in x.reshape(-1).tolist() if key(text) not in stops]
    return np.array(kept or [""], object).reshape((1, -1) if x.ndim == 2 else (-1,))


@op("StringConcat", host=True)
def string_concat(x: Static, y: Static) -> np.ndarray:
    return np.asarray(np.add(x, y), object)


@op("StringSplit", host=True)
def string_split(x: Static, *, delimiter: str = "", maxsplit: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """The parts of each text along a new last axis, padded with empty strings, and how many there are."""
    parts = [text.split(delimiter, maxsplit) if delimiter else text.strip().split(None, maxsplit) for text in x.flat]
    counts = [len(part) for part in parts]
    width = max(counts, default=0)
    padded = [text for part in parts for text in (*part, *[""] * (width - len(part)))]
    return np.array(padded, object).reshape(*x.shape, width), np.array(counts, np.int64).reshape(x.shape)


@op("RegexFullMatch", host=True)
def regex_full_match(x: Static, *, pattern: str = "") -> np.ndarray:
    """Patterns have RE2's syntax, of which Python's `re` understands all but a few escapes and character classes."""
    try:
        # RE2's \d, \w and \s know ASCII only.
        compiled = re.compile(pattern, re.ASCII)
    except re.error as error:
        raise OperatorError(f"Attribute 'pattern' is {pattern!r}, which is no regular expression: {error}.") from error
    return np.array([compiled.fullmatch(text) is not None for text in x.flat], np.bool_).reshape(x.shape)


@op("TfIdfVectorizer", folds=True)
def tf_idf_vectorizer(
    x: Array,
    *,
    mode: str,
    ngram_counts: Ints,
    ngram_indexes: Ints,
    pool_int64s: Ints = (),
    pool_strings: tuple[str, ...] = (),
    weights: Floats = (),
    min_gram_length: int,
    max_gram_length: int,
    max_skip_count: int,
) -> Array:
    """Counts the n-grams of a pool in each row; elements of an n-gram may be up to `max_skip_count` tokens apart.

    Text is counted while tracing; integers may be traced.
    """
    pool = np.array(pool_strings, object) if pool_strings else np.array(pool_int64s, np.int64)
    tokens = x if pool_strings else cast(x, np.int64)
    arrays = namespace(tokens)
    if arrays is not np:
        pool = traced(pool)
    found = arrays.zeros((*x.shape[:-1], len(ngram_indexes)), np.float32)
    ends = (*ngram_counts[1:], len(pool))
    first = 0
    for length, (start, end) in enumerate(zip(ngram_counts, ends, strict=True), 1):
        ngrams = pool[start:end].reshape(-1, length)
        last = first + len(ngrams)
        if min_gram_length <= length <= max_gram_length and len(ngrams):
            counts = _count(tokens, ngrams, max_skip_count if length > 1 else 0)
            found = arrays.concatenate([found[..., :first], counts, found[..., last:]], -1)
        first = last
    return _place(_weigh(found, mode, weights), ngram_indexes)


def _count(tokens: Array, ngrams: Array, skips: int) -> Array:
    """How often each n-gram [N, length] stands in the rows of `tokens`, with every number of skipped tokens."""
    arrays = namespace(tokens)
    length = ngrams.shape[1]
    total = arrays.zeros((*tokens.shape[:-1], len(ngrams)), np.float32)
    for distance in range(1, skips + 2):
        windows = tokens.shape[-1] - (length - 1) * distance
        if windows < 1:
            break
        same = arrays.ones((*tokens.shape[:-1], windows, len(ngrams)), np.bool_)
        for position in range(length):
            start = position * distance
            same = same & (tokens[..., start : start + windows, None] == ngrams[:, position])
        total = total + same.sum(-2).astype(np.float32)
    return total


def _weigh(counts: Array, mode: str, weights: Floats) -> Array:
    factors = np.array(weights, np.float32) if weights else np.float32(1)
    if mode == "TF":
        return counts
    if mode == "IDF":
        return (counts > 0).astype(np.float32) * factors
    if mode == "TFIDF":
        return counts * factors
    raise OperatorError(f"Attribute 'mode' is {mode!r}; it must be 'TF', 'IDF' or 'TFIDF'.")


def _place(counts: Array, indexes: Ints) -> Array:
    """Sends the count of each n-gram to its output; those that share one are added up."""
    shape = (*counts.shape[:-1], max(indexes) + 1)
    if not is_static(counts):
        return jnp.zeros(shape, np.float32).at[..., np.array(indexes)].add(counts)
    placed = np.zeros(shape, np.float32)
    for column, index in enumerate(indexes):
        placed[..., index] += counts[..., column]
    return placed
