"""The slow reference that the combining tests compare with: back-off models as dictionaries, one formula at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from megahour.lm.arpa.model import NgramModel
from megahour.lm.text.vocabulary import Vocabulary

Gram = tuple[str, ...]
BOS = "<s>"


class Backoff:
    """p[h w] and weight[h], both plain numbers, by words."""

    def __init__(self, p: dict[Gram, float], weight: dict[Gram, float]) -> None:
        self.p, self.weight = p, weight

    @staticmethod
    def of(model: NgramModel) -> Backoff:
        words, p, weight = model.vocabulary.words, {}, {}
        for grams, logp, backoff in zip(model.grams, model.log10_prob, model.log10_backoff, strict=True):
            for row, x, y in zip(grams.tolist(), logp.tolist(), backoff.tolist(), strict=True):
                gram = tuple(words[i] for i in row)
                p[gram], weight[gram] = 10.0**x, 10.0**y
        return Backoff(p, weight)

    @property
    def order(self) -> int:
        return max(map(len, self.p))

    @property
    def words(self) -> list[str]:
        """What can be predicted."""
        return [gram[0] for gram in self.p if len(gram) == 1 and gram[0] != BOS]

    def prob(self, word: str, history: Gram) -> float:
        history = history[max(0, len(history) - self.order + 1) :]
        if (*history, word) in self.p:
            return self.p[*history, word]
        return self.weight.get(history, 1.0) * self.prob(word, history[1:])

    def listed(self, history: Gram) -> list[str]:
        return [gram[-1] for gram in self.p if gram[:-1] == history and history]

    def contexts(self) -> list[Gram]:
        """Histories that list words, short ones first."""
        return sorted({gram[:-1] for gram in self.p if len(gram) > 1}, key=len)

    def renormalised(self) -> Backoff:
        """With weights from 1 - Σ p(w|h) over 1 - Σ p(w|h')."""
        found = Backoff(dict(self.p), {})
        for h in self.contexts():
            listed = self.listed(h)
            found.weight[h] = (1 - sum(found.p[*h, w] for w in listed)) / (
                1 - sum(found.prob(w, h[1:]) for w in listed)
            )
        return found

    def without(self, gram: Gram) -> Backoff:
        """One n-gram less; only the weight of its own context changes, as in Stolcke's criterion."""
        smaller = Backoff({g: p for g, p in self.p.items() if g != gram}, dict(self.weight))
        h = gram[:-1]
        listed = smaller.listed(h)
        smaller.weight[h] = (1 - sum(smaller.p[*h, w] for w in listed)) / (
            1 - sum(smaller.prob(w, h[1:]) for w in listed)
        )
        return smaller

    def history_prob(self, h: Gram) -> float:
        """p(h) along h; that of `<s>` is p(`</s>`)."""
        first = "</s>" if h[0] == BOS else h[0]
        return math.prod([self.prob(first, ()), *(self.prob(h[i], h[:i]) for i in range(1, len(h)))])

    def loss(self, gram: Gram) -> float:
        """e^D - 1 without one n-gram, D the relative entropy over all words of its context, by definition."""
        h, smaller = gram[:-1], self.without(gram)
        terms = ((self.prob(w, h), smaller.prob(w, h)) for w in self.words)
        return math.expm1(self.history_prob(h) * sum(p * math.log(p / q) for p, q in terms if p > 0))


def model_of(p: dict[Gram, float], weight: dict[Gram, float]) -> NgramModel:
    """The arrays of a reference model."""
    words = [gram[0] for gram in p if len(gram) == 1]
    vocabulary = Vocabulary(words)
    levels: list[list[Gram]] = [[] for _ in range(max(map(len, p)))]
    for gram in p:
        levels[len(gram) - 1].append(gram)

    def log10(values: Iterable[float]) -> np.ndarray:
        return np.log10(np.maximum(np.fromiter(values, np.float64), 1e-99))

    return NgramModel(
        vocabulary,
        [np.array([vocabulary.encode(gram) for gram in grams], np.int32) for grams in levels],
        [log10(p[gram] for gram in grams) for grams in levels],
        [log10(weight.get(gram, 1.0) for gram in grams) for grams in levels],
    )


def random_model(seed: int, words: str, order: int, share: float) -> NgramModel:
    """A proper back-off model over the letters of `words`, each context listing some words at random, none all."""
    rng = np.random.Generator(np.random.PCG64(seed))
    vocabulary = ["<unk>", BOS, "</s>", *words]
    predicted = [word for word in vocabulary if word != BOS]
    p: dict[Gram, float] = dict.fromkeys([(BOS,)], 0.0)
    p = {(word,): 0.0 for word in vocabulary}
    for word, value in zip(predicted, rng.dirichlet(np.ones(len(predicted))), strict=True):
        p[(word,)] = float(value)
    above = [(word,) for word in vocabulary if word != "</s>"]
    for _ in range(2, order + 1):
        level: list[Gram] = []
        for h in above:
            chosen = [w for w in predicted if w != "<unk>" and rng.random() < share]
            values = rng.dirichlet(np.ones(len(chosen) + 1))
            for w, value in zip(chosen, values[:-1], strict=True):
                p[*h, w] = float(value)
                level.append((*h, w))
        above = [gram for gram in level if gram[-1] != "</s>"]
    whole = Backoff(p, {}).renormalised()
    return model_of(whole.p, whole.weight)
