"""Which hypotheses of a transducer's beam go on, with what is fused: a `HypothesisChoice` of `models.token_search`.

As in the search of CTC, sequences are nodes of a tree: a frame's candidates are each hypothesis with a blank and with
every token; those of one sequence become one with the sum of their probabilities, and then the `beams` with the largest
ln p + F stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.decode.prefixes import (
    FUSED,
    NEVER,
    PARENT,
    TOKEN,
    Fusion,
    fused_sums,
    grown_node,
    grown_sum,
    log_sum,
    make_tree,
    place_for,
    put_in,
    with_room,
)

if TYPE_CHECKING:
    from torch import Tensor

    from megahour.models.paths import TokenPath

BLANK = 0


class FusedChoice:
    """For a batch of B utterances."""

    def __init__(self, fusion: Fusion, utterances: int, beams: int) -> None:
        self._fusion, self._frame, self._tree = fusion, 0, make_tree(fusion, utterances)
        self._nodes = np.full((utterances, beams), -1, np.int64)
        self._nodes[:, 0] = np.arange(utterances)
        self.scores = np.full((utterances, beams), NEVER)
        self.scores[:, 0] = 0.0

    def __call__(self, log_probs: Tensor, over: Tensor) -> tuple[Tensor, Tensor]:
        """As `HypothesisChoice`."""
        import torch  # graphs are searched without

        parents, labels = np.zeros((2, *self._nodes.shape), np.int64)
        self._tree = with_room(self._tree, self._nodes.size)
        values, ended = log_probs.cpu().numpy(), over.cpu().numpy()
        _advance(values, ended, self._fusion, self._tree, self._nodes, self.scores, self._frame, parents, labels)
        self._frame += 1
        return torch.from_numpy(parents).to(over.device), torch.from_numpy(labels).to(over.device)

    def best_first(self, paths: Sequence[Sequence[TokenPath]]) -> list[list[tuple[TokenPath, npt.NDArray[np.float64]]]]:
        """Paths of each utterance with `prefixes`' sums (6,) of their texts, by ln p + F."""
        found = [
            [(path, fused_sums(self._fusion, self._tree, root, path.tokens)) for path in some]
            for root, some in enumerate(paths)
        ]
        return [sorted(some, key=lambda each: -(each[0].score + each[1][FUSED])) for some in found]


@compiled
def _advance(log_probs, over, fusion, tree, nodes, scores, t, parents, labels):  # type: ignore[no-untyped-def]
    """One frame of (B, K, V). Writes nodes and scores (B, K), and from which hypothesis by which label they came."""
    beams, outputs = log_probs.shape[1], log_probs.shape[2]
    sums, ranking, entries = np.empty(6), np.empty(beams), np.empty((beams, 4))  # node, token, ln p, parent and label
    for b in range(len(nodes)):
        count = np.int64(0)
        for i in range(beams):
            parents[b, i], labels[b, i] = i, BLANK
            if nodes[b, i] >= 0:
                tree.seen[nodes[b, i]], tree.place[nodes[b, i]] = t, i
        if over[b]:
            continue
        for i in range(beams):
            node = nodes[b, i]
            if node < 0:
                continue
            grown, code, parent = scores[b, i] + log_probs[b, i, BLANK], i * outputs, tree.links[node, PARENT]
            if parent >= 0 and tree.seen[parent] == t:
                j, last = np.int64(tree.place[parent]), np.int64(tree.links[node, TOKEN])
                more = scores[b, j] + log_probs[b, j, last]
                code = code if grown >= more else j * outputs + last
                grown = log_sum(grown, more)
            at = place_for(grown + tree.sums[node, FUSED], ranking, count)
            if at >= 0:
                score = grown + tree.sums[node, FUSED]
                count = put_in(at, count, ranking, score, entries, node, np.int64(BLANK), grown, np.float64(code))
        for i in range(beams):
            node = nodes[b, i]
            if node < 0:
                continue
            fused = tree.sums[node, FUSED]
            for token in range(1, outputs):
                grown = scores[b, i] + log_probs[b, i, token]
                if grown == NEVER or (count == beams and grown + fused + fusion.most[token] <= ranking[beams - 1]):
                    continue
                score = grown + grown_sum(fusion, tree, node, token, t, sums)
                at = place_for(score, ranking, count)
                if at >= 0 and score > NEVER:
                    code = i * outputs + token
                    count = put_in(at, count, ranking, score, entries, node, token, grown, np.float64(code))
        for i in range(beams):
            nodes[b, i], scores[b, i] = -1, NEVER
        for i in range(count):
            nodes[b, i] = grown_node(fusion, tree, np.int64(entries[i, 0]), np.int64(entries[i, 1]))
            code = np.int64(entries[i, 3])
            scores[b, i], parents[b, i], labels[b, i] = entries[i, 2], code // outputs, code % outputs
