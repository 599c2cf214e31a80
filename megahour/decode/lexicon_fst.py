"""L, the lexicon as a transducer from labels to words, and what may lie between words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from megahour.core.errors import MegahourError
from megahour.units.fst import FstArrays, from_columns

Arc = tuple[int, int, int, float, int]
"""Source, input label, word, cost, target."""
L = TypeVar("L", int, str)


def disambiguated(entries: list[tuple[int, tuple[L, ...]]]) -> list[tuple[int, tuple[L, ...], int]]:
    """(word, labels, j): j > 0 asks for the symbol #j after labels that other words share or begin with."""
    unique = sorted(set(entries))
    prefixes = {labels[:n] for _, labels in unique for n in range(1, len(labels))}
    shared: dict[tuple[L, ...], int] = {}
    for _, labels in unique:
        shared[labels] = shared.get(labels, 0) + 1
    used: dict[tuple[L, ...], int] = {}
    result = []
    for word, labels in unique:
        j = 0
        if shared[labels] > 1 or labels in prefixes:
            j = used[labels] = used.get(labels, 0) + 1
        result.append((word, labels, j))
    return result


@dataclass(frozen=True)
class Pauses:
    """What may lie between words: silence, and noises (labels) around it. Probabilities are those of `build_graph`."""

    silence: int | None
    silence_probability: float
    noises: tuple[int, ...] = ()
    noise_probability: float = 0.0

    def arcs(self, before: int, behind_silence: int, end: int) -> list[Arc]:
        """Arcs from the state `before` to `end`. `behind_silence` is a state for the noises after silence."""
        if self.silence is None:
            return [(before, 0, 0, 0.0, end)]
        silent, cost = self.silence + 1, -math.log(self.silence_probability)
        if not self.noises:
            return [(before, silent, 0, cost, end), (before, 0, 0, -math.log(1 - self.silence_probability), end)]
        neither = 1 - self.silence_probability - self.noise_probability
        if neither <= 0:
            what = (
                f"silence {self.silence_probability:g} and noise {self.noise_probability:g} leave no chance for words"
            )
            raise MegahourError(what, remedy="lower silence_probability or noise_probability")
        arcs = [(before, silent, 0, cost, behind_silence), (before, 0, 0, -math.log(neither), end)]
        arcs.append((behind_silence, 0, 0, -math.log(1 - self.noise_probability), end))
        each = -math.log(self.noise_probability / len(self.noises))
        return arcs + [
            (state, noise + 1, 0, each, before) for state in (before, behind_silence) for noise in self.noises
        ]


def lexicon_fst(
    entries: list[tuple[int, tuple[int, ...]]],
    *,
    backoff: tuple[int, int],
    pauses: Pauses,
    separator: int | None,
    word_cost: float,
    costs: Mapping[tuple[int, tuple[int, ...]], float],
) -> FstArrays:
    """L; `#j` is input label `backoff[0] + j`.

    State 0 lies before optional silence, 1 before words; words end in 0. With a separator, words end in 2, from where
    it leads to 1, or the end is 3. With noises, 2 lies behind silence. Where words begin or the sentence ends, `#0`
    passes through.
    """
    arcs: list[Arc] = [(1, *backoff, 0.0, 1)]
    arcs += pauses.arcs(0, 2, 1)
    states, word_end, end = 3 if pauses.noises else 2, 0, 1
    if separator is not None:
        arcs += [(2, separator + 1, 0, 0.0, 1), (2, 0, 0, 0.0, 3), (3, *backoff, 0.0, 3)]
        states, word_end, end = 4, 2, 3
    for word, labels, j in disambiguated(entries):
        inputs = [label + 1 for label in labels] + ([backoff[0] + j] if j else [])
        path = [1, *range(states, states + len(inputs) - 1), word_end]
        states += len(inputs) - 1
        rest = len(inputs) - 1
        weights = [word_cost + costs.get((word, labels), 0.0)] + [0.0] * rest
        arcs += zip(path[:-1], inputs, [word] + [0] * rest, weights, path[1:], strict=True)
    final = np.full(states, np.inf, np.float32)
    final[end] = 0.0
    return from_columns(0, final, *zip(*arcs, strict=True))
