from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxtrain.errors import OperatorError
from tests.lowering.one_node import run_node


def text(*words: Any) -> np.ndarray:
    return np.array(words, object)


def test_a_row_of_text_stays_a_row_when_nothing_is_left_of_it() -> None:
    (row,) = run_node("StringNormalizer", [text("The", "a").reshape(1, 2)], opset=10, stopwords=("the", "A"))
    assert row.tolist() == [[""]]


def test_stop_words_are_told_by_case_only_when_asked() -> None:
    words = text("The", "the", "Cat")
    (kept,) = run_node("StringNormalizer", [words], opset=10, stopwords=("the",), is_case_sensitive=1)
    (upper,) = run_node("StringNormalizer", [words], opset=10, stopwords=("the",), case_change_action="UPPER")
    assert (kept.tolist(), upper.tolist()) == (["The", "Cat"], ["CAT"])


def test_splitting_by_white_space_ignores_it_at_both_ends() -> None:
    parts, counts = run_node("StringSplit", [text("  a  b c ", "d")], opset=20, outputs=2, maxsplit=1)
    assert parts.tolist() == [["a", "b c"], ["d", ""]]
    assert counts.tolist() == [2, 1]
    assert counts.dtype == np.int64


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(OperatorError, match="no regular expression"):
        run_node("RegexFullMatch", [text("a")], opset=20, pattern="(")


def test_a_digit_in_a_pattern_is_an_ascii_digit() -> None:
    (found,) = run_node("RegexFullMatch", [text("12", "١٢")], opset=20, pattern=r"\d+")
    assert found.tolist() == [True, False]


# 1-grams 2 and 3, 2-grams (2, 3) and (5, 3); the 1-gram 3 and the 2-gram (2, 3) share output 0
GRAMS: dict[str, Any] = {
    "pool_int64s": (2, 3, 2, 3, 5, 3),
    "ngram_counts": (0, 2),
    "ngram_indexes": (2, 0, 0, 1),
    "min_gram_length": 1,
    "max_gram_length": 2,
    "max_skip_count": 1,
}
TOKENS = np.array([[2, 3, 2, 3], [5, 2, 5, 3]], np.int64)


@pytest.mark.parametrize("static_inputs", [(), (0,)], ids=["traced", "static"])
def test_n_grams_that_share_an_output_are_added_up(static_inputs: tuple[int, ...], x64: None) -> None:
    (counted,) = run_node(
        "TfIdfVectorizer", [TOKENS], opset=9, static_inputs=static_inputs, mode="TF", attributes=GRAMS
    )
    assert counted.dtype == np.float32
    np.testing.assert_array_equal(counted, [[2 + 2, 0, 2], [1 + 1, 1, 1]])


@pytest.mark.parametrize(("mode", "expected"), [("IDF", [2, 0, 0.5]), ("TFIDF", [4, 0, 1])])
def test_weights_scale_each_n_gram(mode: str, expected: list[float]) -> None:
    attributes = {**GRAMS, "weights": (0.5, 2.0, 0.0, 1.0)}
    (counted,) = run_node("TfIdfVectorizer", [TOKENS[0].astype(np.int32)], opset=9, mode=mode, attributes=attributes)
    np.testing.assert_array_equal(counted, expected)
