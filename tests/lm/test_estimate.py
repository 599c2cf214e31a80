"""Smoothing equals KenLM's `lmplz` on a small text, and gives distributions on any text.

`lmplz/*.arpa` is what `lmplz -o N [--prune 0 1] --discount_fallback` of kpu/kenlm made of `small.txt`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from models import SMALL, entries, estimate_text

from megahour.lm.arpa import read_arpa
from megahour.lm.discounts import FALLBACK
from megahour.lm.score import Scorer
from megahour.lm.tokenise import BOUNDARY

EXPECTED = Path(__file__).parent / "lmplz"
words = st.sampled_from(["a", "b", "c", "d", "e"])
texts = st.lists(st.lists(words, min_size=1, max_size=7).map(" ".join), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("name", "order", "prune"),
    [("order1", 1, []), ("order2", 2, []), ("order3", 3, []), ("order5", 5, []), ("order4-prune01", 4, [0, 1])],
)
def test_every_probability_and_backoff_equals_lmplz(name: str, order: int, prune: list[int]) -> None:
    ours = entries(estimate_text(SMALL, order, prune).model)
    theirs = entries(read_arpa(EXPECTED / f"{name}.arpa"))
    assert ours.keys() == theirs.keys()
    assert max(abs(np.subtract(ours[gram], theirs[gram])).max() for gram in theirs) < 2e-6  # lmplz computes in float32


@settings(max_examples=60, deadline=None)
@given(texts, st.integers(1, 4), st.sampled_from([[0], [0, 1], [0, 0, 1], [0, 1, 2]]), st.integers(0, 4), st.data())
def test_probabilities_sum_to_one_after_any_history(
    lines: list[str], order: int, prune: list[int], limit: int, data: st.DataObject
) -> None:
    model = estimate_text(lines, order, prune, limit=limit).model
    scorer, size = Scorer(model), len(model.vocabulary)
    history = [BOUNDARY, *data.draw(st.lists(st.integers(3, size - 1), max_size=4))] if size > 3 else [BOUNDARY]
    predicted = [word for word in range(size) if word != BOUNDARY]
    total = sum(10.0 ** scorer.log10_prob(word, history) for word in predicted)
    assert total == pytest.approx(1.0, abs=2e-5)  # the file has six decimals


@settings(max_examples=20, deadline=None)
@given(texts, st.integers(1, 4), st.sampled_from([[0], [0, 1]]))
def test_threads_change_nothing(lines: list[str], order: int, prune: list[int]) -> None:
    one, two = (entries(estimate_text(lines, order, prune, threads=threads).model) for threads in (1, 2))
    assert one == two


def test_orders_that_cannot_be_estimated_fall_back_and_say_why() -> None:
    estimated = estimate_text(["a b", "a b"], 2)
    assert estimated.discounts == [FALLBACK, FALLBACK]
    assert "no 2-gram has an adjusted count of 1" in estimated.fallbacks[2]
    assert estimate_text(SMALL).fallbacks == {}


def test_words_beyond_the_vocabulary_are_counted_as_unknown() -> None:
    model = estimate_text(SMALL, limit=5).model
    assert set(model.vocabulary.words[3:]) == {"the", "boat", "house", "harbour", "old"}
    unknown = entries(model)[("<unk>",)]
    assert unknown[0] > -1.0  # most of the text
    assert unknown[1] < 0.0  # and a history like any word


@pytest.mark.parametrize(
    ("lines", "order", "prune", "message"),
    [
        ([], 3, [], "text is empty"),
        (["a b"], 0, [], "order 0 is not in 1 … 7"),
        (["a b"], 3, [1], "must begin with 0"),
        (["a b"], 3, [0, 2, 1], "not decrease"),
    ],
)
def test_wrong_requests_name_the_value(lines: list[str], order: int, prune: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate_text(lines, order, prune)
