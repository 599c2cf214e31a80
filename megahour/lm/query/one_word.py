"""The probability of one word after others, for searches that try words: `scoring` is for whole texts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.lm.query.lookup import HALF, HIGH, LINE, home, matches
from megahour.lm.query.mapped import MappedModel
from megahour.lm.text.machine import trailing_zeros
from megahour.lm.text.tokenise import BOUNDARY, END, UNKNOWN, number_of

_NOTHING = np.uint64(0)


class WordProbabilities(NamedTuple):
    """A mapped model's order and arrays, as compiled code takes them; see `MappedModel`."""

    order: int
    numbers: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    segments: npt.NDArray[np.int64]
    keys: npt.NDArray[np.uint64]
    values: npt.NDArray[np.float32]
    table: npt.NDArray[np.uint64]
    arena: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]

    @staticmethod
    def from_model(model: MappedModel) -> WordProbabilities:
        words = model.vocabulary
        tables = words.table, words.arena, words.starts
        return WordProbabilities(
            model.order, model.words, model.weights, model.segments, model.entries, model.values, *tables
        )

    @staticmethod
    def none() -> WordProbabilities:
        """Of no model: order 0."""
        keys, values, starts = np.zeros(0, np.uint64), np.zeros(0, np.float32), np.zeros(0, np.int64)
        return WordProbabilities(
            0, np.zeros(0, np.int32), values, starts, keys, values, keys, np.zeros(0, np.uint8), starts
        )


@compiled
def word_number(lm, text, length):  # type: ignore[no-untyped-def]
    """Number of the word in text[:length], or UNKNOWN. `text` must go on for PADDING bytes after it."""
    number = number_of(text, length, lm.table, lm.arena, lm.starts)
    return number if number > END else np.int64(UNKNOWN)


@compiled
def log10_probability(lm, context, word):  # type: ignore[no-untyped-def]
    """log10 p(word | context) as `scoring.score`. context (≥ order - 1,): numbers of the words before, the last first;
    BOUNDARY from the beginning of the sentence on. word: a number, END for the end of the sentence."""
    best, result = _walk(lm, word, context, np.int64(0), lm.order, np.int64(0))
    total = np.float64(result)
    if best < lm.order:
        total += _walk(lm, np.int64(context[0]), context, np.int64(1), lm.order - 1, best)[1]
    return total


@compiled
def _walk(lm, word, context, first, longest, at_least):  # type: ignore[no-untyped-def]
    """Along the n-grams that end in `word`, after context[first], context[first + 1] …, up to `longest` words.

    at_least 0: (length, log10 p) of the longest n-gram. Above: (0, Σ log10 back-off of those with so many words).
    """
    best = np.int64(1)
    result = lm.weights[4 * word + 1] if at_least else lm.weights[4 * word]
    if at_least > 1:
        result = np.float32(0.0)
    if longest < 2 or (at_least and word == BOUNDARY):
        return best, result
    before = np.int64(context[first])
    segment = 2 * np.int64(lm.numbers[4 * before + 2])
    base, lines = 2 * lm.segments[segment], lm.segments[segment + 1] // LINE
    key = ((HIGH | np.uint64(word)) << HALF) | np.uint64(before)
    for k in range(2, longest + 1):
        at = base + 2 * LINE * home(key, lines)
        last = base + 2 * LINE * (lines - 1)
        same, free = matches(lm.keys, at, key), matches(lm.keys, at, _NOTHING)
        while not (same | free):
            at = base if at == last else at + 2 * LINE
            same, free = matches(lm.keys, at, key), matches(lm.keys, at, _NOTHING)
        if not same:
            break
        at += np.int64(trailing_zeros(same))
        value = lm.values[2 * at + 2]
        if at_least:
            result += lm.values[2 * at + 3] if k >= at_least else np.float32(0.0)
        elif value == value:  # not a blank
            best, result = np.int64(k), value
        if k == longest or context[first + k - 2] == BOUNDARY:
            break
        key = (np.uint64(((at - base) >> 1) + 1) << HALF) | np.uint64(context[first + k - 1])
    return best, result
