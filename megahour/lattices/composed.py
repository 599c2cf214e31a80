"""On-the-fly composition that replaces a graph's own language model by another: only states that a search visits are
made (Hori et al., "Efficient WFST-based one-pass decoding with on-the-fly hypothesis rescoring", 2007).

A state combines a state of the graph with one of each model. An arc with a word costs the graph's cost, minus the old
model's cost of the word, plus the new model's. The result equals a graph built from the new model, except for words
that the beam prunes before they are known: until then the old model scores them.

Compiled code makes the states. It requests *moves* (both models' steps by a word) that are not cached yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megahour.core.compiled import compiled
from megahour.lattices.arrays import grown
from megahour.lattices.beam import StateLattice, emit, lattice_of, settle
from megahour.lattices.rescore import Scorer
from megahour.lattices.search_graph import SearchGraph

MOST_STATES = 1 << 21  # kept from one utterance to the next
STATES, ARCS, MOVES, ASKED = range(4)  # columns of `counts`
NEW = -1  # `stop` of a state whose arcs have not been made


class _Made(NamedTuple):
    """The states, arcs and moves made so far. counts (4,): states, arcs, moves and requested moves.

    state_table: hash table of states by graph state (`origin`) and pair of model states (`pair`); the states' other
    columns are as in `SearchGraph`. move_table: hash table of moves by pair and word; move_to is the pair after the
    word, move_cost the difference in cost. asked: requested (pair, word). ends (P,): extra cost of `</s>`, by pair.
    """

    counts: NDArray[np.int64]
    state_table: NDArray[np.int64]
    origin: NDArray[np.int64]
    pair: NDArray[np.int64]
    first: NDArray[np.int64]
    labelled: NDArray[np.int64]
    stop: NDArray[np.int64]
    level: NDArray[np.int32]
    gains: NDArray[np.bool_]
    final: NDArray[np.float64]
    label: NDArray[np.int32]
    word: NDArray[np.int32]
    cost: NDArray[np.float64]
    target: NDArray[np.int32]
    move_table: NDArray[np.int64]
    move_pair: NDArray[np.int64]
    move_word: NDArray[np.int64]
    move_to: NDArray[np.int64]
    move_cost: NDArray[np.float64]
    asked: NDArray[np.int64]
    ends: NDArray[np.float64]


class ComposedGraph:
    """A graph in which `lm_scale` · new replaces old, the language model that it was built with."""

    def __init__(
        self, graph: SearchGraph, words: Sequence[str], old: Scorer, new: Scorer, lm_scale: float = 1.0
    ) -> None:
        """words: the spelling of each word number."""
        self._graph, self._words, self._old, self._new, self._scale = graph, words, old, new, lm_scale
        self._begin()

    def _begin(self) -> None:
        """Resets to the start state alone."""
        self._pairs: dict[tuple[Any, Any], int] = {}
        self._models: list[tuple[Any, Any]] = []
        self._made = _empty(1 << 12, 1 << 14, 1 << 12)
        pair = self._pair(self._old.start, self._new.start)
        made = self._made
        _add_state(made, self._graph, self._graph.start, pair, _slot(made, self._graph.start, pair))

    def lattice(self, scores: NDArray[np.float32], beam: float, max_active: int, lattice_beam: float) -> StateLattice:
        """As `beam.state_lattice`. Raises ValueError if no path survives, UnknownWordError if the graph has words that
        its own language model lacks."""
        if self._made.counts[STATES] > MOST_STATES:
            self._begin()
        slot, begin = np.full(len(self._made.final), -1, np.int64), np.zeros(len(scores) + 2, np.int64)
        state, cost = np.empty(1024, np.int32), np.empty(1024, np.float64)
        new_state, new_cost = np.empty(1024, np.int32), np.empty(1024, np.float64)
        new_state[0], new_cost[0], slot[0] = 0, 0.0, 0
        count, total, t = 1, 0, 0
        for t in range(len(scores) + 1):
            if t:
                last = slice(int(begin[t - 1]), total)
                new_state, new_cost, count = emit(
                    self._searched(), scores[t - 1], beam, state[last], cost[last], slot, new_state, new_cost
                )
            within = new_cost[:count] <= new_cost[:count].min(initial=np.inf) + beam
            self._make(new_state[:count][within])
            more = len(self._made.final) - len(slot)
            slot = np.append(slot, np.full(more, -1, np.int64)) if more else slot
            state, cost, total, new_state, new_cost = settle(
                self._searched(), beam, max_active, slot, new_state, new_cost, count, state, cost, total
            )
            begin[t + 1] = total
            if begin[t + 1] == begin[t]:
                break
        return lattice_of(
            self._searched(), scores, begin[: t + 2 if total > begin[t] else t + 1], state[:total], cost[:total],
            beam, lattice_beam,
        )  # fmt: skip

    def _searched(self) -> SearchGraph:
        m, levels = self._made, self._graph.levels
        arcs = m.label, m.word, m.cost, m.target
        return SearchGraph(0, m.first, m.labelled, m.stop, *arcs, m.final, m.level, levels, m.gains)

    def _make(self, states: NDArray[np.int32]) -> None:
        """Makes the arcs of `states` and of all states that epsilons lead to from them."""
        left = states.astype(np.int64)
        while len(left):
            left = _make_arcs(self._graph, self._made, left)
            if self._made.counts[ASKED]:
                self._answer()
            elif len(left):
                self._made = _larger(self._made)

    def _answer(self) -> None:
        """Computes the requested moves."""
        count = int(self._made.counts[ASKED])
        for pair, word in np.unique(self._made.asked[:count], axis=0).tolist():
            old, new = self._models[pair]
            (old, taken), (new, given) = (
                model.step(s, self._words[word]) for model, s in ((self._old, old), (self._new, new))
            )
            after, m = self._pair(old, new), self._made
            if 2 * int(m.counts[MOVES]) + 2 > len(m.move_table):
                self._made = m = _larger(m)
            _add_move(m, pair, word, after, self._scale * given - taken)
        self._made.counts[ASKED] = 0

    def _pair(self, old: Any, new: Any) -> int:
        """The number of a pair of model states; new pairs are added."""
        number = self._pairs.setdefault((old, new), len(self._pairs))
        if number == len(self._models):
            self._models.append((old, new))
            while number >= len(self._made.ends):
                self._made = _larger(self._made)
            self._made.ends[number] = self._scale * self._new.step(new, None)[1] - self._old.step(old, None)[1]
        return number


def _empty(states: int, arcs: int, moves: int) -> _Made:
    return _Made(
        counts=np.zeros(4, np.int64),
        state_table=np.full(2 * states, -1, np.int64),
        origin=np.empty(states, np.int64),
        pair=np.empty(states, np.int64),
        first=np.empty(states, np.int64),
        labelled=np.empty(states, np.int64),
        stop=np.empty(states, np.int64),
        level=np.empty(states, np.int32),
        gains=np.empty(states, np.bool_),
        final=np.empty(states),
        label=np.empty(arcs, np.int32),
        word=np.empty(arcs, np.int32),
        cost=np.empty(arcs),
        target=np.empty(arcs, np.int32),
        move_table=np.full(2 * moves, -1, np.int64),
        move_pair=np.empty(moves, np.int64),
        move_word=np.empty(moves, np.int64),
        move_to=np.empty(moves, np.int64),
        move_cost=np.empty(moves),
        asked=np.empty((1 << 10, 2), np.int64),
        ends=np.empty(moves),
    )


def _larger(made: _Made) -> _Made:
    """A copy with twice the room."""
    larger = _empty(2 * len(made.final), 2 * len(made.label), 2 * len(made.move_cost))
    old, new = made._asdict(), larger._asdict()
    for name in set(old) - {"state_table", "move_table"}:
        new[name][: len(old[name])] = old[name]
    _fill(larger.state_table, larger.origin, larger.pair, made.counts[STATES])
    _fill(larger.move_table, larger.move_pair, larger.move_word, made.counts[MOVES])
    return larger


@compiled
def _find(table, one, two, a, b):  # type: ignore[no-untyped-def]
    """The slot of the entry with a in `one` and b in `two`, or the free slot for it. The table's length must be a power
    of two."""
    mixed = (np.uint64(a) * np.uint64(0x9E3779B97F4A7C15)) ^ (np.uint64(b) * np.uint64(0xC2B2AE3D27D4EB4F))
    mask = np.int64(len(table) - 1)
    slot = np.int64((mixed ^ (mixed >> np.uint64(29))) >> np.uint64(3)) & mask
    while table[slot] >= 0 and not (one[table[slot]] == a and two[table[slot]] == b):
        slot = (slot + 1) & mask
    return slot


@compiled
def _fill(table, one, two, count):  # type: ignore[no-untyped-def]
    for entry in range(count):
        table[_find(table, one, two, one[entry], two[entry])] = entry


@compiled
def _slot(made, origin, pair):  # type: ignore[no-untyped-def]
    return _find(made.state_table, made.origin, made.pair, origin, pair)


@compiled
def _add_state(made, graph, origin, pair, slot):  # type: ignore[no-untyped-def]
    """Adds a state without arcs. Returns its number."""
    number = made.counts[STATES]
    made.counts[STATES] += 1
    made.state_table[slot] = number
    made.origin[number], made.pair[number] = origin, pair
    made.first[number], made.labelled[number], made.stop[number] = 0, 0, NEW
    made.level[number], made.gains[number] = graph.level[origin], False
    final = graph.final[origin]
    made.final[number] = final + made.ends[pair] if final < np.inf else final
    return number


@compiled
def _add_move(made, pair, word, after, cost):  # type: ignore[no-untyped-def]
    number = made.counts[MOVES]
    made.counts[MOVES] += 1
    made.move_table[_find(made.move_table, made.move_pair, made.move_word, np.int64(pair), np.int64(word))] = number
    made.move_pair[number], made.move_word[number], made.move_to[number] = pair, word, after
    made.move_cost[number] = cost


@compiled
def _make_arcs(graph, made, states):  # type: ignore[no-untyped-def]
    """Makes the arcs of `states` and of all states that epsilons lead to from them. Returns the states that it could
    not complete, for lack of room or because they need moves, which it requests."""
    stack, top, counts = states.copy(), np.int64(len(states)), made.counts
    left, waiting = np.empty(64, np.int64), np.int64(0)
    while top:
        top -= 1
        c = stack[top]
        if made.stop[c] != NEW:
            continue
        s, pair = made.origin[c], made.pair[c]
        begin, stop = graph.first[s], graph.stop[s]
        room = min(len(made.final), len(made.state_table) // 2) - counts[STATES]
        full = counts[ARCS] + stop - begin > len(made.label) or stop - begin > room
        if full or _asks(graph, made, pair, begin, stop):
            left = grown(left, waiting + 1)
            left[waiting] = c
            waiting += 1
            continue
        made.first[c], made.labelled[c] = counts[ARCS], counts[ARCS] + graph.labelled[s] - begin
        for a in range(begin, stop):
            at, after, cost = counts[ARCS], pair, graph.cost[a]
            if graph.word[a]:
                word = np.int64(graph.word[a])
                move = made.move_table[_find(made.move_table, made.move_pair, made.move_word, pair, word)]
                after, cost = made.move_to[move], cost + made.move_cost[move]
            origin = np.int64(graph.target[a])
            slot = _slot(made, origin, after)
            d = made.state_table[slot]
            if d < 0:
                d = _add_state(made, graph, origin, after, slot)
            made.label[at], made.word[at], made.cost[at], made.target[at] = graph.label[a], graph.word[a], cost, d
            counts[ARCS] += 1
            if graph.label[a] == 0:
                made.gains[c] = made.gains[c] or cost < 0
                stack = grown(stack, top + 1)
                stack[top] = d
                top += 1
        made.stop[c] = counts[ARCS]
    return left[:waiting]


@compiled
def _asks(graph, made, pair, begin, stop):  # type: ignore[no-untyped-def]
    """Whether some arcs need moves that are not cached; requests as many of these as `asked` has room for."""
    asks = False
    for a in range(begin, stop):
        word = np.int64(graph.word[a])
        if word and made.move_table[_find(made.move_table, made.move_pair, made.move_word, pair, word)] < 0:
            asks = True
            if made.counts[ASKED] < len(made.asked):
                made.asked[made.counts[ASKED], 0], made.asked[made.counts[ASKED], 1] = pair, word
                made.counts[ASKED] += 1
    return asks
