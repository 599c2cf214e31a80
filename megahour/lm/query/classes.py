"""Scores by class n-gram models: sums over all sequences of classes that spell a sentence.

A file of classes has lines `CLASS [p] word …`, as in SRILM; p is 1 by default. A model of classes and words gives

    P(w1 … wn) = Σ over sequences c1 c2 … that spell the words of Π p(c_i | c_(i-1), …) · p(words of c_i | c_i)

A hypothesis is a state of the model and the remaining words of its last class; P(w|h) is the quotient of two such sums
(SRILM's prefix probabilities). A word that continues no hypothesis is `<unk>` after those whose classes are complete.
If there are none, it is impossible: its log10 p is NEVER.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megahour.core.errors import ConfigError
from megahour.lm.arpa.parse import NEVER
from megahour.lm.estimate.reading import words_of
from megahour.lm.query.batch import SentenceScores, spelled, summed
from megahour.lm.query.model_files import lines_of
from megahour.lm.query.scorer import NgramScorer
from megahour.lm.text.tokenise import BOUNDARY, END, UNKNOWN

Hypotheses = dict[tuple[int, tuple[str, ...]], tuple[float, int]]
"""By state and remaining words: log10 P of the words so far, and the n-gram length of the best sequence."""


@dataclass(frozen=True)
class Expansion:
    """An expansion of a class: the number of the class in the model, the words, and their log10 probability."""

    number: int
    words: tuple[str, ...]
    log10_prob: float


def read_classes(path: str | Path) -> dict[str, list[tuple[tuple[str, ...], float]]]:
    """Read a file of classes: for each class its expansions and their probabilities.

    Raises ConfigError: no such file, or, with its number, an invalid line.
    """
    classes: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for number, line in enumerate((line for lines in lines_of(str(path)) for line in lines), 1):
        name, *rest = words_of(line.decode("utf-8", "surrogateescape")) or [""]
        if not name:
            continue
        p, words = _probability(rest)
        if not words or not 0 < p <= 1:
            what = "a class without words" if not words else f"{rest[0]} is not a probability above 0, and at most 1"
            raise ConfigError(what, where=f"{path}:{number}", remedy="write lines as CLASS 0.25 WORD WORD")
        classes.setdefault(name, []).append((words, p))
    return classes


def _probability(fields: list[str]) -> tuple[float, tuple[str, ...]]:
    try:
        return float(fields[0]), tuple(fields[1:])
    except (ValueError, IndexError):
        return 1.0, tuple(fields)


class ClassScorer:
    """Scores of words by a class n-gram model.

    Raises ConfigError: the model has none of the classes.
    """

    def __init__(self, scorer: NgramScorer, classes: Mapping[str, Iterable[tuple[tuple[str, ...], float]]]) -> None:
        self.scorer = scorer
        self.names = {name: scorer.number(name) for name in classes if name in scorer}
        if not self.names:
            raise ConfigError(
                f"the model has none of the {len(classes)} classes", where=", ".join(list(classes)[:5]),
                remedy="train it on text in which classes stand for words",
            )  # fmt: skip
        self.expansions = [
            Expansion(number, words, math.log10(p)) for name, number in self.names.items() for words, p in classes[name]
        ]
        self._by_first: dict[str, list[Expansion]] = {}
        for each in self.expansions:
            self._by_first.setdefault(each.words[0], []).append(each)

    def begin(self) -> Hypotheses:
        """Where a sentence begins."""
        return {(self.scorer.begin(), ()): (0.0, 0)}

    def step(self, before: Hypotheses, word: str) -> tuple[float, int, Hypotheses]:
        """log10 p of a word or `</s>`; the n-gram length of its best sequence, 0 if it is unknown; and the hypotheses
        after it, whose probabilities sum to one."""
        after: Hypotheses = {}
        number = END if word == "</s>" else self.scorer.number(word)
        listed = self._by_first.get(word, ())
        for (state, left), (logp, longest) in before.items():
            if left:
                if left[0] == word:
                    _add(after, (state, left[1:]), logp, longest)
                continue
            if number != UNKNOWN:
                p, length, following = self.scorer.score(state, number)
                _add(after, (following, ()), logp + p, length)
            for each in listed:
                p, length, following = self.scorer.score(state, each.number)
                _add(after, (following, each.words[1:]), logp + p + each.log10_prob, length)
        if not after:
            return self._unknown(before)
        total = _sum([logp for logp, _ in after.values()])
        _, length = max(after.values())
        return total, length, {key: (logp - total, longest) for key, (logp, longest) in after.items()}

    def _unknown(self, before: Hypotheses) -> tuple[float, int, Hypotheses]:
        """`step` for an unknown word. An impossible one ends all classes."""
        possible = {key: value for key, value in before.items() if not key[1]}
        after: Hypotheses = {}
        for (state, _), (logp, _) in (possible or before).items():
            p, _, following = self.scorer.score(state, UNKNOWN)
            _add(after, (following, ()), logp + p, 0)
        total = _sum([logp for logp, _ in after.values()])
        return total if possible else NEVER, 0, {key: (logp - total, 0) for key, (logp, _) in after.items()}

    def sentence(self, words: Iterable[str]) -> Iterator[tuple[float, int]]:
        """log10 p and n-gram length of each word and of `</s>`."""
        now = self.begin()
        for word in (*words, "</s>"):
            logp, length, now = self.step(now, word)
            yield logp, length

    def score_lines(self, lines: bytes) -> SentenceScores:
        """Like `batch.score_lines`. The token of a word that only a class has is the number of the class."""
        tokens, logps, lengths = [], [], []
        for line in lines.removesuffix(b"\n").split(b"\n") if lines else []:  # not splitlines: CR is a blank
            words = [word.decode("utf-8", "surrogateescape") for word in spelled(line)]
            for word, (logp, length) in zip([*words, ""], self.sentence(words), strict=True):
                tokens.append(self._token(word) if word else BOUNDARY)
                logps.append(logp)
                lengths.append(length)
                if word and not length:
                    tokens[-1] = UNKNOWN
        return summed(np.array(tokens, np.int32), np.array(logps, np.float64), np.array(lengths, np.int8))

    def _token(self, word: str) -> int:
        number = self.scorer.number(word)
        if number != UNKNOWN:
            return number
        listed = self._by_first.get(word) or [each for each in self.expansions if word in each.words]
        return listed[0].number if listed else UNKNOWN


def _add(to: Hypotheses, key: tuple[int, tuple[str, ...]], logp: float, length: int) -> None:
    held = to.get(key)
    to[key] = (logp, length) if held is None else (_sum([held[0], logp]), max(held[1], length))


def _sum(logs: list[float]) -> float:
    """log10 of a sum of probabilities, from their log10."""
    best = max(logs)
    return best + math.log10(sum(10.0 ** (each - best) for each in logs))
