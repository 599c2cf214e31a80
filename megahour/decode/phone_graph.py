"""A decoding graph without words: an n-gram of senones, estimated from alignments.

It is the denominator of lattice-free MMI (Povey et al., "Purely sequence-trained neural networks for ASR based on
lattice-free MMI", 2016). It has no smoothing and no back-off arcs, so it stays small; rare histories are shortened.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import StageError
from megahour.core.store import Artifact
from megahour.decode.graph import Graph, hmm
from megahour.units.fst import from_columns

History = tuple[int, ...]
END = -1


def phone_graph(runs: Iterable[History], senones: int, order: int, min_count: int, self_loop: float) -> Graph:
    """The HMM graph of an n-gram of `order` over the senones of `runs`; its words are senone numbers.

    A history that occurs fewer than `min_count` times is shortened from its beginning, to one senone at least. Only
    senones observed after a history may follow it. Memory grows with the number of distinct n-grams.

    Raises
    ------
    StageError: there are no runs.
    """
    counts: Counter[History] = Counter()
    for run in runs:
        padded = (END, *run, END)  # END also marks the beginning, where histories are shorter
        for last in range(1, len(padded)):
            counts[padded[max(0, last - order + 1) : last + 1]] += 1
    if not counts:
        raise StageError("the units have no aligned utterances", where="graph", remedy="make the units again")
    kept = _kept(counts, min_count)
    following: dict[History, Counter[int]] = {}
    for gram, count in counts.items():
        following.setdefault(_longest(gram[:-1], kept), Counter())[gram[-1]] += count
    numbers = {history: number for number, history in enumerate([(END,), *sorted(set(following) - {(END,)})])}
    final = np.full(len(numbers), np.inf, np.float32)
    arcs: list[tuple[int, int, int, float, int]] = []
    for history, after in following.items():
        total = after.total()
        for senone, count in sorted(after.items()):
            cost = math.log(total / count)
            if senone == END:
                final[numbers[history]] = cost
            else:
                target = numbers[_longest((*history, senone)[-max(1, order - 1) :], kept)]
                arcs.append((numbers[history], senone + 1, senone + 1, cost, target))
    fst = from_columns(0, final, *zip(*arcs, strict=True))
    return Graph(hmm(fst, self_loop), ["<eps>", *map(str, range(senones))])


def _kept(counts: Counter[History], min_count: int) -> set[History]:
    """Histories that become states: the frequent ones, and all of one senone."""
    of_histories: Counter[History] = Counter()
    for gram, count in counts.items():
        for first in range(len(gram) - 1):
            of_histories[gram[first:-1]] += count
    return {history for history, count in of_histories.items() if len(history) == 1 or count >= min_count}


def _longest(history: History, kept: set[History]) -> History:
    return next(history[first:] for first in range(len(history)) if history[first:] in kept)


def runs_of(units: Artifact) -> Iterator[History]:
    """The senones of each aligned utterance, with repeated frames merged."""
    for receipt in units.each_receipt():
        table = units.read_table(receipt.shard, ".alignments.arrow", columns=["senones"])
        for row in table["senones"]:
            frames: NDArray[Any] = row.values.to_numpy()
            yield tuple(frames[np.flatnonzero(np.diff(frames, prepend=-1))].tolist())
