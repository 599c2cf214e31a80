"""Small models that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from megahour.lm.arpa import NgramModel
from megahour.lm.count import encode
from megahour.lm.kneser_ney import Estimate, estimate
from megahour.lm.vocabulary import Vocabulary, count_words

SMALL = (Path(__file__).parent / "small.txt").read_text("utf-8").splitlines()


def estimate_text(
    lines: Iterable[str], order: int = 3, prune: Sequence[int] = (), shards: int = 1, limit: int = 0
) -> Estimate:
    lines = list(lines)
    vocabulary = Vocabulary.from_counts(count_words(lines), limit)
    return estimate(encode(lines, vocabulary), vocabulary, order, prune, shards)


def entries(model: NgramModel) -> dict[tuple[str, ...], tuple[float, float]]:
    """(log10 probability, log10 back-off) of every n-gram by its words."""
    words = model.vocabulary.words
    return {
        tuple(words[i] for i in gram): (prob, backoff)
        for level in zip(model.grams, model.log10_prob, model.log10_backoff, strict=True)
        for gram, prob, backoff in zip(*(column.tolist() for column in level), strict=True)
    }
