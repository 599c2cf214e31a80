"""What the first sweep of a partition leaves for the second pass: n-grams that are kept, and sums over their contexts.

n-grams that pruning drops are collapsed into one wildcard entry a context, `Σ a` of them, which is among its sums
(SUMS): of "how to *" remains a single number.
"""

from __future__ import annotations

from typing import NamedTuple

from megahour.core.compiled import compiled
from megahour.lm.estimate.sweep import SUMS, Int32, Int64, Store, Words, store

GRAM_BYTES, NODE_BYTES = 16, 16 + 4 * SUMS
SHELF = 1 << 20  # positions that a shelf has room for, or more


class Kept(NamedTuple):
    """grams (G, 4), nodes (N, 4), sums (N, SUMS): int32, as in `sweep.Store`, without the n-grams that are dropped."""

    grams: Int32
    nodes: Int32
    sums: Int32

    @property
    def nbytes(self) -> int:
        return GRAM_BYTES * len(self.grams) + NODE_BYTES * len(self.nodes)


class Shelf:
    """Room for a thread's sweeps: what one leaves and is taken stays where it is, and the next one goes behind it."""

    def __init__(self, order: int) -> None:
        self._order = order
        self._store = store(order, 0)

    def room(self, positions: int) -> Store:
        """For a partition of so many positions."""
        rows = positions * (self._order - 1)
        if min(len(self._store.grams), len(self._store.nodes)) < rows:
            # Pages that are never written take nothing; the arrays before go with the last view of them.
            self._store = store(self._order, max(positions, SHELF))
        return self._store

    def take(self, kept: Kept) -> None:
        """Leave what the last sweep found alone."""
        grams, nodes, sums, first = self._store
        n = len(kept.nodes)
        self._store = Store(grams[len(kept.grams) :], nodes[n:], sums[n:], first)


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
