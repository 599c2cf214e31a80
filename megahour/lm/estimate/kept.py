"""What the first sweep of a partition leaves for the second pass: n-grams that are kept, and sums over their contexts.

n-grams that pruning drops are collapsed into one wildcard entry a context, `Σ a` of them, which is among its sums
(SUMS): of "how to *" remains a single number.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.estimate.sweep import SUMS, Int32, Int64, Store, Words

GRAM_BYTES, NODE_BYTES = 16, 16 + 4 * SUMS


class Kept(NamedTuple):
    """grams (G, 4), nodes (N, 4), sums (N, SUMS): int32, as in `sweep.Store`, without the n-grams that are dropped."""

    grams: Int32
    nodes: Int32
    sums: Int32

    @property
    def nbytes(self) -> int:
        return GRAM_BYTES * len(self.grams) + NODE_BYTES * len(self.nodes)

    def copy(self) -> Kept:
        """In pages of its own, which go back to the system with the last reference."""
        n, g = len(self.nodes), len(self.grams)
        private = mmap.mmap(-1, max(self.nbytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages = np.frombuffer(private, np.int32, self.nbytes // 4)
        grams, nodes, sums = np.split(pages, [4 * g, 4 * g + 4 * n])
        copied = Kept(grams.reshape(g, 4), nodes.reshape(n, 4), sums.reshape(n, SUMS))
        for target, source in zip(copied, self, strict=True):
            np.copyto(target, source)
        return copied


def keep(store: Store, nodes: int, grams: int, windows: Int32, prune: Int64, allowed: Words) -> Kept:
    """Drop n-grams from a store, in place. prune, allowed: see `sweep`."""
    if prune.any() or allowed is not None:
        grams = int(_drop(store.grams, store.nodes, nodes, windows, prune, allowed))
    return Kept(store.grams[:grams], store.nodes[:nodes], store.sums[:nodes])


@compiled
def _drop(grams, nodes, n, windows, prune, allowed):  # type: ignore[no-untyped-def]
    held = 0
    for node in range(n):
        length, begin, end = nodes[node, 0], nodes[node, 1], nodes[node, 2]
        nodes[node, 1] = held
        whole = True
        if allowed is not None:
            for j in range(1, length + 1):
                whole = whole and allowed[windows[nodes[node, 3], j]] != 0
        for g in range(begin, end):
            kept = whole and grams[g, 3] > prune[length + 1]
            if allowed is not None:
                kept = kept and allowed[grams[g, 0]] != 0
            if kept:
                for column in range(4):
                    grams[held, column] = grams[g, column]
                held += 1
        nodes[node, 2] = held
    return held
