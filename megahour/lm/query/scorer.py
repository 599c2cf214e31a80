"""A model for decoders: words one at a time from states, sentences, and many states at once. See `states`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import carray

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
from megahour.lm.text.machine import address_of, pointer
from megahour.lm.text.tokenise import BOUNDARY, END, PADDING, UNKNOWN, encode_block

if TYPE_CHECKING:
    from torch import Tensor

    Numbers = npt.NDArray[np.int64] | Tensor

REMEMBERED = 1 << 17  # words whose numbers are at hand, some 15 MB
_PADDING = "\0" * PADDING  # parts words, as a space


class StateScores(NamedTuple):
    """Of pairs of a state and a word, in the shape that both together have: arrays, or tensors where these were given.

    log10_prob: float64. ngram_length: int64, words of the n-gram that gave it. state: int64, those after the words.
    """

    log10_prob: Any
    ngram_length: Any
    state: Any


class NgramScorer:
    """Asks a model for one word after another. A state is a number, small and the same in every process that opens the
    file; equal numbers mean that nothing of what was said before them can make a difference any more.

    `ngrams` goes to functions of numba's that call `states.step` by themselves.
    """

    def __init__(self, model: MappedModel) -> None:
        """A model with n-grams whose histories it lacks, of a file that was written by an earlier version, is built
        anew in memory; `megahour lm convert OLD.mlm NEW.mlm` does so once for all."""
        self.model = model if model.closed else from_model(to_arrays(model))
        self.order = self.model.order
        self.ngrams = Ngrams.of(self.model)
        self._places = self.ngrams.places()
        self._at = int(self._places.ctypes.data)
        self._numbers: dict[str, int] = {}

    @staticmethod
    def open(path: str | Path) -> NgramScorer:
        """Of a file: a mapped one at once, ARPA after it has been read. Raises as `model_files.open_model`."""
        return NgramScorer(open_model(path))

    def __contains__(self, word: str) -> bool:
        return self.number(word) != UNKNOWN

    def number(self, word: str) -> int:
        """The word's number in the model, UNKNOWN where it has none; `<s>` and `</s>` have numbers too."""
        return int(_number(self._at, (word + _PADDING).encode("utf-8", "surrogateescape")))

    def begin(self, *, bos: bool = True) -> int:
        """The state where a sentence begins; without `bos` where nothing is known of what was before."""
        return int(first_state(self.ngrams, bos))

    def score(self, state: int, word: str | int) -> tuple[float, int, int]:
        """log10 p of a word, or of its number; how many words the n-gram has that gave it; the state after it.

        Words that the model lacks have the probability of `<unk>`, `</s>` is the end of the sentence. Raises
        ValueError: the model has no such state or number.
        """
        if isinstance(word, str):
            number = self._numbers.get(word)  # a dictionary is three times as fast as the words' hash table from here
            if number is None:
                number = self._remembered(word)
        else:
            number = word
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
        """Σ log10 p of words that spaces part, with `</s>` unless `eos` is False, after `<s>` unless `bos` is.

        `<s>` and `</s>` in the text are left out, as everywhere in this package. Raises ValueError: a line break.
        """
        found = _score_line(self._at, (sentence + _PADDING).encode("utf-8", "surrogateescape"), bos, eos)
        if found != found:
            raise ValueError(f"a sentence has a line break in it: {sentence[:60]!r}")
        return float(found)

    def full_scores(self, sentence: str, *, bos: bool = True, eos: bool = True) -> list[tuple[float, int, bool]]:
        """Of each word, and of `</s>`: log10 p, n-gram length, and whether the model lacks it. As `score_sentence`."""
        data = (sentence + _PADDING).encode("utf-8", "surrogateescape")
        tokens, logp, length, breaks = _score_words(self._at, data, bos, eos)
        if breaks:
            raise ValueError(f"a sentence has a line break in it: {sentence[:60]!r}")
        return list(zip(logp.tolist(), length.tolist(), (tokens == UNKNOWN).tolist(), strict=True))

    def score_states(self, states: Numbers, words: Numbers) -> StateScores:
        """Words, by their numbers, after states: arrays or tensors of integers whose shapes go together as in numpy's
        arithmetic, (N, 1) and (W,) for all words after all states.

        Raises ValueError: the model has no such state or number.
        """
        tensor = next((each for each in (states, words) if hasattr(each, "detach")), None)
        given = [np.asarray(each.detach().cpu() if hasattr(each, "detach") else each) for each in (states, words)]
        shape = np.broadcast_shapes(*(each.shape for each in given))
        one, two = (np.ascontiguousarray(np.broadcast_to(each, shape), np.int64).reshape(-1) for each in given)
        logp, length, after = np.empty(len(one)), np.empty(len(one), np.int64), np.empty(len(one), np.int64)
        wrong = step_pairs(self.ngrams, one, two, logp, length, after)
        if wrong >= 0:
            raise ValueError(f"state {one[wrong]} or word {two[wrong]} is not of this model")
        found = StateScores(*(each.reshape(shape) for each in (logp, length, after)))
        if tensor is None:
            return found
        from torch import from_numpy  # only for those who have tensors

        return StateScores(*(from_numpy(each).to(tensor.device) for each in found))

    def history(self, state: int) -> tuple[str, ...]:
        """The words that a state stands for, in their order. Raises ValueError: the model has no such state."""
        if not is_state(self.ngrams, state):
            raise ValueError(f"state {state} is not of this model")
        context, backs = np.empty(MAX_ORDER, np.int64), np.empty(MAX_ORDER, np.float32)
        numbers = context[: unpack(self.ngrams, state, context, backs)].tolist()
        table = self.model.vocabulary
        spelled = [table.arena[table.starts[n] : table.starts[n + 1]].tobytes() for n in reversed(numbers)]
        return tuple(word.decode("utf-8", "surrogateescape") for word in spelled)


@compiled
def _number(places, data):  # type: ignore[no-untyped-def]
    lm = opened(places)
    return number_in(lm, carray(pointer(address_of(data)), (len(data),), np.uint8), len(data) - PADDING)


@compiled
def _score_number(places, state, word):  # type: ignore[no-untyped-def]
    """As `step`; with an n-gram of no words where the state or the word is none."""
    lm = opened(places)
    if not (is_state(lm, state) and 0 <= word < lm.words):
        return 0.0, np.int64(0), np.int64(0)
    return step(lm, state, word)


@compiled
def _score_line(places, data, bos, eos):  # type: ignore[no-untyped-def]
    """Σ log10 p, NaN where there is a line break."""
    _, logp, _, breaks = _score_words(places, data, bos, eos)
    total = np.nan if breaks else 0.0
    for i in range(len(logp)):
        total += logp[i]
    return total


@compiled
def _score_words(places, data, bos, eos):  # type: ignore[no-untyped-def]
    """Numbers of the words, and BOUNDARY for the end; log10 p; n-gram lengths. A line break is a BOUNDARY too many."""
    lm, size = opened(places), len(data) - PADDING
    table, arena, starts = vocabulary_of(lm)
    text = carray(pointer(address_of(data)), (len(data),), np.uint8)
    begin, tokens = np.int64(0), np.empty(size + 3, np.int32)
    tokens[0] = BOUNDARY
    _, count, _, _ = encode_block(text, begin, size, size, table, arena, starts, lm.words, tokens[1:], begin, True)
    breaks = (tokens[1 : count + 1] == BOUNDARY).sum()
    if eos:
        count += 1
        tokens[count] = BOUNDARY
    logp, length = np.empty(count, np.float32), np.empty(count, np.int8)
    if bos:
        numbers, weights, segments, keys, values = arrays_of(lm)
        score(tokens, 1, count + 1, lm.order, True, numbers, weights, segments, keys, values, END, logp, length)
    else:
        _walk(lm, tokens[1:], logp, length)
    return tokens[1 : count + 1], logp, length, breaks


@compiled
def _walk(lm, tokens, logp, length):  # type: ignore[no-untyped-def]
    """Each word from the state that the one before it left; the first from none."""
    state = np.int64(0)
    for i in range(len(logp)):
        word = np.int64(END) if tokens[i] == BOUNDARY else np.int64(tokens[i])
        found, words, state = step(lm, state, word)
        logp[i], length[i] = found, words
