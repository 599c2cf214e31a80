"""CTC prefix beam search (Graves & Jaitly, 2014; Hannun et al., 2014), and the best alignment of its results.

For each sequence y the search keeps the probability of all paths that spell it, separately for paths that end in a
blank and paths that end in a label:

    blank(y, t) = (blank + label)(y, t-1) · p_t(blank)
    label(yc, t) = label(yc, t-1) · p_t(c) + (blank(y, t-1) if y ends in c, else (blank + label)(y, t-1)) · p_t(c)

The candidates of a frame are the sequences of the beam and their extensions by one token. The `beams` candidates with
the largest ln p + F (see `prefixes`) stay. Since F of a token has an upper bound, only candidates that can be among
them are looked up in the language model; this loses nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.decode.prefixes import (
    FUSED,
    NEVER,
    PARENT,
    TOKEN,
    Fusion,
    ended,
    grown_node,
    grown_sum,
    log_sum,
    make_tree,
    place_for,
    put_in,
    with_room,
)

BLANK = 0

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


class CtcBeam:
    """The search of one utterance, whose frames may arrive in chunks."""

    def __init__(self, fusion: Fusion, beams: int) -> None:
        self._fusion, self._tree, self._frames = fusion, make_tree(fusion, 1), 0
        self._nodes = np.full(beams, -1, np.int64)
        self._blank, self._label = np.full((2, beams), NEVER)
        self._nodes[0], self._blank[0] = 0, 0.0

    def advance(self, log_probs: Float32) -> None:
        """Add the next frames of CTC's log probabilities, (T, V)."""
        values = np.ascontiguousarray(log_probs, np.float32)
        self._tree = with_room(self._tree, len(values) * len(self._nodes))
        held = int((self._nodes >= 0).sum())
        _sweep(values, self._fusion, self._tree, self._nodes, self._blank, self._label, held, self._frames)
        self._frames += len(values)

    def found(self) -> list[tuple[list[int], float, Float64]]:
        """Up to `beams` sequences: tokens, ln p summed over their paths, and the sums (6,) of `prefixes.ended`.

        Sorted by ln p + F of the complete text, best first.
        """
        found = []
        scores = np.logaddexp(self._blank, self._label).tolist()
        for node, score in zip(self._nodes.tolist(), scores, strict=True):
            if node >= 0:
                sums, tokens = np.empty(6), []
                ended(self._fusion, self._tree, node, sums)
                while node:
                    tokens.append(int(self._tree.links[node, TOKEN]))
                    node = int(self._tree.links[node, PARENT])
                found.append((tokens[::-1], score, sums))
        return sorted(found, key=lambda each: -(each[1] + each[2][FUSED]))


@compiled
def _sweep(log_probs, fusion, tree, nodes, blank, label, held, seen):  # type: ignore[no-untyped-def]
    """Advance the beam in place through (T, V): `nodes` (K,), the first `held` of them in use, with their ln p (K,).

    seen: number of earlier frames.
    """
    beams, sums, most = len(nodes), np.empty(6), NEVER
    for token in range(1, len(fusion.most)):
        most = max(most, fusion.most[token])
    ranking, entries = np.empty(beams), np.empty((beams, 4))  # node, token or BLANK for the node itself, blank, label
    for t in range(seen, seen + len(log_probs)):
        row, count, top = log_probs[t - seen], np.int64(0), NEVER
        for i in range(1, len(row)):
            top = max(top, np.float64(row[i]))
        for i in range(held):
            tree.seen[nodes[i]], tree.place[nodes[i]] = t, i
        for i in range(held):
            node = nodes[i]
            last, parent = tree.links[node, TOKEN], tree.links[node, PARENT]
            ends_blank, ends_label = log_sum(blank[i], label[i]) + row[BLANK], NEVER
            if parent >= 0:
                more = NEVER
                if tree.seen[parent] == t:
                    j = tree.place[parent]
                    more = blank[j] if tree.links[parent, TOKEN] == last else log_sum(blank[j], label[j])
                ends_label = log_sum(label[i], more) + row[last]
            score = log_sum(ends_blank, ends_label) + tree.sums[node, FUSED]
            at = place_for(score, ranking, count)
            if at >= 0 and score > NEVER:
                count = put_in(at, count, ranking, score, entries, node, np.int64(BLANK), ends_blank, ends_label)
        for i in range(held):
            node = nodes[i]
            last, total = tree.links[node, TOKEN], log_sum(blank[i], label[i])
            fused = tree.sums[node, FUSED]
            if count == beams and total + top + fused + most <= ranking[beams - 1]:
                continue
            for token in range(1, len(row)):
                grown = (blank[i] if token == last else total) + row[token]
                if grown == NEVER or (count == beams and grown + fused + fusion.most[token] <= ranking[beams - 1]):
                    continue
                score = grown + grown_sum(fusion, tree, node, token, t, sums)
                at = place_for(score, ranking, count)
                if at >= 0 and score > NEVER:
                    count = put_in(at, count, ranking, score, entries, node, token, NEVER, grown)
        held = count
        for i in range(held):
            nodes[i] = grown_node(fusion, tree, np.int64(entries[i, 0]), np.int64(entries[i, 1]))
            blank[i], label[i] = entries[i, 2], entries[i, 3]
        for i in range(held, beams):
            nodes[i], blank[i], label[i] = -1, NEVER, NEVER


@compiled
def align(log_probs, tokens):  # type: ignore[no-untyped-def]
    """The label of each frame (T,) on the best CTC path through (T, V) that spells `tokens` (U,).

    There must be such a path.
    """
    frames, states = len(log_probs), 2 * len(tokens) + 1
    best, moves = np.full(states, NEVER), np.zeros((frames, states), np.int8)
    labels = np.zeros(frames, np.int64)
    for t in range(frames):
        for s in range(states - 1, -1, -1):
            label = tokens[s // 2] if s % 2 else BLANK
            if t == 0:
                best[s] = log_probs[0, label] if s < 2 else NEVER
                continue
            score, move = best[s], 0
            if s and best[s - 1] > score:
                score, move = best[s - 1], 1
            if s % 2 and s > 1 and tokens[s // 2] != tokens[s // 2 - 1] and best[s - 2] > score:
                score, move = best[s - 2], 2
            best[s], moves[t, s] = score + log_probs[t, label], move
    s = states - 1
    if states > 1 and frames and best[s - 1] > best[s]:
        s -= 1
    for t in range(frames - 1, -1, -1):
        labels[t] = tokens[s // 2] if s % 2 else BLANK
        s -= moves[t, s]
    return labels
