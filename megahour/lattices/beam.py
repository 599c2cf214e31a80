"""Beam search over a decoding graph that keeps every path within a lattice beam of the best one.

The forward pass is an ordinary best-path search. It stores only tokens (state, least cost): for each frame those within
`beam` of the frame's best, at most `max_active`. The backward pass expands each frame's tokens once more and keeps an
arc if the best path through it is within the lattice beam of the best path. The result is what Kaldi's
lattice-faster-decoder has after its final pruning, but links that would be pruned are never stored.

Arcs without a label (epsilons) form no cycles in a decoding graph, so each state has a level, and an epsilon leads to a
state of a higher level. Tokens are sorted by frame, then by level, which is a topological order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megahour.core.compiled import compiled
from megahour.lattices.arrays import grown, least
from megahour.lattices.search_graph import SearchGraph

Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
ROUNDING = 1e-7
"""Largest difference in nats between sums of the same costs in another order."""
HUGE = 1e300


class StateLattice(NamedTuple):
    """N nodes in topological order, starting with node 0, and A arcs sorted by their source node; costs in nats.

    first: int64 (N + 1,), each node's first arc. target, label, word: int32 (A,); 0 is no label, or no word. graph,
    acoustic: float64 (A,). frame: int32 (N,). forward, backward: float64 (N,), least costs from the beginning and to
    the end. final: float64 (N,), infinite if no path ends in the node. reached: whether paths end in final states of
    the graph; if not, all states of the last frame count as final.
    """

    first: Int64
    target: Int32
    label: Int32
    word: Int32
    graph: Float64
    acoustic: Float64
    frame: Int32
    forward: Float64
    backward: Float64
    final: Float64
    reached: bool


def state_lattice(
    graph: SearchGraph, scores: NDArray[np.float32], beam: float, max_active: int, lattice_beam: float
) -> StateLattice:
    """All paths for scaled log likelihoods `scores` (T, V) that survive the beam and are within `lattice_beam`.

    Raises ValueError: no path survives.
    """
    begin, state, cost = _forward(graph, scores, beam, max_active)
    return lattice_of(graph, scores, begin, state, cost, beam, lattice_beam)


def lattice_of(
    graph: SearchGraph,
    scores: NDArray[np.float32],
    begin: Int64,
    state: Int32,
    cost: Float64,
    beam: float,
    lattice_beam: float,
) -> StateLattice:
    """The lattice from the tokens of the forward pass, with their `state` and `cost`.

    begin: (T + 2,), the first token of each frame, and their number at the end; shorter if no token survived.

    Raises ValueError: no token survived.
    """
    if len(begin) < len(scores) + 2:
        raise ValueError(f"no path survives frame {len(begin) - 1} of {len(scores)}; raise beam {beam:g}")
    return StateLattice(*_backward(graph, scores, begin, state, cost, lattice_beam + ROUNDING))


@compiled
def _forward(graph, scores, beam, max_active):  # type: ignore[no-untyped-def]
    """The first token of each frame (T + 2,), and the tokens' states and costs.

    There are fewer than T + 2 if no token survived a frame.
    """
    slot, begin = np.full(len(graph.final), -1, np.int64), np.zeros(len(scores) + 2, np.int64)
    state, cost = np.empty(1024, np.int32), np.empty(1024, np.float64)
    new_state, new_cost = np.empty(1024, np.int32), np.empty(1024, np.float64)
    new_state[0], new_cost[0] = graph.start, 0.0
    slot[graph.start] = 0
    count, total = np.int64(1), np.int64(0)
    for t in range(len(scores) + 1):
        if t:
            last = slice(begin[t - 1], total)
            new_state, new_cost, count = emit(
                graph, scores[t - 1], beam, state[last], cost[last], slot, new_state, new_cost
            )
        state, cost, total, new_state, new_cost = settle(
            graph, beam, max_active, slot, new_state, new_cost, count, state, cost, total
        )
        begin[t + 1] = total
        if begin[t + 1] == begin[t]:
            return begin[: t + 1], state[:total], cost[:total]
    return begin, state[:total], cost[:total]


@compiled
def emit(graph, score, beam, state, cost, slot, new_state, new_cost):  # type: ignore[no-untyped-def]
    """Expand the previous frame's tokens along arcs with a label. Returns states and costs of the new tokens, and their
    number.

    slot: each state's token, or -1. `settle` repeats the code that inserts a token, since a shared function that
    returns the grown arrays for each token takes 1.7 times as long.
    """
    limit = min(_best_next(graph, score, state, cost) + beam, HUGE)
    count = np.int64(0)
    for i in range(len(state)):
        s = state[i]
        for a in range(graph.labelled[s], graph.stop[s]):
            value = cost[i] + graph.cost[a] - score[graph.label[a] - 1]
            if not value <= limit:
                continue
            limit = min(limit, value + beam)
            d = graph.target[a]
            if slot[d] < 0:
                new_state, new_cost = grown(new_state, count + 1), grown(new_cost, count + 1)
                new_state[count], new_cost[count] = d, value
                slot[d] = count
                count += 1
            elif value < new_cost[slot[d]]:
                new_cost[slot[d]] = value
    return new_state, new_cost, count


@compiled
def settle(graph, beam, max_active, slot, new_state, new_cost, count, state, cost, total):  # type: ignore[no-untyped-def]
    """Follow epsilons, prune the frame's tokens, and append them to state[:total] and cost[:total], sorted by level."""
    best = np.inf
    for i in range(count):
        best = min(best, new_cost[i])
    limit = best + beam
    for level in range(graph.levels):
        i = 0
        while i < count:
            s = new_state[i]
            if graph.level[s] == level and new_cost[i] <= limit:
                for a in range(graph.first[s], graph.labelled[s]):
                    value = new_cost[i] + graph.cost[a]
                    if not value <= limit:
                        continue
                    limit = min(limit, value + beam)
                    d = graph.target[a]
                    if slot[d] < 0:
                        new_state, new_cost = grown(new_state, count + 1), grown(new_cost, count + 1)
                        new_state[count], new_cost[count] = d, value
                        slot[d] = count
                        count += 1
                    elif value < new_cost[slot[d]]:
                        new_cost[slot[d]] = value
            i += 1
    if count > max_active:
        limit = min(limit, least(new_cost, count, max_active - 1))
    state, cost = grown(state, total + count), grown(cost, total + count)
    for level in range(graph.levels):
        for i in range(count):
            s = new_state[i]
            if graph.level[s] == level and (new_cost[i] <= limit or graph.gains[s]):
                state[total], cost[total] = s, new_cost[i]
                total += 1
    for i in range(count):
        slot[new_state[i]] = -1
    return state, cost, total, new_state, new_cost


@compiled
def _best_next(graph, score, state, cost):  # type: ignore[no-untyped-def]
    """Least cost of the tokens that the best token leads to: a bound to begin with, before all tokens are expanded."""
    best = 0
    for i in range(len(cost)):
        if cost[i] < cost[best]:
            best = i
    bound = np.inf
    for a in range(graph.labelled[state[best]], graph.stop[state[best]]):
        bound = min(bound, cost[best] + graph.cost[a] - score[graph.label[a] - 1])
    return bound


@compiled
def _backward(graph, scores, begin, state, forward, lattice_beam):  # type: ignore[no-untyped-def]
    """The fields of a `StateLattice` with the arcs between tokens that are within the lattice beam."""
    frames, tokens = len(scores), len(state)
    final = np.full(tokens, np.inf)
    best, reached = np.inf, np.bool_(False)  # a literal would compile `_numbered` once more
    for i in range(begin[frames], tokens):
        final[i] = graph.final[state[i]]
        reached = reached or final[i] < np.inf
    for i in range(begin[frames], tokens):
        if not reached:
            final[i] = 0.0
        best = min(best, forward[i] + final[i])
    limit = best + lattice_beam
    backward = np.full(tokens, np.inf)
    here, after = np.full(len(graph.final), -1, np.int64), np.full(len(graph.final), -1, np.int64)
    source, via, end = np.empty(1024, np.int64), np.empty(1024, np.int64), np.empty(1024, np.int64)
    arcs = 0
    for t in range(frames, -1, -1):
        for i in range(begin[t], begin[t + 1]):
            here[state[i]] = i
        for i in range(begin[t + 1] - 1, begin[t] - 1, -1):
            s = state[i]
            if forward[i] + final[i] <= limit:
                backward[i] = final[i]
            else:
                final[i] = np.inf
            for a in range(graph.first[s], graph.stop[s]):
                emitting = a >= graph.labelled[s]
                if emitting and t == frames:
                    break
                d = after[graph.target[a]] if emitting else here[graph.target[a]]
                if d < 0:
                    continue
                value = graph.cost[a] + backward[d]
                if emitting:
                    value -= scores[t, graph.label[a] - 1]
                if forward[i] + value <= limit:
                    backward[i] = min(backward[i], value)
                    source, via, end = grown(source, arcs + 1), grown(via, arcs + 1), grown(end, arcs + 1)
                    source[arcs], via[arcs], end[arcs] = i, a, d
                    arcs += 1
        if t < frames:
            for i in range(begin[t + 1], begin[t + 2]):
                after[state[i]] = -1
        here, after = after, here
    return _numbered(graph, scores, begin, forward, backward, final, reached, source[:arcs], via[:arcs], end[:arcs])


@compiled
def _numbered(graph, scores, begin, forward, backward, final, reached, source, via, end):  # type: ignore[no-untyped-def]
    """Number the tokens with a path to the end as nodes, and sort the arcs, which come last to first, by node."""
    frames, arcs = len(scores), len(source)
    node, nodes = np.full(len(forward), -1, np.int32), 0
    frame = np.empty(len(forward), np.int32)
    for t in range(frames + 1):
        for i in range(begin[t], begin[t + 1]):
            if backward[i] < np.inf:
                node[i], frame[nodes] = nodes, t
                nodes += 1
    kept = np.empty((3, nodes))
    for i in range(len(forward)):
        if node[i] >= 0:
            kept[0, node[i]], kept[1, node[i]], kept[2, node[i]] = forward[i], backward[i], final[i]
    first = np.zeros(nodes + 1, np.int64)
    target, label, word = np.empty(arcs, np.int32), np.empty(arcs, np.int32), np.empty(arcs, np.int32)
    cost, acoustic = np.empty(arcs), np.zeros(arcs)
    for k in range(arcs):
        i, a, n = source[arcs - 1 - k], via[arcs - 1 - k], node[source[arcs - 1 - k]]
        first[n + 1] = k + 1
        target[k], label[k], word[k], cost[k] = node[end[arcs - 1 - k]], graph.label[a], graph.word[a], graph.cost[a]
        if label[k]:
            acoustic[k] = -scores[frame[n], label[k] - 1]
    for n in range(nodes):
        first[n + 1] = max(first[n + 1], first[n])
    return first, target, label, word, cost, acoustic, frame[:nodes], kept[0], kept[1], kept[2], reached
