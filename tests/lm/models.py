"""Small models that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from megahour.lm.arpa.model import NgramModel, read_arpa
from megahour.lm.estimate.discounts import Discount
from megahour.lm.estimate.estimate import STORE_BYTES, Method, estimate
from megahour.lm.estimate.reading import allowed_words, read_corpus, vocabulary_of
from megahour.lm.text.cut import WordCut
from megahour.lm.text.sources import line_blocks

SMALL = (Path(__file__).parent / "small.txt").read_text("utf-8").splitlines()


class Estimate(NamedTuple):
    """An estimated model, read back from its ARPA file."""

    model: NgramModel
    discounts: list[Discount]
    fallbacks: dict[int, str]


def estimate_text(
    lines: Iterable[str],
    order: int = 3,
    cutoffs: Sequence[int] = (),
    limit: int = 0,
    threads: int = 1,
    listed: Iterable[str] | None = None,
    store_bytes: int = STORE_BYTES,
    smoothing: Method = "kneser-ney",
) -> Estimate:
    """listed: n-grams with other words are dropped after counting."""
    corpus = read_corpus(line_blocks(lines, "lines"), cut=WordCut(limit)).corpus
    allowed = None if listed is None else allowed_words(corpus, vocabulary_of(line_blocks(listed, "words")))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.arpa"
        options = {"cutoffs": cutoffs, "allowed": allowed, "smoothing": smoothing}
        found = estimate(corpus, order, path, threads=threads, store_bytes=store_bytes, **options)  # type: ignore[arg-type]
        return Estimate(read_arpa(path), found.discounts, found.fallbacks)


def entries(model: NgramModel) -> dict[tuple[str, ...], tuple[float, float]]:
    """(log10 probability, log10 back-off) of every n-gram by its words."""
    words = model.vocabulary.words
    return {
        tuple(words[i] for i in gram): (prob, backoff)
        for level in zip(model.grams, model.log10_prob, model.log10_backoff, strict=True)
        for gram, prob, backoff in zip(*(column.tolist() for column in level), strict=True)
    }
