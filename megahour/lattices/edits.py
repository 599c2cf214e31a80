"""Edit distances over all paths of a lattice: the best path's words with their confidences, and the oracle's errors.

A word's confidence is the posterior share of the paths that have it at its position when all paths are aligned with the
best path. The alignment is approximated as in Xu, Povey, Mangu & Zhu, "Minimum Bayes risk decoding and system
combination based on a recursion for edit distance", 2011, and in Kaldi's lattice-to-ctm-conf, but the path stays fixed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megahour.core.compiled import compiled
from megahour.lattices.lattice import Lattice, posteriors

DELTA = 1e-5
"""Extra cost of an insertion, so that of equal alignments the one with fewest insertions wins."""
SUBSTITUTED, INSERTED, DELETED = 0, 1, 2


def confidences(lattice: Lattice, path: Sequence[int], scale: float) -> list[float]:
    """The confidence of each word of a path, from 0 to 1, with acoustic costs scaled by `scale`."""
    said = lattice.word[list(path)]
    shares = _shares(
        lattice.source,
        lattice.target,
        lattice.word,
        posteriors(lattice, scale).posterior,
        said[said > 0],
        lattice.states,
    )
    return np.clip(shares, 0.0, 1.0).tolist()  # type: ignore[no-any-return]


def oracle_errors(lattice: Lattice, reference: Sequence[str]) -> int:
    """Fewest word errors of any path."""
    numbers = {word: number for number, word in enumerate(lattice.words) if number}
    wanted = np.array([numbers.get(word, -1) for word in reference], np.int64)
    return int(_fewest(lattice.source, lattice.target, lattice.word, wanted, lattice.states))


@compiled
def _fewest(source, target, word, wanted, states):  # type: ignore[no-untyped-def]
    n = len(wanted)
    fewest = np.full((states, n + 1), 1 << 30, np.int64)
    for q in range(n + 1):
        fewest[0, q] = q
    for a in range(len(source)):
        s, d, w = source[a], target[a], word[a]
        for q in range(n + 1):
            value = fewest[s, q] + (1 if w else 0)
            if w and q:
                value = min(value, fewest[s, q - 1] + (0 if w == wanted[q - 1] else 1))
            fewest[d, q] = min(fewest[d, q], value)
        for q in range(n):
            fewest[d, q + 1] = min(fewest[d, q + 1], fewest[d, q] + 1)
    return fewest[states - 1, n]


@compiled
def _distances(at, w, said, row, choice):  # type: ignore[no-untyped-def]
    """Into `row`: expected distances behind an arc with word w, from those before it, `at`; and how each came about."""
    extra = 1.0 + DELTA if w else 0.0
    row[0] = at[0] + extra
    for q in range(1, len(row)):
        substituted = at[q - 1] + (0.0 if w == said[q - 1] else 1.0)
        inserted, deleted = at[q] + extra, row[q - 1] + 1.0
        if substituted <= inserted and substituted <= deleted:
            row[q], choice[q] = substituted, SUBSTITUTED
        elif inserted <= deleted:
            row[q], choice[q] = inserted, INSERTED
        else:
            row[q], choice[q] = deleted, DELETED


@compiled
def _shares(source, target, word, posterior, said, states):  # type: ignore[no-untyped-def]
    """For each position of `said`, the posterior share of the paths that have its word there."""
    n = len(said)
    into, expected = np.zeros(states), np.zeros((states, n + 1))
    row, choice = np.empty(n + 1), np.zeros(n + 1, np.int64)
    for a in range(len(source)):
        into[target[a]] += posterior[a]
    for q in range(n + 1):
        expected[0, q] = q
    for a in range(len(source)):
        if posterior[a] > 0.0:
            _distances(expected[source[a]], word[a], said, row, choice)
            for q in range(n + 1):
                expected[target[a], q] += posterior[a] / into[target[a]] * row[q]
    shares, mass = np.zeros(n), np.zeros((states, n + 1))
    mass[states - 1, n] = 1.0
    for a in range(len(source) - 1, -1, -1):
        if not posterior[a] > 0.0:
            continue
        s, w = source[a], word[a]
        _distances(expected[s], w, said, row, choice)
        left = 0.0  # of the position to the right, whose word this path has not
        for q in range(n, -1, -1):
            part = posterior[a] / into[target[a]] * mass[target[a], q] + left
            left = 0.0
            if q == 0 or choice[q] == INSERTED:
                mass[s, q] += part
            elif choice[q] == SUBSTITUTED:
                mass[s, q - 1] += part
                if w == said[q - 1]:
                    shares[q - 1] += part
            else:
                left = part
    return shares
