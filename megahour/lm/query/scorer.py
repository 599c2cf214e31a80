"""Scores for decoders: single words after states, sentences, and many states at once. See `states`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import boolean, carray, int64, uint8
from numba.types import Bytes

from megahour.core.compiled import compiled
from megahour.lm.query.many_states import step_pairs
from megahour.lm.query.mapped import MappedModel
from megahour.lm.query.mapped_import import from_model, to_arrays
from megahour.lm.query.model_files import open_model
from megahour.lm.query.scoring import score
from megahour.lm.query.states import (
    MAX_ORDER,
    Ngrams,
    arrays_of,
    first_state,
    is_state,
    number_in,
    opened,
    step,
    unpack,
    vocabulary_of,
)
from megahour.lm.text.machine import address_of, pointer, room_for_64, room_for_128
from megahour.lm.text.tokenise import BOUNDARY, END, PADDING, UNKNOWN, encode_block

if TYPE_CHECKING:
    from torch import Tensor

    Numbers = npt.NDArray[np.int64] | Tensor

REMEMBERED = 1 << 17  # words whose numbers are cached, about 15 MB
SHORT = 250  # bytes of a sentence that is scored without an allocation
_PADDING = "\0" * PADDING  # separates words, as a space does


class StateScores(NamedTuple):
    """Scores of pairs of a state and a word, in their broadcast shape: arrays, or tensors if tensors were given.

    log10_prob: float64. ngram_length: int64, length of the n-gram that gave it. state: int64, the state after the word.
    """

    log10_prob: Any
    ngram_length: Any
    state: Any


class NgramScorer:
    """Scores words one after another from states.

    A state is a number, the same in every process that opens the file. Histories with the same state give the same
    probabilities to all later words. `ngrams` is for functions compiled by numba that call `states.step` themselves.
    """

    def __init__(self, model: MappedModel) -> None:
        """A file of an earlier version, with n-grams that lack their histories, is rebuilt in memory. To rebuild it on
        disk: `megahour lm convert OLD.mlm NEW.mlm`."""
        self.model = model if model.closed else from_model(to_arrays(model))
        self.order = self.model.order
        self.ngrams = Ngrams.of(self.model)
        self._places = self.ngrams.places()
        self._at = int(self._places.ctypes.data)
        self._numbers: dict[str, int] = {}

    @staticmethod
    def open(path: str | Path) -> NgramScorer:
        """Open a file: mapped at once, ARPA by reading it. Raises as `model_files.open_model`."""
        return NgramScorer(open_model(path))

    def __contains__(self, word: str) -> bool:
        return self.number(word) != UNKNOWN

    def number(self, word: str) -> int:
        """The number of a word, UNKNOWN if the model lacks it; `<s>` and `</s>` have numbers, too."""
        return int(_number(self._at, (word + _PADDING).encode("utf-8", "surrogateescape")))

    def begin(self, *, bos: bool = True) -> int:
        """The state at the beginning of a sentence; without `bos` that of an unknown history."""
        return int(first_state(self.ngrams, bos))

    def score(self, state: int, word: str | int) -> tuple[float, int, int]:
        """(log10 p, length of the n-gram that gave it, next state) of a word, given as text or number.

        Words that the model lacks have the probability of `<unk>`; `</s>` is the end of the sentence. Raises
        ValueError: the model has no such state or number.
        """
        if isinstance(word, str):
            number = self._numbers.get(word)  # from Python a dictionary is three times as fast as the hash table
            if number is None:
                number = self._remembered(word)
        elif isinstance(word, (int, np.integer)):
            number = word
        else:
            raise TypeError(f"a word is text or its number, not {word!r}")
        found: tuple[float, int, int] = _score_number(self._at, state, number)
        if not found[1]:
            raise ValueError(f"state {state}, word {word!r}: not of this model, which has {self.ngrams.words} words")
        return found

    def _remembered(self, word: str) -> int:
        if len(self._numbers) >= REMEMBERED:
            self._numbers = {}
        self._numbers[word] = number = self.number(word)
        return number

    def score_sentence(self, sentence: str, *, bos: bool = True, eos: bool = True) -> float:
        """Σ log10 p of the words of a sentence, separated by spaces. bos: begin after `<s>`; eos: include `</s>`.

        `<s>` and `</s>` in the text are skipped, as everywhere in this package. Raises ValueError: a line break.
        """
        found = _line_scorer()(self._at, (sentence + _PADDING).encode("utf-8", "surrogateescape"), bos, eos)
        if found != found:
            raise ValueError(f"the sentence contains a line break: {sentence[:60]!r}")
        return found

    def full_scores(self, sentence: str, *, bos: bool = True, eos: bool = True) -> list[tuple[float, int, bool]]:
        """(log10 p, n-gram length, whether it is unknown) of each word and of `</s>`; see `score_sentence`."""
        data = (sentence + _PADDING).encode("utf-8", "surrogateescape")
        tokens, logp, length, breaks = _score_words(self._at, data, bos, eos)
        if breaks:
            raise ValueError(f"the sentence contains a line break: {sentence[:60]!r}")
        return list(zip(logp.tolist(), length.tolist(), (tokens == UNKNOWN).tolist(), strict=True))

    def score_states(self, states: Numbers, words: Numbers) -> StateScores:
        """Score words, given as numbers, after states: arrays or tensors of integers, which are broadcast. (N, 1) and
        (W,) give all words after all states.

        Raises ValueError: the model has no such state or number.
        """
        tensor = next((each for each in (states, words) if hasattr(each, "detach")), None)
        given = [np.asarray(each.detach().cpu() if hasattr(each, "detach") else each) for each in (states, words)]
        shape = np.broadcast_shapes(*(each.shape for each in given))
        # Copies, as `broadcast_to` may give read-only views, which compile the kernels once more.
        one, two = (np.array(np.broadcast_to(each, shape), np.int64, order="C").reshape(-1) for each in given)
        logp, length, after = np.empty(len(one)), np.empty(len(one), np.int64), np.empty(len(one), np.int64)
        wrong = step_pairs(self.ngrams, one, two, logp, length, after)
        if wrong >= 0:
            raise ValueError(f"state {one[wrong]} or word {two[wrong]} is not of this model")
        found = StateScores(*(each.reshape(shape) for each in (logp, length, after)))
        if tensor is None:
            return found
        from torch import from_numpy

        return StateScores(*(from_numpy(each).to(tensor.device) for each in found))

    def history(self, state: int) -> tuple[str, ...]:
        """The words of a state, in their order. Raises ValueError: the model has no such state."""
        if not is_state(self.ngrams, state):
            raise ValueError(f"state {state} is not of this model")
        context, backs = np.empty(MAX_ORDER, np.int64), np.empty(MAX_ORDER, np.float32)
        numbers = context[: unpack(self.ngrams, state, context, backs)].tolist()
        words = (self.model.vocabulary.spell(number) for number in reversed(numbers))
        return tuple(word.decode("utf-8", "surrogateescape") for word in words)


@compiled
def _number(places, data):  # type: ignore[no-untyped-def]
    lm = opened(places)
    return number_in(lm, carray(pointer(address_of(data)), (len(data),), np.uint8), len(data) - PADDING)


@compiled
def _score_number(places, state, word):  # type: ignore[no-untyped-def]
    """Like `step`; the n-gram length is 0 if the model lacks the state or the word."""
    lm = opened(places)
    if not (is_state(lm, state) and 0 <= word < lm.words):
        return 0.0, np.int64(0), np.int64(0)
    return step(lm, state, word)


@cache
def _line_scorer() -> Callable[[int, bytes, bool, bool], float]:
    """The machine code of `_score_line`: numba's look-up of the arguments' types takes as long as three words."""
    code = _score_line.compile((int64, Bytes(uint8, 1, "C", readonly=True), boolean, boolean))
    return code  # type: ignore[no-any-return]


@compiled
def _score_line(places, data, bos, eos):  # type: ignore[no-untyped-def]
    """Σ log10 p, NaN if there is a line break."""
    size = len(data) - PADDING
    if size <= SHORT:  # arrays on the stack
        tokens, logp = carray(room_for_128(), (256,), np.int32), carray(room_for_128(), (256,), np.float32)
        length = carray(room_for_64(), (256,), np.int8)
    else:
        tokens, logp = np.empty(size + 3, np.int32), np.empty(size + 2, np.float32)
        length = np.empty(size + 2, np.int8)
    count, breaks = _fill_scores(places, data, bos, eos, tokens, logp, length)
    total = np.nan if breaks else 0.0
    for i in range(count):
        total += logp[i]
    return total


@compiled
def _score_words(places, data, bos, eos):  # type: ignore[no-untyped-def]
    """Word numbers, with BOUNDARY for the end; log10 p; n-gram lengths; number of line breaks."""
    size = len(data) - PADDING
    tokens, logp, length = np.empty(size + 3, np.int32), np.empty(size + 2, np.float32), np.empty(size + 2, np.int8)
    count, breaks = _fill_scores(places, data, bos, eos, tokens, logp, length)
    return tokens[1 : count + 1], logp[:count], length[:count], breaks


@compiled
def _fill_scores(places, data, bos, eos, tokens, logp, length):  # type: ignore[no-untyped-def]
    """Fill the arrays of `_score_words`, tokens from the second place on. Returns (words, line breaks)."""
    lm, size = opened(places), len(data) - PADDING
    table, arena, starts = vocabulary_of(lm)
    text = carray(pointer(address_of(data)), (len(data),), np.uint8)
    # Literals would compile the functions that take them once more.
    begin, first, closed, end = np.int64(0), np.int64(1), np.bool_(True), np.int64(END)
    tokens[0] = BOUNDARY
    _, count, _, _ = encode_block(text, begin, size, size, table, arena, starts, lm.words, tokens[1:], begin, first)
    breaks = (tokens[1 : count + 1] == BOUNDARY).sum()
    if eos:
        count += 1
        tokens[count] = BOUNDARY
    if bos:
        numbers, weights, segments, keys, values = arrays_of(lm)
        score(tokens, first, count + 1, lm.order, closed, numbers, weights, segments, keys, values, end, logp, length)
    else:
        _walk(lm, tokens[1:], logp[:count], length)
    return count, breaks


@compiled
def _walk(lm, tokens, logp, length):  # type: ignore[no-untyped-def]
    """Score each word after the state of the one before it, the first after an unknown history."""
    state = np.int64(0)
    for i in range(len(logp)):
        word = np.int64(END) if tokens[i] == BOUNDARY else np.int64(tokens[i])
        found, words, state = step(lm, state, word)
        logp[i], length[i] = found, words
