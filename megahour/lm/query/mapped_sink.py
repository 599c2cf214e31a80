"""The sink for mapped models: the partitions of the estimator become segments, without an ARPA file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from megahour.lm.arpa.direct import ThreadedFile
from megahour.lm.estimate.estimate import Estimated, estimate
from megahour.lm.estimate.partitions import Corpus, Partitions
from megahour.lm.estimate.sweep import KEPT, Words
from megahour.lm.query.mapped_build import Builder
from megahour.lm.text.arrays import Float32, Int32, Int64
from megahour.lm.text.tokenise import END, PADDING, WordTable


class MappedSink:
    """An `estimate.Sink` that writes a mapped model. `builder` is set by `begin`."""

    spelled = False

    builder: Builder

    def __init__(self, file: ThreadedFile) -> None:
        self.file = file
        self._numbers: Int32 | None = None  # new word numbers, if the model leaves words out

    def begin(self, parts: Partitions, tallies: Int64, sizes: list[int], logp: Float32, backoff: Float32) -> None:
        owner, ngrams = parts.owner, tallies[:, 2:, KEPT].sum(axis=1)
        left = ~np.isnan(logp)
        table = _table(parts.corpus, None if left.all() else left)
        if not left.all():
            self._numbers = np.where(left, np.cumsum(left) - 1, 0).astype(np.int32)
        weights = backoff[left]
        weights[weights == 0] = -0.0  # see `states`; this estimator gives no other weights of zero
        self.builder = Builder(self.file, table, parts.order, owner[left], ngrams, logp[left], weights)

    def partition(self, number: int, windows: Int32, at: Int32, logp: Float32, backoff: Float32, sizes: Int64) -> None:
        if self._numbers is not None:
            windows = self._numbers[windows]
        self.builder.fill_partition(number, windows, at, logp, backoff, sizes, END)

    def end(self) -> None:
        """Does nothing: `Builder.finish` needs the result of the estimation."""


def _table(corpus: Corpus, left: Any) -> WordTable:
    """The words of the corpus, or those that are left."""
    table = WordTable()
    if left is not None:
        for number in np.flatnonzero(left).tolist():
            table.add(corpus.spell(number))
        return table
    table.size, table.starts = corpus.size, corpus.starts
    table.arena = corpus.arena[: int(corpus.starts[-1]) + PADDING]
    return table


def estimate_mapped(
    corpus: Corpus,
    order: int,
    path: Path,
    *,
    cutoffs: Sequence[int] = (),
    allowed: Words = None,
    threads: int = 1,
    facts: dict[str, Any] | None = None,
    progress: Callable[[str, int, int], None] = lambda phase, done, total: None,
) -> Estimated:
    """Estimate a model and write it to `path` as a mapped file. The bytes do not depend on `threads`.

    cutoffs, allowed: see `estimate`. facts: more facts for the file's header. Raises as `estimate`.
    """
    with ThreadedFile(path) as file:
        sink = MappedSink(file)
        model = estimate(corpus, order, sink, cutoffs=cutoffs, allowed=allowed, threads=threads, progress=progress)
        made = asdict(model)
        del made["order"], made["sizes"]
        if not model.wildcards:
            del made["wildcards"]
        sink.builder.finish(model.sizes, {**made, "prune": list(cutoffs), **(facts or {})})
    return model
