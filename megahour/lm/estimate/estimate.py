"""Interpolated modified Kneser-Ney in memory: from tokens to an ARPA file or another sink.

Two parallel passes over the partitions:

    count    sort a partition by history (once; it stays sorted) and sweep it: tallies for the discounts, sums of
             contexts, sizes of lines; n-grams of contexts that occur twice are kept if there is room
    smooth   compute probabilities and write lines; partitions that were not kept are swept again

Between the passes: discounts, and the exchange of log γ between partitions. Memory: 8 bytes per token, 17 bytes per
context of two words or more that occurs twice, about 12 bytes per token for kept n-grams, and scratch for the largest
partition, which is that of a frequent word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from megahour.lm.arpa.parse import NEVER
from megahour.lm.arpa.read import Progress
from megahour.lm.estimate.arpa_sink import ArpaSink
from megahour.lm.estimate.context_keys import Names, exchange, take_names
from megahour.lm.estimate.discounts import USUAL, Discount, KneserNey, Smoothing, smoothing_of
from megahour.lm.estimate.partitions import PADDING, Corpus, Partitions
from megahour.lm.estimate.smooth import fill_names, gammas, log_probability, smooth
from megahour.lm.estimate.stupid import stupid, unigram_scores
from megahour.lm.estimate.sweep import ALL_WORDS, KEPT, SUMS, TALLIES, Words
from megahour.lm.text.arrays import Float32, Int32, Int64
from megahour.lm.text.tokenise import BOUNDARY, END, RESERVED

MAX_ORDER = 7
STORE_BYTES = 1 << 31
CHUNK = 1 << 16  # words whose logarithms are taken together
Method = Literal["kneser-ney", "stupid"]


class Sink(Protocol):
    """The receiver of a model, partition by partition, such as `ArpaSink`. spelled: whether it needs the sizes of lines
    in bytes (CHARACTERS)."""

    spelled: bool

    def begin(self, parts: Partitions, tallies: Int64, sizes: list[int], logp: Float32, backoff: Float32) -> None:
        """Called first. tallies (P, order + 1, TALLIES): of `sweep`, by partition; sizes: n-grams by order; logp,
        backoff (V,): log10 p of words, NaN for those that the model leaves out, and their log10 γ."""

    def partition(self, number: int, windows: Int32, at: Int32, logp: Float32, backoff: Float32, sizes: Int64) -> None:
        """The n-grams of a partition, from `smooth`. Called by any thread in any order; the arrays are reused."""

    def end(self) -> None:
        """Called after all partitions."""


@dataclass(frozen=True)
class Estimated:
    """Facts about an estimated model.

    sizes: n-grams by order. discounts: D(1), D(2), D(3+) by order, empty for stupid back-off. fallbacks: orders with
    given discounts, and the reason. partitions: their number, and the positions of the largest and the median one.
    wildcards: for Kneser-Ney with cut-offs, by order from 1: contexts with a wildcard entry, and the sum of entries.
    """

    order: int
    sizes: list[int]
    discounts: list[Discount]
    fallbacks: dict[int, str]
    partitions: tuple[int, int, int]
    wildcards: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class _Counts:
    """unigrams (V,): adjusted counts of words. contexts (V, SUMS): sums of the contexts of one word. tallies
    (P, order + 1, TALLIES): by partition. wildcards (order + 1, 2): by order, contexts that occur more than once and
    have a wildcard entry, and the sum of the entries."""

    unigrams: Int64
    contexts: Int32
    tallies: Int64
    names: list[Names]
    wildcards: Int64


def thresholds(order: int, cutoffs: Sequence[int]) -> Int64:
    """(order + 2,) cut-offs by order: n-grams that occur at most this often are dropped. The last value is repeated.

    Raises ValueError: the order is out of range; the cut-offs do not begin with 0, or decrease.

    >>> thresholds(4, [0, 0, 1]).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    if not 1 <= order <= MAX_ORDER:
        raise ValueError(f"order {order} is not in 1 … {MAX_ORDER}; 3 is usual")
    given = list(cutoffs[:order]) or [0]
    if given[0] != 0 or given != sorted(given):
        raise ValueError(f"cutoffs {list(cutoffs)} must begin with 0 and not decrease; limit words by the vocabulary")
    return np.array([0, *given, *[given[-1]] * (order + 1 - len(given))], np.int64)


def estimate(
    corpus: Corpus,
    order: int,
    to: Path | Sink,
    *,
    cutoffs: Sequence[int] = (),
    allowed: Words = None,
    smoothing: Method = "kneser-ney",
    how: KneserNey = USUAL,
    threads: int = 1,
    store_bytes: int = STORE_BYTES,
    progress: Progress = lambda phase, done, total: None,
) -> Estimated:
    """Estimate a model and write it to an ARPA file or a sink. The bytes do not depend on `threads`.

    cutoffs[k-1]: drop k-grams that occur at most this often; the last value applies to all higher orders. allowed (V,)
    uint8: drop n-grams with other words after counting, unigrams too, as `lmplz --limit_vocab_file` does; `<unk>`,
    `<s>`, `</s>` stay. smoothing: `stupid` is stupid back-off (module `stupid`). how: options of Kneser-Ney.
    store_bytes: memory for the n-grams that the first pass keeps for the second.

    Raises
    ------
    ValueError: the corpus is empty, `order` or `cutoffs` is out of range, or stupid back-off with `allowed`.
    MegahourError: discounts cannot be estimated, and `how` has no fallback.
    """
    limits, stupid_too = thresholds(order, cutoffs), smoothing == "stupid"
    if len(corpus.tokens) <= PADDING:
        raise ValueError("no words to count: the text is empty; give at least one sentence")
    if allowed is not None:
        if stupid_too:
            raise ValueError("stupid back-off does not take allowed words; map other words to <unk> by a vocabulary")
        allowed = allowed.copy()
        allowed[: len(RESERVED)] = 1
    spelled = isinstance(to, Path) or to.spelled
    parts = Partitions(corpus, order, limits, threads, allowed, 0 if stupid_too else store_bytes, spelled)

    def run(sink: Sink) -> Estimated:
        return _score(parts, sink, progress) if stupid_too else _estimate(parts, sink, how, progress)

    if isinstance(to, Path):
        with ArpaSink(to) as sink:
            return run(sink)
    return run(to)


def _estimate(parts: Partitions, sink: Sink, how: KneserNey, progress: Progress) -> Estimated:
    corpus, allowed = parts.corpus, parts.allowed
    counts = _count(parts, progress)
    total = counts.tallies.sum(axis=0)
    smoothing, result, fallbacks = smoothing_of(counts.unigrams, total[2:, :5], how, allowed)
    names = exchange(counts.names, smoothing.discounts, len(parts))
    wildcards = [(int(entries), int(held)) for entries, held in counts.wildcards[1:] if counts.wildcards.any()]
    sizes = [corpus.size if allowed is None else int(np.count_nonzero(allowed)), *total[2:, KEPT].tolist()]
    tallies, (logp, backoff) = counts.tallies, _unigrams(parts, counts, smoothing)
    del counts  # frees memory for the second pass
    sink.begin(parts, tallies, sizes, logp, backoff)
    parts.each(lambda number: _smooth(parts, smoothing, names, number, sink), "write", progress)
    sink.end()
    return Estimated(parts.order, sizes, result, fallbacks, parts.spread, wildcards)


def _score(parts: Partitions, sink: Sink, progress: Progress) -> Estimated:
    """Stupid back-off."""
    counts = _count(parts, progress)
    sizes = [parts.corpus.size, *counts.tallies.sum(axis=0)[2:, KEPT].tolist()]
    logp, backoff = (values.astype(np.float32) for values in unigram_scores(parts.corpus.occurrences()))
    sink.begin(parts, counts.tallies, sizes, logp, backoff if parts.order > 1 else np.zeros_like(backoff))

    def score(number: int) -> None:
        s, windows, _, n = parts.swept(number)
        lists = s.at, s.logp, s.backoff, s.sizes
        stupid(windows, parts.order, parts.cutoffs, s.store.grams, s.store.nodes, n, *lists)
        sink.partition(number, windows, s.at, s.logp, s.backoff, s.sizes)

    parts.each(score, "write", progress)
    sink.end()
    return Estimated(parts.order, sizes, [], {}, parts.spread)


def _count(parts: Partitions, progress: Progress) -> _Counts:
    tallies = np.zeros((len(parts), parts.order + 1, TALLIES), np.int64)
    contexts = np.zeros((parts.corpus.size, SUMS), np.int32)  # a corpus has at most 2³¹ positions
    wildcards = np.zeros((len(parts), parts.order + 1, 2), np.int64)

    def count(number: int) -> Names:
        s, windows, n = parts.count(number, tallies[number])
        store, names = s.store, Names.room(s.names, n, len(windows), parts.order)
        # Threads write different rows of contexts: a word is in one partition only.
        sums = contexts, wildcards[number]
        held, large = take_names(store.nodes, n, store.sums, store.first, windows, parts.owner, *sums, *names)
        return names.taken(s.names, held, large)

    names = parts.each(count, "count", progress)
    unigrams = parts.unigrams if parts.order > 1 else parts.corpus.occurrences()
    unigrams[END], unigrams[BOUNDARY] = unigrams[BOUNDARY], 0
    return _Counts(unigrams, contexts, tallies, names, wildcards.sum(axis=0))


def _unigrams(parts: Partitions, counts: _Counts, smoothing: Smoothing) -> tuple[Float32, Float32]:
    """log10 p (V,), NaN for words that are not allowed, and log10 γ (V,)."""
    logp = np.empty(parts.corpus.size, np.float32)
    for first in range(0, len(logp), CHUNK):
        part = slice(first, first + CHUNK)
        logp[part] = np.log10(np.maximum(smoothing.unigram[part], 10.0**NEVER))
    logp[BOUNDARY] = 0.0
    backoff = np.zeros(parts.corpus.size, np.float32)
    if parts.order > 1:
        gammas(counts.contexts, smoothing.discounts[2], backoff)
        once = (parts.counts > 0) & (counts.contexts[:, 0] == 0)
        if parts.allowed is not None:
            tokens = parts.corpus.tokens
            dropped = parts.allowed[tokens[PADDING:]] == 0
            once[tokens[PADDING - 1 : -1][dropped]] = False
        if parts.cutoffs[2] < 1:
            backoff[once] = log_probability(smoothing.discounts[2, 1])
    if parts.allowed is not None:
        logp[parts.allowed == 0] = np.nan
    return logp, backoff


def _smooth(
    parts: Partitions, smoothing: Smoothing, names: tuple[Int32, npt.NDArray[np.int8], Float32, Int64], number: int,
    sink: Sink,
) -> None:  # fmt: skip
    """Compute the n-grams of a partition by order and pass them to the sink. names: from `exchange`."""
    s, windows, positions, kept = parts.kept(number)
    first, length, gamma, edges = names
    own = slice(edges[number], edges[number + 1])
    room = 1 << int(2 * (own.stop - own.start) + 2).bit_length()
    keys, values = np.empty(room, np.int64), np.empty(room, np.float32)
    fill_names(first[own], length[own], gamma[own], keys, values)
    allowed = ALL_WORDS if parts.allowed is None else parts.allowed
    smooth(
        0, windows, positions, parts.corpus.tokens, parts.order, parts.cutoffs, allowed,
        smoothing.discounts, smoothing.unigram, *kept, len(kept.nodes), s.contexts.seats, s.chain,
        keys, values, s.at, s.logp, s.backoff, s.sizes,
    )  # fmt: skip
    sink.partition(number, windows, s.at, s.logp, s.backoff, s.sizes)
