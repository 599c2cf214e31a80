"""Smoothing equals KenLM's `lmplz` on a small text, and gives distributions on any text.

`lmplz/*.arpa` is what `lmplz -o N [--prune 0 1] [--limit_vocab_file limited.words.txt] --discount_fallback` of
kpu/kenlm made of `small.txt`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_definition import total_after_a_history
from hypothesis import given, settings
from hypothesis import strategies as st
from models import SMALL, entries, estimate_text
from scorer import Scorer

from megahour.core.machine_code import kinds_of
from megahour.lm.arpa.model import read_arpa
from megahour.lm.estimate import estimate, sweep
from megahour.lm.estimate.discounts import FALLBACK
from megahour.lm.estimate.estimate import STORE_BYTES, thresholds
from megahour.lm.estimate.partitions import Partitions
from megahour.lm.estimate.reading import read_corpus
from megahour.lm.estimate.sweep import TALLIES
from megahour.lm.text.sources import line_blocks
from megahour.lm.text.tokenise import BOUNDARY

EXPECTED = Path(__file__).parents[1] / "lmplz"
words = st.sampled_from(["a", "b", "c", "d", "e"])
texts = st.lists(st.lists(words, min_size=1, max_size=7).map(" ".join), min_size=1, max_size=12)


LISTED = (EXPECTED / "limited.words.txt").read_text("utf-8").splitlines()


@pytest.mark.parametrize(
    ("name", "order", "cutoffs", "listed"),
    [
        ("order1", 1, [], None),
        ("order2", 2, [], None),
        ("order3", 3, [], None),
        ("order5", 5, [], None),
        ("order7", 7, [], None),
        ("order4-prune01", 4, [0, 1], None),
        ("order4-limited", 4, [], LISTED),
        ("order4-limited-prune01", 4, [0, 1], LISTED),
    ],
)
def test_every_probability_and_backoff_equals_lmplz(
    name: str, order: int, cutoffs: list[int], listed: list[str] | None
) -> None:
    ours = entries(estimate_text(SMALL, order, cutoffs, listed=listed).model)
    theirs = entries(read_arpa(EXPECTED / f"{name}.arpa"))
    assert ours.keys() == theirs.keys()
    assert max(abs(np.subtract(ours[gram], theirs[gram])).max() for gram in theirs) < 2e-6  # lmplz computes in float32


@settings(max_examples=60)
@given(texts, st.integers(1, 4), st.sampled_from([[0], [0, 1], [0, 0, 1], [0, 1, 2]]), st.integers(0, 4), st.data())
def test_probabilities_sum_to_one_after_any_history(
    lines: list[str], order: int, cutoffs: list[int], limit: int, data: st.DataObject
) -> None:
    listed = data.draw(st.sampled_from([None, ["a c"]]))
    model = estimate_text(lines, order, cutoffs, limit=limit, listed=listed).model
    assert total_after_a_history(model, data) == pytest.approx(1.0, abs=2e-5)  # the file has six decimals


@pytest.mark.parametrize("cutoffs", [[0], [0, 0, 1]])
@pytest.mark.parametrize("occurrences", [254, 255, 256, 3000])
def test_frequent_contexts_have_their_back_off_weight(occurrences: int, cutoffs: list[int]) -> None:
    """Sums of contexts that fit no byte are kept apart."""
    lines = [f"a b {'cde'[i % 3]}{i % 40 if i % 2 else ''} f" for i in range(occurrences)]
    model = estimate_text(lines, 3, cutoffs).model
    scorer, history = Scorer(model), [model.vocabulary.words.index(word) for word in "ab"]
    predicted = [word for word in range(len(model.vocabulary)) if word != BOUNDARY]
    assert sum(10.0 ** scorer.log10_prob(word, history) for word in predicted) == pytest.approx(1.0, abs=2e-5)


@settings(max_examples=20)
@given(texts, st.integers(1, 4), st.sampled_from([[0], [0, 1]]), st.sampled_from([None, ["a b c"]]))
def test_neither_threads_nor_memory_for_the_first_pass_change_anything(
    lines: list[str], order: int, cutoffs: list[int], listed: list[str] | None
) -> None:
    one = estimate_text(lines, order, cutoffs, listed=listed)
    two = estimate_text(lines, order, cutoffs, listed=listed, threads=2, store_bytes=0)
    assert entries(one.model) == entries(two.model)
    assert (one.discounts, one.fallbacks) == (two.discounts, two.fallbacks)


def test_kernels_are_compiled_once_whatever_is_asked_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each None among their arguments would be one more type, and seconds of compilation."""
    seen: dict[str, set[Any]] = {"sweep_from": set(), "smooth": set()}

    def noted(kernel: Callable[..., Any], name: str) -> Callable[..., Any]:
        return lambda *args: seen[name].add(kinds_of(args)) or kernel(*args)

    monkeypatch.setattr(sweep, "sweep_from", noted(sweep.sweep_from, "sweep_from"))
    monkeypatch.setattr(estimate, "smooth", noted(estimate.smooth, "smooth"))
    for listed in (None, ["a b c"]):
        for store_bytes in (0, STORE_BYTES):
            estimate_text(["a b c", "a b d"], 3, listed=listed, store_bytes=store_bytes)
    assert {name: len(kinds) for name, kinds in seen.items()} == {"sweep_from": 1, "smooth": 1}


def test_positions_that_repeat_an_n_gram_are_not_read_again() -> None:
    corpus = read_corpus(line_blocks(["a b c", "a b d"] * 50 + ["a e"], "lines")).corpus
    parts = Partitions(corpus, 3, thresholds(3, []), 1, store_bytes=STORE_BYTES)
    tally = np.zeros((4, TALLIES), np.int64)
    for number in range(len(parts)):
        parts.count(number, tally)
    rows = [len(parts.kept(number)[2]) for number in range(len(parts))]
    assert sum(rows) == 12, "of 405: after <s> 2, <s> a 3 (b, b, e), a b 2 (c, d), b c 2, b d 2, a e 1"


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


def test_words_of_any_length_are_spelled_whole_in_lines() -> None:
    """A slot holds 14 bytes of a word, and 16 bits of the length of a longer one."""
    words = ["".join(chr(97 + i % 23) for i in range(size)) for size in (1, 13, 14, 15, 16, 22, 23, 24, 65_535, 65_536)]
    found = entries(estimate_text([f"{word} z {word}" for word in words], 3).model)
    assert {(word, "z", word) for word in words} < found.keys()


@pytest.mark.parametrize(
    ("lines", "order", "cutoffs", "message"),
    [
        ([], 3, [], "text is empty"),
        (["a b"], 0, [], "order 0 is not in 1 … 7"),
        (["a b"], 3, [1], "must begin with 0"),
        (["a b"], 3, [0, 2, 1], "not decrease"),
    ],
)
def test_wrong_requests_name_the_value(lines: list[str], order: int, cutoffs: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate_text(lines, order, cutoffs)
