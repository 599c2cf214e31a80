"""Scores for decoders: single words after states, sentences, and many states at once. See `states`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.lm.query.calls import score_after, score_word_after, score_words, sentence_score, word_number
from megahour.lm.query.many_states import step_pairs
from megahour.lm.query.mapped import MappedModel
from megahour.lm.query.mapped_import import from_model, to_arrays
from megahour.lm.query.model_files import open_model
from megahour.lm.query.states import MAX_ORDER, Ngrams, first_state, is_state, unpack
from megahour.lm.text.tokenise import PADDING, UNKNOWN

if TYPE_CHECKING:
    from torch import Tensor

    Numbers = npt.NDArray[np.int64] | Tensor

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
        own = self._places.tobytes()
        self._sentence, self._number = sentence_score.bound(own), word_number.bound(own)
        self._first = int(first_state(self.ngrams, True))
        self._after, self._word_after = score_after.bound(own), score_word_after.bound(own)

    def __reduce__(self) -> tuple[Any, ...]:
        return NgramScorer, (self.model,)  # addresses are of this process

    @staticmethod
    def open(path: str | Path) -> NgramScorer:
        """Open a file: mapped at once, ARPA by reading it. Raises as `model_files.open_model`."""
        return NgramScorer(open_model(path))

    def __contains__(self, word: str) -> bool:
        return self.number(word) != UNKNOWN

    def number(self, word: str) -> int:
        """The number of a word, UNKNOWN if the model lacks it; `<s>` and `</s>` have numbers, too."""
        found: int = self._number(word)
        return found if found >= 0 else self.model.vocabulary.number(word.encode("utf-8", "surrogateescape"))

    def begin(self, *, bos: bool = True) -> int:
        """The state at the beginning of a sentence; without `bos` that of an unknown history."""
        return self._first if bos else 0

    def score(self, state: int, word: str | int) -> tuple[float, int, int]:
        """(log10 p, length of the n-gram that gave it, next state) of a word, given as text or number.

        Words that the model lacks have the probability of `<unk>`; `</s>` is the end of the sentence. Raises
        ValueError: the model has no such state or number.
        """
        found: tuple[float, int, int] = (self._word_after if isinstance(word, str) else self._after)(state, word)
        return found if found[1] else self._after_other(state, word)

    def _after_other(self, state: int, word: str | int) -> tuple[float, int, int]:
        """`score` of long words, and of those that are not UTF-8."""
        if not isinstance(word, (str, int, np.integer)):
            raise TypeError(f"a word is text or its number, not {word!r}")
        found: tuple[float, int, int] = self._after(state, self.number(word) if isinstance(word, str) else word)
        if not found[1]:
            raise ValueError(f"state {state}, word {word!r}: not of this model, which has {self.ngrams.words} words")
        return found

    def score_sentence(self, sentence: str, bos: bool = True, eos: bool = True) -> float:
        """Σ log10 p of the words of a sentence, separated by spaces. bos: begin after `<s>`; eos: include `</s>`.

        `<s>` and `</s>` in the text are skipped, as everywhere in this package. Raises ValueError: a line break.
        """
        found: float = self._sentence(sentence) if bos and eos else self._sentence(sentence, bos, eos)
        if found == found:
            return found
        return float(np.sum(self._words(sentence, bos, eos)[1], dtype=np.float64))

    def full_scores(self, sentence: str, *, bos: bool = True, eos: bool = True) -> list[tuple[float, int, bool]]:
        """(log10 p, n-gram length, whether it is unknown) of each word and of `</s>`; see `score_sentence`."""
        tokens, logp, length = self._words(sentence, bos, eos)
        return list(zip(logp.tolist(), length.tolist(), (tokens == UNKNOWN).tolist(), strict=True))

    def _words(self, sentence: str, bos: bool, eos: bool) -> tuple[Any, Any, Any]:
        """Word numbers, with BOUNDARY for the end; log10 p; n-gram lengths. Raises ValueError: a line break."""
        data = (sentence + _PADDING).encode("utf-8", "surrogateescape")
        *found, breaks = score_words(self._at, data, bos, eos)
        if breaks:
            raise ValueError(f"the sentence contains a line break: {sentence[:60]!r}")
        return tuple(found)

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
