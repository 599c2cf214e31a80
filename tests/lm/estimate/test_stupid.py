"""Stupid back-off: relative frequencies of n-grams, counted here with a dictionary."""

from __future__ import annotations

from collections import Counter
from math import log10

import pytest
from by_definition import by_hand
from hypothesis import given, settings
from hypothesis import strategies as st
from models import SMALL, entries, estimate_text

from megahour.lm.arpa.model import NEVER
from megahour.lm.estimate.stupid import LOG10_ALPHA

words = st.sampled_from(["a", "b", "c"])
texts = st.lists(st.lists(words, max_size=6).map(" ".join), min_size=1, max_size=10)


def expected(lines: list[str], order: int, cutoffs: list[int]) -> dict[tuple[str, ...], tuple[float, float]]:
    counts = by_hand(lines, order)
    del counts[("<s>",)]
    histories: Counter[tuple[str, ...]] = Counter()
    for gram, n in counts.items():
        histories[gram[:-1]] += n
    limits = [*cutoffs, *[cutoffs[-1]] * order]
    found = {("<unk>",): (NEVER, 0.0), ("<s>",): (0.0, LOG10_ALPHA if order > 1 else 0.0)}
    for gram, n in counts.items():
        if n > limits[len(gram) - 1]:
            weight = LOG10_ALPHA if len(gram) < order and gram[-1] != "</s>" else 0.0
            found[gram] = (log10(n / histories[gram[:-1]]), weight)
    return found


@settings(max_examples=60)
@given(texts, st.integers(1, 4), st.sampled_from([[0], [0, 1], [0, 0, 2]]))
def test_scores_are_relative_frequencies(lines: list[str], order: int, cutoffs: list[int]) -> None:
    found = entries(estimate_text(lines, order, cutoffs, smoothing="stupid").model)
    wanted = expected(lines, order, cutoffs)
    assert found.keys() == wanted.keys()
    assert all(found[gram] == pytest.approx(wanted[gram], abs=1e-5) for gram in wanted)


def test_a_list_of_allowed_words_is_refused() -> None:
    with pytest.raises(ValueError, match="does not take allowed words"):
        estimate_text(SMALL, listed=["boat"], smoothing="stupid")
