"""What the tests of smoothings compare with: counts in a dictionary, and probabilities by one formula at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from math import log10

import pytest
from hypothesis import strategies as st
from models import entries
from scorer import Scorer

from megahour.lm.arpa.model import NgramModel
from megahour.lm.text.tokenise import BOUNDARY

Gram = tuple[str, ...]
texts = st.lists(st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=6).map(" ".join), min_size=1, max_size=14)


def by_hand(lines: list[str], order: int) -> Counter[Gram]:
    """Counts of all n-grams of sentences with their boundaries."""
    sentences = [("<s>", *line.split(), "</s>") for line in lines]
    return Counter(s[i : i + k] for s in sentences for k in range(1, order + 1) for i in range(len(s) - k + 1))


class Definition(ABC):
    """P(w|h) of a smoothing that backs off; `limits` are counts, by length, up to which an n-gram is left out."""

    def __init__(self, lines: list[str], order: int, cutoffs: tuple[int, ...]) -> None:
        self.counts = by_hand(lines, order)
        del self.counts[("<s>",)]
        self.words = ["<unk>", *sorted(gram[0] for gram in self.counts if len(gram) == 1)]
        self.limits = [*cutoffs, *[cutoffs[-1] if cutoffs else 0] * order]
        self.order = order

    @abstractmethod
    def listed(self, h: Gram) -> list[str]:
        """The words w of which the model lists h w."""

    @abstractmethod
    def p(self, w: str, h: Gram) -> float: ...

    def alpha(self, h: Gram) -> float:
        """The back-off weight."""
        listed = self.listed(h)
        return (1 - sum(self.p(w, h) for w in listed)) / (1 - sum(self.p(w, h[1:]) for w in listed))

    def check(self, model: NgramModel, *, accuracy: float, of_weights: float) -> None:
        """Checks the n-grams of a model, its log10 probabilities and its back-off weights."""
        found = entries(model)
        wanted = {gram for gram, n in self.counts.items() if n > self.limits[len(gram) - 1]}
        assert found.keys() == wanted | {("<unk>",), ("<s>",)}
        for gram, (logp, weight) in found.items():
            if gram != ("<s>",):
                assert logp == pytest.approx(log10(self.p(gram[-1], gram[:-1])), abs=accuracy)
            if len(gram) < self.order and gram[-1] != "</s>" and self.listed(gram):
                assert weight == pytest.approx(log10(self.alpha(gram)), abs=of_weights)
            else:
                assert weight == 0.0


def total_after_a_history(model: NgramModel, data: st.DataObject) -> float:
    """The sum of all words' probabilities after a drawn history."""
    scorer, size = Scorer(model), len(model.vocabulary)
    history = [BOUNDARY, *data.draw(st.lists(st.integers(3, size - 1), max_size=4))] if size > 3 else [BOUNDARY]
    return sum(10.0 ** scorer.log10_prob(word, history) for word in range(size) if word != BOUNDARY)
