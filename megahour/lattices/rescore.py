"""A lattice with the scores of another language model in place of its graph's: exact, word by word.

Language models are stepped through their states (`Scorer`), so models of any order and size work. A state of the result
combines a lattice state with a state of each model. Every word sequence keeps its path, labels and acoustic score.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from megahour.lattices.lattice import Int32, Lattice, pruned
from megahour.lm.arpa.model import NEVER, NgramModel
from megahour.lm.query.scorer import NgramScorer
from megahour.lm.text.vocabulary import BOS, EOS

LN10 = math.log(10.0)
MAX_ARCS = 2000  # per frame; beyond that the beam is narrowed
NARROWER = 0.75


class UnknownWordError(ValueError):
    """A lattice has a word that the graph's language model lacks, so this is the wrong language model."""


class Scorer(Protocol):
    """A language model that is stepped word by word; costs in nats; word None is the end of the sentence."""

    @property
    def start(self) -> Hashable: ...

    def step(self, state: Any, word: str | None) -> tuple[Any, float]: ...


class ModelScorer:
    """-ln p of a language model; unknown words are scored as its <unk>."""

    def __init__(self, scorer: NgramScorer) -> None:
        self._scorer = scorer
        self._known: dict[tuple[int, str], tuple[int, float]] = {}

    @property
    def start(self) -> int:
        return self._scorer.begin()

    def knows(self, word: str) -> bool:
        return word in self._scorer

    def step(self, state: int, word: str | None) -> tuple[int, float]:
        key = state, "</s>" if word is None else word
        if key not in self._known:
            log10_prob, _, after = self._scorer.score(*key)
            self._known[key] = after, -LN10 * log10_prob
        return self._known[key]


class GraphScorer:
    """A language model's cost inside a decoding graph: the least over using an n-gram or backing off from it.

    A state is the set of histories that the words can lead to, each with its cost above the least.
    """

    def __init__(self, model: NgramModel) -> None:
        self._ids, self._order = model.vocabulary.ids, model.order
        levels = zip(model.grams, model.log10_prob, model.log10_backoff, strict=True)
        self._tables = [
            {tuple(gram): (p, b) for gram, p, b in zip(*(each.tolist() for each in level), strict=True)}
            for level in levels
        ]
        self._known: dict[tuple[Any, int], tuple[Any, float]] = {}

    @property
    def start(self) -> tuple[tuple[tuple[int, ...], float], ...]:
        return (((BOS,)[: self._order - 1], 0.0),)

    def knows(self, word: str) -> bool:
        return word in self._ids

    def step(self, state: Any, word: str | None) -> tuple[Any, float]:
        """Raises UnknownWordError: the model has no such word, so no graph of it has."""
        number = EOS if word is None else self._ids.get(word, -1)
        if (state, number) not in self._known:
            self._known[state, number] = self._stepped(state, number, word)
        return self._known[state, number]

    def _stepped(self, state: Any, number: int, word: str | None) -> tuple[Any, float]:
        after: dict[tuple[int, ...], float] = {}
        for history, cost in state:
            while True:
                entry = self._tables[len(history)].get((*history, number))
                if entry is not None and entry[0] > NEVER:
                    target = (*history, number)[1 - self._order :] if self._order > 1 else ()
                    after[target] = min(after.get(target, math.inf), cost - LN10 * entry[0])
                if not history:
                    break
                cost -= LN10 * self._tables[len(history) - 1].get(history, (0.0, 0.0))[1]
                history = history[1:]
        if not after:
            raise UnknownWordError(f"{word!r} is not in the language model of the graph")
        least = min(after.values())
        return tuple(sorted((history, round(cost - least, 9)) for history, cost in after.items())), least


def rescored(
    lattice: Lattice,
    old: Scorer,
    new: Scorer,
    *,
    lm_scale: float = 1.0,
    word_bonus: float = 0.0,
    scale: float = 1.0,
    finished: bool = True,
) -> Lattice:
    """`lattice` with lm_scale · new in place of old, and `word_bonus` off each word's cost.

    finished: whether its costs include the end of the sentence; paths cut off in a sentence get none from `new` either.

    If the result would have more than MAX_ARCS arcs per frame, the lattice is first pruned with a narrower beam, at
    acoustic scale `scale`. Raises UnknownWordError for a word that `old` does not know.
    """
    beam = 100.0
    end = (None,) if finished else ()
    while (found := _product(lattice, old, new, lm_scale, word_bonus, MAX_ARCS * max(1, lattice.frames), end)) is None:
        lattice, beam = pruned(lattice, scale, beam), beam * NARROWER
    return found


def _product(
    lattice: Lattice, old: Scorer, new: Scorer, lm_scale: float, word_bonus: float, most: int, behind: tuple[None, ...]
) -> Lattice | None:
    """behind: what the models score after a path's last word."""
    end = lattice.states - 1
    first = np.searchsorted(lattice.source, np.arange(lattice.states + 1)).tolist()
    target, word, graph = lattice.target.tolist(), lattice.word.tolist(), lattice.graph.tolist()
    pairs: list[dict[Any, int]] = [{} for _ in range(lattice.states)]  # of each state: the models', and their number
    pairs[0][old.start, new.start] = 0
    arcs: list[tuple[int, int, Any, int, float]] = []  # source; target and its models' states; arc before, cost
    numbers: dict[tuple[int, Any], int] = {}
    for state in range(end):
        for models in pairs[state]:
            source = numbers[state, models] = len(numbers)
            for arc in range(first[state], first[state + 1]):
                after, cost = models, graph[arc]
                said = [lattice.words[word[arc]]] if word[arc] else []
                for spelled in (*said, *(behind if target[arc] == end else ())):
                    (one, taken), (two, given) = old.step(after[0], spelled), new.step(after[1], spelled)
                    after, cost = (one, two), cost - taken + lm_scale * given
                cost -= word_bonus * len(said)
                after = () if target[arc] == end else after
                pairs[target[arc]][after] = 0
                arcs.append((source, target[arc], after, arc, cost))
            if len(arcs) > most:
                return None
    numbers[end, ()] = len(numbers)
    frame = np.empty(len(numbers), np.int32)
    for (state, _), number in numbers.items():
        frame[number] = lattice.frame[state]
    origin = np.array([arc for _, _, _, arc, _ in arcs], np.int64)
    return replace(
        lattice,
        source=np.array([source for source, *_ in arcs], np.int32),
        target=np.array([numbers[state, after] for _, state, after, _, _ in arcs], np.int32),
        word=lattice.word[origin],
        graph=np.array([cost for *_, cost in arcs], np.float64),
        acoustic=lattice.acoustic[origin],
        frame=frame,
        labels=_gathered(lattice, origin),
    )


def _gathered(lattice: Lattice, arcs: NDArray[np.int64]) -> Int32:
    """The labels of arcs, one after another."""
    if not len(lattice.labels):
        return lattice.labels
    lengths = lattice.frame[lattice.target] - lattice.frame[lattice.source]
    begins, own = np.cumsum(lengths) - lengths, lengths[arcs]
    chosen: Int32 = lattice.labels[np.repeat(begins[arcs] - np.cumsum(own) + own, own) + np.arange(own.sum())]
    return chosen
