"""Interpolated modified Kneser-Ney on one machine, in memory: tokens to an ARPA file.

Two passes over the partitions, both parallel:

    count    sort a partition by history (once; it stays sorted) and sweep it: tallies for the discounts, sums of
             contexts, bytes of its lines; n-grams of contexts that occur twice are kept if there is room
    smooth   sweep it again if they were not; probabilities, lines, file

Between them: discounts, and log γ of contexts on its way to the partitions that print it. Memory: 8 bytes a token, 17
bytes for each context of two words or more that occurs twice, and what is kept, about 12 bytes a token; a frequent
word's partition sets the scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from megahour.lm.estimate.arpa_sink import ArpaSink
from megahour.lm.estimate.context_keys import Names, exchange, take_names
from megahour.lm.estimate.discounts import USUAL, Discount, KneserNey, discounts, unigram_probabilities
from megahour.lm.estimate.partitions import PADDING, Corpus, Partitions
from megahour.lm.estimate.smooth import NEVER, fill_names, gammas, log_probability, smooth
from megahour.lm.estimate.stupid import stupid, unigram_scores
from megahour.lm.estimate.sweep import KEPT, SUMS, TALLIES, Words
from megahour.lm.text.arrays import Float32, Float64, Int32, Int64
from megahour.lm.text.tokenise import BOUNDARY, END, RESERVED

MAX_ORDER = 7
STORE_BYTES = 1 << 31
CHUNK = 1 << 16  # words whose logarithms are taken together
Smoothing = Literal["kneser-ney", "stupid"]
Progress = Callable[[str, int, int], None]


class Sink(Protocol):
    """Where a model goes, a partition at a time. `ArpaSink` is one. spelled: whether it needs the bytes of
    words (CHARACTERS)."""

    spelled: bool

    def begin(self, parts: Partitions, tallies: Int64, sizes: list[int], logp: Float32, backoff: Float32) -> None:
        """Before all else. tallies (P, order + 1, TALLIES): by partition, of `sweep`; sizes: n-grams by order; logp,
        backoff (V,): log10 p of words, NaN of those that the model leaves out, and their log10 γ."""

    def partition(self, number: int, windows: Int32, at: Int32, logp: Float32, backoff: Float32, sizes: Int64) -> None:
        """A partition's n-grams, as of `smooth`. From any thread, in any order; the arrays are used again after it."""

    def end(self) -> None:
        """After all partitions."""


@dataclass(frozen=True)
class Estimated:
    """What was estimated, but for the n-grams, which are in the file. sizes: n-grams by order; discounts: D(1), D(2),
    D(3+) by order, none for stupid back-off; fallbacks: orders and reasons; partitions: how many, and positions of the
    largest and of the middle one. wildcards: of Kneser-Ney with n-grams cut off, by order from 1: contexts with a
    wildcard entry, and what these entries hold."""

    order: int
    sizes: list[int]
    discounts: list[Discount]
    fallbacks: dict[int, str]
    partitions: tuple[int, int, int]
    wildcards: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class _Counts:
    """unigrams (V,), contexts (V, SUMS): adjusted counts of words, and sums of the contexts of one word. tallies
    (P, order + 1, TALLIES): by partition. wildcards (order + 1, 2): by order, contexts that occur more than once and
    have a wildcard entry, and what these hold."""

    unigrams: Int64
    contexts: Int32
    tallies: Int64
    names: list[Names]
    wildcards: Int64


@dataclass(frozen=True)
class _Weights:
    """What the partitions need to smooth: discounts (order + 2, 4); unigram (V,), `</s>` under BOUNDARY; names with
    log γ, those of partition i in edges[i] .. edges[i + 1]."""

    discounts: Float64
    unigram: Float64
    first: Int32
    length: npt.NDArray[np.int8]
    gamma: npt.NDArray[np.float32]
    edges: Int64


def thresholds(order: int, cutoffs: Sequence[int]) -> Int64:
    """(order + 2,) by order: n-grams that occur at most this often are dropped; the last value holds for higher orders.

    Raises ValueError: order out of range; not 0 for unigrams, or decreasing.
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
    smoothing: Smoothing = "kneser-ney",
    how: KneserNey = USUAL,
    threads: int = 1,
    store_bytes: int = STORE_BYTES,
    progress: Progress = lambda phase, done, total: None,
) -> Estimated:
    """Estimate the model of `corpus` and write it as an ARPA file, or into a sink: the same bytes whatever `threads`.

    cutoffs[k-1]: drop k-grams that occur at most this often; the last value holds for all higher orders. allowed (V,)
    uint8: drop n-grams with other words, unigrams too, after they have been counted, as `lmplz --limit_vocab_file`
    does; `<unk>`, `<s>`, `</s>` stay. smoothing: `stupid` for stupid back-off (module `stupid`). how: of Kneser-Ney.
    store_bytes: memory for what the first pass stores.

    Raises
    ------
    ValueError: the corpus is empty, `order` or `cutoffs` is out of range, or stupid back-off with `allowed`.
    MegahourError: discounts that cannot be estimated, where `how` has none for them.
    """
    limits, stupid_too = thresholds(order, cutoffs), smoothing == "stupid"
    if len(corpus.tokens) <= PADDING:
        raise ValueError("no words to count: the text is empty; give at least one sentence")
    if allowed is not None:
        if stupid_too:
            raise ValueError("stupid back-off has no list of allowed words; map other words to <unk> by a vocabulary")
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
    ones = np.array([np.count_nonzero(counts.unigrams == adjusted) for adjusted in range(5)])
    result, fallbacks = discounts([ones, *total[2:, :5]], how.fallback)
    weights = _weigh(parts, counts, result, how)
    wildcards = [(int(entries), int(held)) for entries, held in counts.wildcards[1:] if counts.wildcards.any()]
    sizes = [corpus.size if allowed is None else int(np.count_nonzero(allowed)), *total[2:, KEPT].tolist()]
    tallies, (logp, backoff) = counts.tallies, _unigrams(parts, counts, weights)
    del counts  # memory for what comes
    sink.begin(parts, tallies, sizes, logp, backoff)
    _write(parts, sink, lambda number: _smooth(parts, weights, number, sink), progress)
    return _model(parts, sizes, result, fallbacks, wildcards)


def _score(parts: Partitions, sink: Sink, progress: Progress) -> Estimated:
    """Stupid back-off."""
    counts = _count(parts, progress)
    sizes = [parts.corpus.size, *counts.tallies.sum(axis=0)[2:, KEPT].tolist()]
    logp, backoff = (values.astype(np.float32) for values in unigram_scores(_occurrences(parts.corpus)))
    sink.begin(parts, counts.tallies, sizes, logp, backoff if parts.order > 1 else np.zeros_like(backoff))

    def score(number: int) -> None:
        s, windows, _, n = parts.swept(number)
        lists = s.at, s.logp, s.backoff, s.sizes
        stupid(windows, parts.order, parts.cutoffs, s.store.grams, s.store.nodes, n, *lists)
        sink.partition(number, windows, s.at, s.logp, s.backoff, s.sizes)

    _write(parts, sink, score, progress)
    return _model(parts, sizes, [], {})


def _write(parts: Partitions, sink: Sink, write: Callable[[int], None], progress: Progress) -> None:
    for done, _ in enumerate(parts.each(write), 1):
        progress("write", done, len(parts))
    sink.end()


def _model(
    parts: Partitions,
    sizes: list[int],
    result: list[Discount],
    fallbacks: dict[int, str],
    wildcards: Sequence[tuple[int, int]] = (),
) -> Estimated:
    return Estimated(parts.order, sizes, result, fallbacks, parts.spread, list(wildcards))


def _count(parts: Partitions, progress: Progress) -> _Counts:
    tallies = np.zeros((len(parts), parts.order + 1, TALLIES), np.int64)
    contexts = np.zeros((parts.corpus.size, SUMS), np.int32)  # of at most 2³¹ positions
    wildcards = np.zeros((len(parts), parts.order + 1, 2), np.int64)

    def count(number: int) -> Names:
        s, windows, n = parts.count(number, tallies[number])
        store, names = s.store, Names.room(s.names, n, len(windows), parts.order)
        # a word is in one partition only, so threads write different rows of contexts
        sums = contexts, wildcards[number]
        held, large = take_names(store.nodes, n, store.sums, store.first, windows, parts.owner, *sums, *names)
        return names.taken(s.names, held, large)

    names = []
    for done, result in enumerate(parts.each(count), 1):
        names.append(result)
        progress("count", done, len(parts))
    unigrams = parts.unigrams if parts.order > 1 else _occurrences(parts.corpus)
    unigrams[END], unigrams[BOUNDARY] = unigrams[BOUNDARY], 0
    return _Counts(unigrams, contexts, tallies, names, wildcards.sum(axis=0))


def _occurrences(corpus: Corpus) -> Int64:
    return np.bincount(corpus.tokens[PADDING:], minlength=corpus.size)


def _weigh(parts: Partitions, counts: _Counts, result: list[Discount], how: KneserNey) -> _Weights:
    table = np.zeros((parts.order + 2, 4))
    table[1 : parts.order + 1, 1:] = result
    unigram = unigram_probabilities(counts.unigrams, result[0], BOUNDARY, parts.allowed, how)
    unigram[BOUNDARY] = unigram[END]
    first, length, gamma, edges = exchange(counts.names, table, len(parts))
    return _Weights(table, unigram, first, length, gamma, edges)


def _unigrams(parts: Partitions, counts: _Counts, weights: _Weights) -> tuple[Float32, Float32]:
    """log10 p (V,), NaN of words that are not allowed, and log10 γ (V,)."""
    logp = np.empty(parts.corpus.size, np.float32)
    for first in range(0, len(logp), CHUNK):
        part = slice(first, first + CHUNK)
        logp[part] = np.log10(np.maximum(weights.unigram[part], 10.0**NEVER))
    logp[BOUNDARY] = 0.0
    backoff = np.zeros(parts.corpus.size, np.float32)
    if parts.order > 1:
        gammas(counts.contexts, weights.discounts[2], backoff)
        once = (parts.counts > 0) & (counts.contexts[:, 0] == 0)
        if parts.allowed is not None:
            tokens = parts.corpus.tokens
            dropped = parts.allowed[tokens[PADDING:]] == 0
            once[tokens[PADDING - 1 : -1][dropped]] = False
        if parts.cutoffs[2] < 1:
            backoff[once] = log_probability(weights.discounts[2, 1])
    if parts.allowed is not None:
        logp[parts.allowed == 0] = np.nan
    return logp, backoff


def _smooth(parts: Partitions, weights: _Weights, number: int, sink: Sink) -> None:
    """A partition's n-grams by order, and the windows that spell them, to the sink."""
    s, windows, positions, kept = parts.kept(number)
    own = slice(weights.edges[number], weights.edges[number + 1])
    room = 1 << int(2 * (own.stop - own.start) + 2).bit_length()
    keys, values = np.empty(room, np.int64), np.empty(room, np.float32)
    fill_names(weights.first[own], weights.length[own], weights.gamma[own], keys, values)
    smooth(
        0, windows, positions, parts.corpus.tokens, parts.order, parts.cutoffs, parts.allowed,
        weights.discounts, weights.unigram, *kept, len(kept.nodes), s.contexts.seats, s.chain,
        keys, values, s.at, s.logp, s.backoff, s.sizes,
    )  # fmt: skip
    sink.partition(number, windows, s.at, s.logp, s.backoff, s.sizes)
