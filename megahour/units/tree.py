"""Phonetic decision trees: triphones with similar Gaussians share a senone (Young, Odell and Woodland, 1994).

A node's score is the log-likelihood of its frames under one diagonal Gaussian. The split with the largest gain over all
nodes is made first, until there are enough leaves or no split gains enough. Questions ask for classes of phones,
found by clustering the means of the monophones, or for single phones. Unseen triphones descend the same trees.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage

from megahour.units.hmm import BOUNDARY, SILENCE, Units

MIN_GAIN = 50.0
VARIANCE_FLOOR = 1e-3
Triple = tuple[str, str, str]


@dataclass
class TripleStatistics:
    """Sums over the frames of each (left, phone, right): count, Σx (D,), Σx² (D,)."""

    dims: int
    sums: dict[Triple, NDArray[np.float64]] = field(default_factory=dict)  # each (1 + 2 D,)

    def add(self, triple: Triple, frames: NDArray[np.float32]) -> None:
        exact = frames.astype(np.float64)
        row = np.concatenate([[exact.shape[0]], exact.sum(axis=0), np.square(exact).sum(axis=0)])
        self.sums[triple] = self.sums[triple] + row if triple in self.sums else row


def likelihood(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """(…, 1 + 2 D) → (…): log-likelihood of the frames under their own Gaussian, without the constant term."""
    dims = (sums.shape[-1] - 1) // 2
    n = np.maximum(sums[..., :1], 1e-9)
    mean = sums[..., 1 : 1 + dims] / n
    variance = np.maximum(sums[..., 1 + dims :] / n - np.square(mean), VARIANCE_FLOOR)
    result: NDArray[np.float64] = -0.5 * sums[..., 0] * np.log(variance).sum(axis=-1)
    return result


def questions(stats: TripleStatistics, phones: Sequence[str]) -> list[tuple[str, ...]]:
    """Phone classes from average-linkage clustering of the phones' means, each phone alone, and the word boundary."""
    total: dict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros(1 + 2 * stats.dims))
    for (_, phone, _), row in stats.sums.items():
        total[phone] = total[phone] + row
    known = [phone for phone in phones if total[phone][0] > 0]
    classes: list[tuple[str, ...]] = [(phone,) for phone in known]
    if len(known) > 2:
        means = np.array([total[p][1 : 1 + stats.dims] / total[p][0] for p in known])
        for a, b, _, _ in linkage(means, "average")[:-1]:
            classes.append(tuple(sorted(classes[int(a)] + classes[int(b)])))
    return [*classes, (BOUNDARY,)]


@dataclass
class _Node:
    """A leaf under construction: its triphones, their sums, and the best question found for it."""

    triples: list[Triple]
    rows: NDArray[np.float64]
    tree: dict[str, Any]  # this leaf in the nested tree; `split` fills it in place
    gain: float = 0.0
    question: tuple[str, tuple[str, ...]] | None = None

    def consider(self, classes: Sequence[tuple[str, ...]], min_frames: float) -> None:
        parent = likelihood(self.rows.sum(axis=0))
        for side, column in (("left", 0), ("right", 2)):
            contexts = [triple[column] for triple in self.triples]
            member = np.array([[context in cls for context in contexts] for cls in map(frozenset, classes)], np.float64)
            yes = member @ self.rows
            no = self.rows.sum(axis=0) - yes
            gains = likelihood(yes) + likelihood(no) - parent
            gains[(yes[:, 0] < min_frames) | (no[:, 0] < min_frames)] = -np.inf
            best = int(np.argmax(gains))
            if gains[best] > max(self.gain, MIN_GAIN):
                self.gain, self.question = float(gains[best]), (side, classes[best])

    def split(self) -> tuple[_Node, _Node]:
        assert self.question is not None
        side, phones = self.question
        column = 0 if side == "left" else 2
        member = np.array([triple[column] in phones for triple in self.triples])
        self.tree.update({"side": side, "phones": list(phones), "yes": {}, "no": {}})
        parts = []
        for branch, own in (("yes", member), ("no", ~member)):
            triples = [triple for triple, mine in zip(self.triples, own, strict=True) if mine]
            parts.append(_Node(triples, self.rows[own], self.tree[branch]))
        return parts[0], parts[1]


def grow(
    stats: TripleStatistics, phones: Sequence[str], senones: int, min_frames: float, noises: Collection[str] = ()
) -> Units:
    """Grow trees with `senones` leaves in total, counting silence; fewer if no further split gains enough.

    Every phone gets at least one senone, even if there are more phones than `senones`. Priors are shares of frames. No
    question asks for the phones `noises`, whose one context is the word boundary, so that each has one senone.
    """
    classes = questions(stats, [phone for phone in phones if phone not in noises])
    trees: dict[str, dict[str, Any]] = {phone: {} for phone in phones}
    leaves: list[_Node] = []
    by_phone: dict[str, list[Triple]] = defaultdict(list)
    for triple in sorted(stats.sums):
        by_phone[triple[1]].append(triple)
    for phone in phones:
        triples = by_phone[phone]
        rows = np.array([stats.sums[t] for t in triples]) if triples else np.zeros((0, 1 + 2 * stats.dims))
        leaves.append(_Node(triples, rows, trees[phone]))
    heap: list[tuple[float, int]] = []
    for number, node in enumerate(leaves):
        if node.triples:
            node.consider(classes, min_frames)
        if node.question:
            heapq.heappush(heap, (-node.gain, number))
    count = len(leaves) + 1
    while heap and count < senones:
        _, number = heapq.heappop(heap)
        for part in leaves[number].split():
            part.consider(classes, min_frames)
            if part.question:
                heapq.heappush(heap, (-part.gain, len(leaves)))
            leaves.append(part)
        count += 1
    return _number(trees, phones, [leaf for leaf in leaves if not leaf.tree], stats)


def _number(
    trees: Mapping[str, dict[str, Any]], phones: Sequence[str], leaves: list[_Node], stats: TripleStatistics
) -> Units:
    """Number the leaves phone by phone, and set the priors to shares of frames."""
    frames = {id(leaf.tree): float(leaf.rows[:, 0].sum()) for leaf in leaves}
    names, counts = [SILENCE], [sum(row[0] for triple, row in stats.sums.items() if triple[1] == SILENCE)]

    def visit(phone: str, node: dict[str, Any]) -> None:
        if "side" in node:
            visit(phone, node["yes"])
            visit(phone, node["no"])
            return
        count = frames[id(node)]
        node["leaf"] = len(names)
        names.append(f"{phone}_{len(names) - first}")
        counts.append(count)

    for phone in phones:
        first = len(names)
        visit(phone, trees[phone])
    return Units(tuple(phones), tuple(names), 0, (), dict(trees)).with_frames(np.array(counts))
