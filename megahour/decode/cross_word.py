"""The decoding graph of units with contexts across words: an L whose states know the phones around a word's edge.

Between two words without a pause, L is in a state (last phone of one, first phone of the next): the last senone of one
was that before this phone, and only words that begin with it follow. A senone is of one phone, so senones spell phones,
and what a word's end expects is decided by the next label: L ∘ G is determinizable with the symbols `#j` of within-word
graphs, here between words that share phones. Silence and noises are the context `#`, as the edges of the sentence are.
Costs are those of within-word graphs.

A pronunciation has an arc for each phone that may precede or follow, and one of a single phone an arc for each pair.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from megahour.decode.graph import Graph, hmm, known_words, with_grammar
from megahour.decode.lexicon_fst import Arc, Pauses, disambiguated
from megahour.lm.arpa.model import NgramModel
from megahour.units.fst import FstArrays, from_columns
from megahour.units.hmm import BOUNDARY, Units

START, PAUSED, BEHIND_SILENCE, ENDED, END = range(5)
"""States: the sentence's begin or a noise's end, the end of a pause, within a pause, a word before a pause, the end."""
Way = tuple[str, ...]


def cross_word_graph(
    model: NgramModel,
    pronunciations: Mapping[str, Sequence[Sequence[str]]],
    units: Units,
    *,
    pauses: Pauses,
    self_loop: float = 0.5,
    word_cost: float = 0.0,
    costs: Mapping[tuple[str, Way], float] | None = None,
) -> Graph:
    """`graph.build_graph` for units with `cross_word`. Pronunciations and the keys of `costs` have phones of `units`.

    Raises
    ------
    MegahourError: no word is in both the model and the lexicon, or probabilities of silence and noise sum to 1 or more.
    """
    lexicon = known_words(pronunciations, model)
    words = ["<eps>", *lexicon]
    entries = [(number, tuple(way)) for number, word in enumerate(words) if number for way in lexicon[word]]
    extra = {(number, way): word_cost + (costs or {}).get((words[number], way), 0.0) for number, way in entries}
    read = _Lexicon(units, entries, extra, (units.size + 1, len(words)), pauses).fst()
    return Graph(hmm(with_grammar(read, model, words, units.size), self_loop), words)


class _Lexicon:
    """L while it is made. `backoff`: input label and word of `#0`, where `#j` is its input label plus j."""

    def __init__(
        self,
        units: Units,
        entries: list[tuple[int, Way]],
        costs: Mapping[tuple[int, Way], float],
        backoff: tuple[int, int],
        pauses: Pauses,
    ) -> None:
        self.units, self.entries, self.costs, self.backoff = units, entries, costs, backoff
        self.lefts = [BOUNDARY, *sorted({way[-1] for _, way in entries})]
        self.rights = [BOUNDARY, *sorted({way[0] for _, way in entries})]
        self.states = END + 1
        self.joins: dict[tuple[str, str], int] = defaultdict(self._state)
        between = pauses.arcs(START, BEHIND_SILENCE, PAUSED)
        (self.join_cost,) = (cost for source, label, _, cost, _ in between if source == START and not label)
        self.arcs: list[Arc] = [*between, *((state, *backoff, 0.0, state) for state in (PAUSED, END))]
        self.arcs += [(ENDED, *arc[1:]) for arc in between if arc[0] == START and arc[1]]
        self.arcs.append((ENDED, 0, 0, self.join_cost, END))

    def fst(self) -> FstArrays:
        for word, way, j in disambiguated(self.entries):
            self._spell(word, way, j)
        self.arcs += [(state, *self.backoff, 0.0, state) for state in self.joins.values()]
        final = np.full(self.states, np.inf, np.float32)
        final[[PAUSED, END]] = 0.0
        return from_columns(START, final, *zip(*self.arcs, strict=True))

    def _state(self) -> int:
        self.states += 1
        return self.states - 1

    def _spell(self, word: int, way: Way, j: int) -> None:
        """Add a word's paths: from each phone that may precede it to each that may follow it."""
        begins = {left: self.joins[left, way[0]] if left != BOUNDARY else PAUSED for left in self.lefts}
        ends = {right: self._end(way[-1], right, j) for right in self.rights}
        cost = self.costs[word, way]
        if len(way) == 1:
            for left, begin in begins.items():
                self.arcs += [
                    (begin, self._label(left, way[0], right), word, cost + more, end)
                    for right, (end, more) in ends.items()
                ]
            return
        state = self._state()
        self.arcs += [(begin, self._label(left, way[0], way[1]), word, cost, state) for left, begin in begins.items()]
        for middle in range(1, len(way) - 1):
            self.arcs.append((state, self._label(way[middle - 1], way[middle], way[middle + 1]), 0, 0.0, self._state()))
            state = self.states - 1
        self.arcs += [
            (state, self._label(way[-2], way[-1], right), 0, more, end) for right, (end, more) in ends.items()
        ]

    def _end(self, last: str, right: str, j: int) -> tuple[int, float]:
        """Where a word's last arc leads if `right` follows, and the cost of no pause; with `j`, before `#j`."""
        end, cost = (ENDED, 0.0) if right == BOUNDARY else (self.joins[last, right], self.join_cost)
        if not j:
            return end, cost
        state = self._state()
        self.arcs.append((state, self.backoff[0] + j, 0, 0.0, end))
        return state, cost

    def _label(self, left: str, phone: str, right: str) -> int:
        return self.units.senone_of(left, phone, right) + 1
