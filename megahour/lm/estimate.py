"""Interpolated modified Kneser-Ney on one machine, in memory: tokens to an ARPA file.

Two passes over the partitions, both parallel:

    count    sort a partition by history (once; it stays sorted) and sweep it: tallies for the discounts, sums of
             contexts, and how many bytes its lines will take
    smooth   sweep it again, which costs less than keeping what the first sweep saw; probabilities, lines, file

Between them: discounts, and log γ of contexts on its way to the partitions that print it. Memory: 8 bytes a token, and
32 bytes for each context of two words or more that occurs twice; a frequent word's partition sets the scratch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from megahour.lm.arpa_text import ROOM, THREE_DIGITS, line_bytes, write_lines
from megahour.lm.discounts import Discount, Float64, discounts, unigram_probabilities
from megahour.lm.history import Int32, Int64
from megahour.lm.partitions import PADDING, Corpus, Partitions, Scratch
from megahour.lm.smooth import NEVER, fill_names, gammas, smooth
from megahour.lm.sweep import CHARACTERS, KEPT, SUMS, TALLIES
from megahour.lm.tokenise import BOUNDARY, END

MAX_ORDER = 7
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Model:
    """What was estimated, but for the n-grams, which are in the file. sizes: n-grams by order; fallbacks: orders and
    reasons; partitions: how many, and positions of the largest and of the middle one."""

    order: int
    sizes: list[int]
    discounts: list[Discount]
    fallbacks: dict[int, str]
    partitions: tuple[int, int, int]


@dataclass(frozen=True)
class _Names:
    """Contexts of two words or more that occur more than once. first: position of the last word of the first one;
    length: words; target: partition that prints the context as an n-gram."""

    first: Int64
    length: npt.NDArray[np.int8]
    target: npt.NDArray[np.uint16]
    sums: Int32


@dataclass(frozen=True)
class _Counts:
    """unigrams (V,), contexts (V, SUMS): adjusted counts of words, and sums of the contexts of one word. tallies
    (P, order + 1, TALLIES): by partition."""

    unigrams: Int64
    contexts: Int64
    tallies: Int64
    names: list[_Names]


@dataclass(frozen=True)
class _Weights:
    """What the partitions need to smooth: discounts (order + 2, 4); unigram (V,), `</s>` under BOUNDARY; names with
    log γ, those of partition i in edges[i] .. edges[i + 1]."""

    discounts: Float64
    unigram: Float64
    first: Int64
    length: npt.NDArray[np.int8]
    gamma: npt.NDArray[np.float32]
    edges: npt.NDArray[np.intp]


def thresholds(order: int, prune: Sequence[int]) -> Int64:
    """(order + 2,) by order: n-grams seen at most so often are dropped; the last value given holds for higher orders.

    Raises ValueError: order out of range; not 0 for unigrams, or decreasing.
    """
    if not 1 <= order <= MAX_ORDER:
        raise ValueError(f"order {order} is not in 1 … {MAX_ORDER}; 3 is usual")
    given = list(prune[:order]) or [0]
    if given[0] != 0 or given != sorted(given):
        raise ValueError(f"prune {list(prune)}: must begin with 0 and not decrease; limit unigrams by the vocabulary")
    return np.array([0, *given, *[given[-1]] * (order + 1 - len(given))], np.int64)


def estimate(
    corpus: Corpus,
    order: int,
    path: Path,
    *,
    prune: Sequence[int] = (),
    threads: int = 1,
    progress: Progress = lambda phase, done, total: None,
) -> Model:
    """Write the model of `corpus` to `path` as an ARPA file: the same bytes whatever `threads`.

    prune[k-1]: drop k-grams that occur at most so often; the last value holds for all higher orders.

    Raises
    ------
    ValueError: the corpus is empty, or `order` or `prune` is out of range.
    """
    limits = thresholds(order, prune)
    if len(corpus.tokens) <= PADDING:
        raise ValueError("no words to count: the text is empty; give at least one sentence")
    parts = Partitions(corpus, order, limits, threads)
    counts = _count(parts, progress)
    total = counts.tallies.sum(axis=0)
    ones = np.bincount(counts.unigrams[counts.unigrams < 5], minlength=5)
    found, fallbacks = discounts([ones, *total[2:, :5]])
    weights = _weigh(parts, counts, found)
    sizes = [corpus.size, *total[2:, KEPT].tolist()]
    with path.open("wb") as file:
        file.write(_header(sizes) + _unigram_lines(parts, counts, weights))
        _write_orders(parts, counts.tallies, weights, file.fileno(), file.tell(), progress)
    spread = parts.sizes
    return Model(order, sizes, found, fallbacks, (len(parts), int(spread.max()), int(np.median(spread))))


def _count(parts: Partitions, progress: Progress) -> _Counts:
    tallies = np.zeros((len(parts), parts.order + 1, TALLIES), np.int64)
    contexts = np.zeros((parts.corpus.size, SUMS), np.int64)

    def count(number: int) -> _Names:
        parts.sort(number)
        s, windows, _, n = parts.sweep(number, tallies[number])
        nodes, sums = s.store.nodes[:n], s.store.sums[:n]
        single = nodes[:, 0] == 1
        contexts[windows[nodes[single, 3], 1]] = sums[single]  # a word is in one partition only
        long = ~single
        target = parts.owner[windows[nodes[long, 3], 2]] if parts.order > 2 else np.zeros(0, np.uint16)
        return _Names(s.store.first[:n][long], nodes[long, 0].astype(np.int8), target, sums[long].astype(np.int32))

    names = []
    for done, found in enumerate(parts.each(count), 1):
        names.append(found)
        progress("count", done, len(parts))
    unigrams = parts.unigrams if parts.order > 1 else _occurrences(parts.corpus)
    unigrams[END], unigrams[BOUNDARY] = unigrams[BOUNDARY], 0
    return _Counts(unigrams, contexts, tallies, names)


def _occurrences(corpus: Corpus) -> Int64:
    return np.bincount(corpus.tokens[PADDING:], minlength=corpus.size)


def _weigh(parts: Partitions, counts: _Counts, found: list[Discount]) -> _Weights:
    table = np.zeros((parts.order + 2, 4))
    table[1 : parts.order + 1, 1:] = found
    unigram = unigram_probabilities(counts.unigrams, found[0], BOUNDARY)
    unigram[BOUNDARY] = unigram[END]
    first, length, target = (
        np.concatenate([getattr(names, field) for names in counts.names]) for field in ("first", "length", "target")
    )
    sums = np.concatenate([names.sums for names in counts.names])
    gamma = np.empty(len(first), np.float32)
    for words in range(2, parts.order):
        gamma[length == words] = _log_gammas(sums[length == words], table[words + 1])
    by_target = np.argsort(target, kind="stable")
    edges = np.searchsorted(target[by_target], np.arange(len(parts) + 1))
    return _Weights(table, unigram, first[by_target], length[by_target], gamma[by_target], edges)


def _log_gammas(sums: Int32 | Int64, discount: Float64) -> Float64:
    result = np.empty(len(sums))
    gammas(sums, discount, result)
    return result


def _header(sizes: list[int]) -> bytes:
    return b"\\data\\\n" + b"".join(b"ngram %d=%d\n" % entry for entry in enumerate(sizes, 1))


def _section(k: int) -> bytes:
    return b"\n\\%d-grams:\n" % k


def _unigram_lines(parts: Partitions, counts: _Counts, weights: _Weights) -> bytes:
    size = parts.corpus.size
    unigram = weights.unigram.copy()
    unigram[BOUNDARY] = 1.0
    logp = np.log10(np.maximum(unigram, 10.0**NEVER)).astype(np.float32)
    backoff = np.zeros(size, np.float32)
    if parts.order > 1:
        several = counts.contexts[:, 0] > 0
        backoff[several] = _log_gammas(counts.contexts[several], weights.discounts[2])
        once = (parts.counts > 0) & ~several
        single = np.array([[1, 1, 0, 0, 0]] if parts.prune[2] < 1 else [[1, 0, 0, 0, 1]])
        backoff[once] = _log_gammas(single, weights.discounts[2])[0]
    words = np.arange(size, dtype=np.int32)
    room = line_bytes(1, parts.order == 1, size, int(parts.corpus.starts[-1]))
    text = np.empty(room + ROOM, np.uint8)
    corpus = parts.corpus
    used = write_lines(
        1,
        parts.order == 1,
        words[:, None],
        words,
        logp,
        backoff,
        size,
        corpus.arena,
        corpus.starts,
        BOUNDARY,
        THREE_DIGITS,
        text,
    )
    return _section(1) + text[:used].tobytes()


def _write_orders(
    parts: Partitions, tallies: Int64, weights: _Weights, file: int, size: int, progress: Progress
) -> None:
    """Lines of the orders from 2 on: each partition's at the places that its tallies tell, whoever comes first."""
    order = parts.order
    places = np.zeros((len(parts), order + 1), np.int64)
    for k in range(2, order + 1):
        lengths = [line_bytes(k, k == order, int(t[k, KEPT]), int(t[k, CHARACTERS])) for t in tallies]
        size += os.pwrite(file, _section(k), size)
        places[:, k] = size + np.concatenate([[0], np.cumsum(lengths[:-1])])
        size += sum(lengths)
    os.pwrite(file, b"\n\\end\\\n", size)

    def write(number: int) -> None:
        s, windows = _smooth(parts, weights, number)
        for k in range(2, order + 1):
            lines, characters = int(tallies[number, k, KEPT]), int(tallies[number, k, CHARACTERS])
            text = np.empty(line_bytes(k, k == order, lines, characters) + ROOM, np.uint8)
            used = write_lines(
                k, k == order, windows, s.at[k], s.logp[k], s.backoff[k], lines,
                parts.corpus.arena, parts.corpus.starts, END, THREE_DIGITS, text,
            )  # fmt: skip
            if used != len(text) - ROOM or lines != s.sizes[k]:
                raise AssertionError(f"partition {number}: {s.sizes[k]} {k}-grams in {used} bytes, not {lines}")
            os.pwrite(file, text[:used].data, int(places[number, k]))

    for done, _ in enumerate(parts.each(write), 1):
        progress("write", done, len(parts))


def _smooth(parts: Partitions, weights: _Weights, number: int) -> tuple[Scratch, Int32]:
    """Scratch with a partition's n-grams by order, and the windows that spell them."""
    s, windows, positions, nodes = parts.sweep(number, np.zeros((parts.order + 1, TALLIES), np.int64))
    own = slice(weights.edges[number], weights.edges[number + 1])
    room = 1 << int(2 * (own.stop - own.start) + 2).bit_length()
    keys, values = np.empty(room, np.int64), np.empty(room, np.float32)
    fill_names(weights.first[own], weights.length[own], weights.gamma[own], keys, values)
    smooth(
        windows, positions, parts.order, parts.prune, weights.discounts, weights.unigram,
        s.store.grams, s.store.nodes, s.store.sums, nodes, s.contexts.seats, s.chain,
        keys, values, s.at, s.logp, s.backoff, s.sizes,
    )  # fmt: skip
    return s, windows
