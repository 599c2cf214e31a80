"""Models from counts: Witten-Bell by its definition, the others as from text."""

from __future__ import annotations

from collections import Counter
from math import log10

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import SMALL, entries, estimate_text
from scorer import Scorer

from megahour.lm.arpa.model import NgramModel, read_arpa
from megahour.lm.counts.estimate import CountSmoothing, FromCounts, estimate_counts
from megahour.lm.counts.table import NgramCounts, count_corpus
from megahour.lm.estimate.katz_model import estimate_katz
from megahour.lm.estimate.reading import read_corpus
from megahour.lm.text.cut import WordCut
from megahour.lm.text.sources import line_blocks
from megahour.lm.text.tokenise import BOUNDARY

Gram = tuple[str, ...]
words = st.sampled_from(["a", "b", "c", "d"])
texts = st.lists(st.lists(words, max_size=6).map(" ".join), min_size=1, max_size=14)


def counted(lines: list[str], order: int, limit: int = 0) -> NgramCounts:
    return count_corpus(read_corpus(line_blocks(lines, "lines"), cut=WordCut(limit)).corpus, order)


def estimated(lines: list[str], order: int, smoothing: CountSmoothing, cutoffs: tuple[int, ...] = ()) -> FromCounts:
    return estimate_counts(counted(lines, order), smoothing, cutoffs)


def by_hand(lines: list[str], order: int) -> Counter[Gram]:
    sentences = [("<s>", *line.split(), "</s>") for line in lines]
    return Counter(s[i : i + k] for s in sentences for k in range(1, order + 1) for i in range(len(s) - k + 1))


class SlowWittenBell:
    """P(w|h) by the definition, from counts in a dictionary."""

    def __init__(self, lines: list[str], order: int, cutoffs: tuple[int, ...], interpolated: bool) -> None:
        self.counts, self.interpolated = by_hand(lines, order), interpolated
        self.words = ["<unk>", *sorted({gram[0] for gram in self.counts if len(gram) == 1} - {"<s>"})]
        self.limits = [*cutoffs, *[cutoffs[-1] if cutoffs else 0] * order]

    def follows(self, h: Gram) -> dict[str, int]:
        return {w: n for w in self.words if (n := self.counts[(*h, w)])}

    def listed(self, h: Gram) -> list[str]:
        return [w for w, n in self.follows(h).items() if not h or n > self.limits[len(h)]]

    def p(self, w: str, h: Gram) -> float:
        after = self.follows(h)
        if h and w not in self.listed(h):
            return self.alpha(h) * self.p(w, h[1:])
        n, types = sum(after.values()), len(after)
        if h:
            return (after[w] + (types * self.p(w, h[1:]) if self.interpolated else 0)) / (n + types)
        unseen = self.words if self.interpolated or len(after) == len(self.words) else ["<unk>"]
        return (after.get(w, 0) + (types / len(unseen) if w in unseen else 0)) / (n + types)

    def alpha(self, h: Gram) -> float:
        listed = self.listed(h)
        return (1 - sum(self.p(w, h) for w in listed)) / (1 - sum(self.p(w, h[1:]) for w in listed))


@settings(max_examples=40)
@given(texts, st.integers(1, 4), st.sampled_from([(), (0, 1), (0, 0, 1)]), st.booleans())
def test_witten_bell_is_that_of_the_definition(
    lines: list[str], order: int, cutoffs: tuple[int, ...], interpolated: bool
) -> None:
    name: CountSmoothing = "witten-bell" if interpolated else "witten-bell-backoff"
    found, slow = (
        entries(estimated(lines, order, name, cutoffs).model),
        SlowWittenBell(lines, order, cutoffs, interpolated),
    )
    wanted = {gram for gram, n in slow.counts.items() if n > slow.limits[len(gram) - 1]}
    assert found.keys() == wanted | {("<unk>",), ("<s>",)}
    for gram, (logp, weight) in found.items():
        if gram != ("<s>",):
            assert logp == pytest.approx(log10(slow.p(gram[-1], gram[:-1])), abs=1e-9)
        if len(gram) < order and gram[-1] != "</s>" and slow.listed(gram):
            assert weight == pytest.approx(log10(slow.alpha(gram)), abs=1e-7)
        else:
            assert weight == 0.0


@settings(max_examples=30)
@given(texts, st.integers(1, 4), st.sampled_from(["witten-bell", "witten-bell-backoff", "good-turing"]), st.data())
def test_probabilities_sum_to_one(lines: list[str], order: int, name: CountSmoothing, data: st.DataObject) -> None:
    model = estimated(lines, order, name, data.draw(st.sampled_from([(), (0, 1)]))).model
    scorer, size = Scorer(model), len(model.vocabulary)
    history = [BOUNDARY, *data.draw(st.lists(st.integers(3, size - 1), max_size=4))] if size > 3 else [BOUNDARY]
    assert sum(10.0 ** scorer.log10_prob(w, history) for w in range(size) if w != BOUNDARY) == pytest.approx(
        1.0, abs=1e-9
    )


@settings(max_examples=30)
@given(texts, st.integers(1, 4), st.sampled_from([(), (0, 1), (0, 0, 2)]))
def test_kneser_ney_of_counts_is_that_of_their_text(lines: list[str], order: int, cutoffs: tuple[int, ...]) -> None:
    ours, text = estimated(lines, order, "kneser-ney", cutoffs), estimate_text(lines, order, cutoffs)
    assert_alike(ours.model, text.model)
    assert ours.discounts == text.discounts
    assert ours.fallbacks == text.fallbacks


def test_a_context_that_keeps_all_of_its_mass_backs_off_to_nothing() -> None:
    """What follows "b" is always "a", and a count of two has no discount here: no other word can follow."""
    lines = ["a a", "a a", "a a", "a a b a a", "c a a", "a b a a a", "b a b a a"]
    ours, text = estimated(lines, 3, "kneser-ney", ()), estimate_text(lines, 3, ())
    assert_alike(ours.model, text.model)
    assert entries(ours.model)["b",][1] == pytest.approx(-99)


def assert_alike(one: NgramModel, other: NgramModel) -> None:
    found, wanted = entries(one), entries(other)
    assert found.keys() == wanted.keys()
    for gram, values in found.items():
        assert values == pytest.approx(wanted[gram], abs=2e-6), gram


@pytest.mark.parametrize("cutoffs", [(), (0, 0, 1)])
def test_of_a_text_with_discounts_too(cutoffs: tuple[int, ...], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of a real text: Kneser-Ney has no fallback at all, and Good-Turing's counts are discounted."""
    assert_alike(estimated(SMALL, 3, "kneser-ney", cutoffs).model, estimate_text(SMALL, 3, cutoffs).model)
    path = tmp_path_factory.mktemp("katz") / "katz.arpa"
    found = estimate_katz(read_corpus(line_blocks(SMALL, "lines")).corpus, 3, path, cutoffs=cutoffs)
    ours = estimated(SMALL, 3, "good-turing", cutoffs)
    assert ours.discounts == found.discounts
    assert ours.fallbacks == found.fallbacks
    assert_alike(ours.model, read_arpa(path))
