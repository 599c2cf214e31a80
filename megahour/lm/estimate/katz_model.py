"""Estimation of Katz's back-off from a corpus: counts of counts, then α of all contexts, then lines (formulas: `katz`).

α(h) depends on probabilities of shorter histories, and is printed with the n-gram h, in another partition. So there are
three passes over the partitions, which exchange α by an array indexed by the length of h and the position where it
first ends: 4 bytes per token for each order but the highest.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np

from megahour.lm.arpa.parse import NEVER
from megahour.lm.arpa.read import Progress
from megahour.lm.arpa.write import END_OF_MODEL, format_lines, header, room_for, section
from megahour.lm.estimate.estimate import Estimated, Sink, thresholds
from megahour.lm.estimate.katz import MOST, count_counts, good_turing, katz, unigram_katz
from megahour.lm.estimate.partitions import PADDING, Corpus, Partitions
from megahour.lm.estimate.sweep import KEPT, TALLIES
from megahour.lm.text.arrays import Float32, Int32, Int64
from megahour.lm.text.tokenise import BOUNDARY, END


def estimate_katz(
    corpus: Corpus,
    order: int,
    to: Path | Sink,
    *,
    cutoffs: Sequence[int] = (),
    threads: int = 1,
    progress: Progress = lambda phase, done, total: None,
) -> Estimated:
    """Like `estimate.estimate`, for Katz's back-off with Good-Turing discounts, whose discounts are d(1) … d(K).

    Raises ValueError: the corpus is empty, or `order` or `cutoffs` is out of range.
    """
    limits = thresholds(order, cutoffs)
    if len(corpus.tokens) <= PADDING:
        raise ValueError("no words to count: the text is empty; give at least one sentence")
    parts = Partitions(corpus, order, limits, threads, spelled=False)
    if isinstance(to, Path):
        with TextSink(to, corpus) as sink:
            return _estimate(parts, sink, progress)
    return _estimate(parts, to, progress)


def _estimate(parts: Partitions, sink: Sink, progress: Progress) -> Estimated:
    order, corpus = parts.order, parts.corpus
    tallies, counts = _count(parts, progress)
    result = [good_turing(counts[k]) for k in range(1, order + 1)]
    ratios = np.stack([np.zeros(MOST + 2), *(each for each, _ in result)])
    unigram = unigram_katz(corpus.occurrences(), ratios[1])
    logp = np.log10(np.maximum(unigram, 10.0**NEVER)).astype(np.float32)
    unigram[BOUNDARY] = unigram[END]
    alpha = np.zeros((order, len(corpus.tokens)), np.float32)

    def score(number: int) -> None:
        s, windows, positions, n = parts.swept(number)
        katz(
            windows, positions, order, parts.cutoffs, ratios, unigram, s.store.grams, s.store.nodes, n,
            s.contexts.seats, s.chain, alpha, s.at, s.logp, s.backoff, s.sizes,
        )  # fmt: skip
        if writing:
            sink.partition(number, windows, s.at, s.logp, s.backoff, s.sizes)

    writing = False
    parts.each(score, "weigh", progress)
    sizes = [corpus.size, *tallies.sum(axis=0)[2:, KEPT].tolist()]
    sink.begin(parts, tallies, sizes, logp, _unigram_backoff(parts, alpha))
    writing = True
    parts.each(score, "write", progress)
    sink.end()
    return Estimated(
        order, sizes, [tuple(each[1:-1].tolist()) for each, _ in result],
        {k: why for k, (_, why) in enumerate(result, 1) if why},
        parts.spread,
    )  # fmt: skip


def _count(parts: Partitions, progress: Progress) -> tuple[Int64, Int64]:
    """Tallies by partition, and counts of counts (order + 1, MOST + 2)."""
    tallies = np.zeros((len(parts), parts.order + 1, TALLIES), np.int64)
    counts = np.zeros((len(parts) + 1, parts.order + 1, MOST + 2), np.int64)

    def count(number: int) -> None:
        s, windows, n = parts.count(number, tallies[number])
        count_counts(windows, parts.order, s.store.grams, s.store.nodes, n, counts[number])

    parts.each(count, "count", progress)
    words = parts.corpus.occurrences()
    counts[-1, 1, : MOST + 2] = np.bincount(words[words < MOST + 2], minlength=MOST + 2)
    return tallies, counts.sum(axis=0)


def _unigram_backoff(parts: Partitions, alpha: Float32) -> Float32:
    """log10 α (V,) of contexts of one word; such a context first ends where the word first occurs."""
    backoff = np.zeros(parts.corpus.size, np.float32)
    if parts.order > 1:
        words, first = np.unique(parts.corpus.tokens[PADDING - 1 : -1], return_index=True)
        backoff[words] = alpha[1, first + PADDING - 1]
    return backoff


class TextSink:
    """An `estimate.Sink` for ARPA files with numbers of any size and sign, such as Katz's back-off weights.

    It collects the sections in one temporary file each, beside the model's file. A context manager.
    """

    spelled = False

    def __init__(self, path: Path, corpus: Corpus) -> None:
        self._path, self._corpus = path, corpus
        self._lengths = np.diff(corpus.starts)
        self._stack, self._lock = ExitStack(), threading.Lock()
        self._sections: list[BinaryIO] = []
        self._waiting: dict[int, list[bytes]] = {}
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        for k in range(len(self._sections)):
            self._section(k).unlink()

    def begin(self, parts: Partitions, tallies: Int64, sizes: list[int], logp: Float32, backoff: Float32) -> None:
        self._sections = [self._stack.enter_context(self._section(k).open("w+b")) for k in range(len(sizes))]
        words = np.arange(self._corpus.size, dtype=np.int32)[:, None]
        self._sections[0].write(header(sizes) + section(1) + self._lines(words, logp, backoff, parts.order == 1))

    def partition(self, number: int, windows: Int32, at: Int32, logp: Float32, backoff: Float32, sizes: Int64) -> None:
        order, texts = len(sizes) - 1, []
        for k in range(2, order + 1):
            n = int(sizes[k])
            grams = np.ascontiguousarray(windows[at[k, :n], k - 1 :: -1])
            grams[grams[:, -1] == BOUNDARY, -1] = END
            texts.append(self._lines(grams, logp[k, :n], backoff[k, :n], k == order))
        with self._lock:
            self._waiting[number] = texts
            while (ready := self._waiting.pop(self._next, None)) is not None:
                for file, text in zip(self._sections[1:], ready, strict=True):
                    file.write(text)
                self._next += 1

    def end(self) -> None:
        with self._path.open("wb") as out:
            for k, file in enumerate(self._sections):
                if k:
                    out.write(section(k + 1))
                file.seek(0)
                shutil.copyfileobj(file, out, 1 << 20)
            out.write(END_OF_MODEL)

    def _section(self, k: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{k + 1}")

    def _lines(self, grams: Int32, logp: Float32, backoff: Float32, highest: bool) -> bytes:
        out = np.empty(room_for(grams, self._lengths), np.uint8)
        arena, starts = self._corpus.arena, self._corpus.starts
        logs = logp.astype(np.float64), backoff.astype(np.float64)
        return out[: format_lines(grams, 0, len(grams), *logs, highest, arena, starts, out)].tobytes()
