"""Katz's back-off: Good-Turing counts from a dictionary, and distributions that sum to one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from by_definition import Definition, Gram, texts, total_after_a_history
from hypothesis import given, settings
from hypothesis import strategies as st
from models import SMALL

from megahour.lm.arpa.model import NgramModel, read_arpa
from megahour.lm.estimate.estimate import Estimated
from megahour.lm.estimate.katz import good_turing
from megahour.lm.estimate.katz_model import estimate_katz
from megahour.lm.estimate.reading import read_corpus
from megahour.lm.text.cut import WordCut
from megahour.lm.text.sources import line_blocks


def estimated(
    lines: list[str], order: int, folder: Path, cutoffs: tuple[int, ...] = (), limit: int = 0, threads: int = 1
) -> tuple[NgramModel, Estimated, bytes]:
    corpus, path = read_corpus(line_blocks(lines, "lines"), cut=WordCut(limit)).corpus, folder / "katz.arpa"
    found = estimate_katz(corpus, order, path, cutoffs=cutoffs, threads=threads)
    assert [file.name for file in folder.iterdir()] == ["katz.arpa"]
    return read_arpa(path), found, path.read_bytes()


class Katz(Definition):
    """With the discounts of the program."""

    def __init__(self, lines: list[str], order: int, cutoffs: tuple[int, ...]) -> None:
        super().__init__(lines, order, cutoffs)
        self.ratios = {}
        for k in range(1, order + 1):
            own = [n for gram, n in self.counts.items() if len(gram) == k]
            self.ratios[k] = good_turing(np.array([own.count(r) if r else 0 for r in range(7)]))[0]
        self.total: Counter[Gram] = Counter()
        for gram, n in self.counts.items():
            self.total[gram[:-1]] += n

    def discounted(self, gram: Gram) -> float:
        n = self.counts[gram]
        return float(n * self.ratios[len(gram)][min(n, 6)]) if n > self.limits[len(gram) - 1] else 0.0

    def listed(self, h: Gram) -> list[str]:
        return [w for w in self.words if self.discounted((*h, w)) > 0]

    def all_of(self, h: Gram) -> int:
        """n(h), and one more where nothing is discounted."""
        held = sum(self.discounted((*h, w)) for w in self.words)
        return self.total[h] + (self.total[h] - held < 1e-9 * self.total[h])

    def p(self, w: str, h: Gram) -> float:
        if not h:
            unseen = [v for v in self.words if not self.counts[(v,)]]
            left = 1 - sum(self.discounted((v,)) for v in self.words) / self.all_of(())
            return self.discounted((w,)) / self.all_of(()) + left / len(unseen) * (w in unseen)
        if not self.listed(h):
            return self.p(w, h[1:])
        if self.discounted((*h, w)):
            return self.discounted((*h, w)) / self.all_of(h)
        return self.alpha(h) * self.p(w, h[1:])


@settings(max_examples=40)
@given(texts, st.integers(1, 4), st.sampled_from([(), (0, 1), (0, 0, 1)]))
def test_probabilities_and_weights_are_those_of_the_definition(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], order: int, cutoffs: tuple[int, ...]
) -> None:
    model, _, _ = estimated(lines, order, tmp_path_factory.mktemp("katz"), cutoffs)
    Katz(lines, order, cutoffs).check(model, accuracy=2e-6, of_weights=2e-5)


@settings(max_examples=40)
@given(texts, st.integers(1, 4), st.sampled_from([(), (0, 1)]), st.integers(0, 3), st.data())
def test_probabilities_sum_to_one_after_any_history(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], order: int, cutoffs: tuple[int, ...], limit: int,
    data: st.DataObject,
) -> None:  # fmt: skip
    model, _, _ = estimated(lines, order, tmp_path_factory.mktemp("katz"), cutoffs, limit)
    assert total_after_a_history(model, data) == pytest.approx(1.0, abs=2e-5)  # the file has six decimals


def test_counts_up_to_five_are_discounted_as_the_formula_says(tmp_path: Path) -> None:
    """n_1 … n_6 = 100, 40, 20, 12, 8, 5: A = 6 · 5/100; d(1) = (2 · 40/100 - A) / (1 - A)."""
    ratios, why = good_turing(np.array([0, 100, 40, 20, 12, 8, 5]))
    assert why == ""
    assert ratios[1] == pytest.approx((0.8 - 0.3) / 0.7)
    assert ratios[5] == pytest.approx((6 * 5 / (5 * 8) - 0.3) / 0.7)
    assert ratios[6] == 1.0
    assert (ratios[1:6] * np.arange(1, 6) * [100, 40, 20, 12, 8]).sum() == pytest.approx(
        (np.arange(1, 6) * [100, 40, 20, 12, 8]).sum() - 100
    ), "what is taken away is n_1: the share of what has not been seen"


def test_counts_of_counts_that_do_not_do_are_named() -> None:
    assert good_turing(np.array([0, 9, 3, 0, 1, 1, 1]))[1] == "no n-gram occurs 3 times: nothing is discounted"
    assert good_turing(np.array([0, 9, 4, 2, 0, 1, 1]))[1] == "no n-gram occurs 4 times: counts up to 2 are discounted"
    assert good_turing(np.array([0, 0, 3, 1, 1, 1, 1]))[1] == "no n-gram occurs 1 times: nothing is discounted"
    ratios, why = good_turing(np.array([0, 10, 10, 10, 2, 2, 1]))
    assert why.startswith("no discount for counts 1, 2")
    assert ratios[1] == 1.0


def test_threads_change_no_byte(tmp_path: Path) -> None:
    for threads in (1, 2):
        (tmp_path / str(threads)).mkdir()
    one, two = (estimated(SMALL, 4, tmp_path / str(threads), threads=threads)[2] for threads in (1, 2))
    assert one == two
