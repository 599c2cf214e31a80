"""Models from counts: Witten-Bell by its definition, the others as from text."""

from __future__ import annotations

import pytest
from by_definition import Definition, Gram, texts, total_after_a_history
from hypothesis import given, settings
from hypothesis import strategies as st
from models import SMALL, entries, estimate_text

from megahour.lm.arpa.model import NgramModel, read_arpa
from megahour.lm.counts.estimate import CountSmoothing, FromCounts, estimate_counts
from megahour.lm.counts.table import NgramCounts, count_corpus
from megahour.lm.estimate.katz_model import estimate_katz
from megahour.lm.estimate.reading import read_corpus
from megahour.lm.text.cut import WordCut
from megahour.lm.text.sources import line_blocks


def counted(lines: list[str], order: int, limit: int = 0) -> NgramCounts:
    return count_corpus(read_corpus(line_blocks(lines, "lines"), cut=WordCut(limit)).corpus, order)


def estimated(lines: list[str], order: int, smoothing: CountSmoothing, cutoffs: tuple[int, ...] = ()) -> FromCounts:
    return estimate_counts(counted(lines, order), smoothing, cutoffs)


class WittenBell(Definition):
    """Interpolated with shorter histories, or backing off to them."""

    def __init__(self, lines: list[str], order: int, cutoffs: tuple[int, ...], interpolated: bool) -> None:
        super().__init__(lines, order, cutoffs)
        self.interpolated = interpolated

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


@settings(max_examples=40)
@given(texts, st.integers(1, 4), st.sampled_from([(), (0, 1), (0, 0, 1)]), st.booleans())
def test_witten_bell_is_that_of_the_definition(
    lines: list[str], order: int, cutoffs: tuple[int, ...], interpolated: bool
) -> None:
    name: CountSmoothing = "witten-bell" if interpolated else "witten-bell-backoff"
    model = estimated(lines, order, name, cutoffs).model
    WittenBell(lines, order, cutoffs, interpolated).check(model, accuracy=1e-9, of_weights=1e-7)


@settings(max_examples=30)
@given(texts, st.integers(1, 4), st.sampled_from(["witten-bell", "witten-bell-backoff", "good-turing"]), st.data())
def test_probabilities_sum_to_one(lines: list[str], order: int, name: CountSmoothing, data: st.DataObject) -> None:
    model = estimated(lines, order, name, data.draw(st.sampled_from([(), (0, 1)]))).model
    assert total_after_a_history(model, data) == pytest.approx(1.0, abs=1e-9)


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
