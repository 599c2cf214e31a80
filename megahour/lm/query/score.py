"""Scoring sentences with a back-off model: log10 probabilities, out-of-vocabulary words, perplexity.

p(w|h) = p of the longest known n-gram that ends h w, times the back-off weights of the longer histories.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from megahour.lm.arpa.model import NgramModel
from megahour.lm.text.vocabulary import BOS, EOS, UNK, sentence_words


@dataclass(frozen=True)
class Score:
    """Summed log10 probability of `tokens` predicted tokens (words and `</s>`), `oov` of them unknown.

    `log10_oov` is the part of `log10_prob` that the unknown words have.
    """

    log10_prob: float = 0.0
    tokens: int = 0
    oov: int = 0
    log10_oov: float = 0.0

    def __add__(self, other: Score) -> Score:
        return Score(
            self.log10_prob + other.log10_prob,
            self.tokens + other.tokens,
            self.oov + other.oov,
            self.log10_oov + other.log10_oov,
        )

    @property
    def perplexity(self) -> float:
        """Over all tokens, unknown words scored as `<unk>`. NaN without tokens."""
        return _perplexity(self.log10_prob, self.tokens)

    @property
    def perplexity_known(self) -> float:
        """Over the tokens that the vocabulary knows. NaN without such tokens."""
        return _perplexity(self.log10_prob - self.log10_oov, self.tokens - self.oov)


class Scorer:
    """Looks n-grams up in hash tables, one per order."""

    def __init__(self, model: NgramModel) -> None:
        self.vocabulary, self.order = model.vocabulary, model.order
        self._entries = [
            {tuple(gram): entry for gram, entry in zip(grams.tolist(), zip(probs, backoffs, strict=True), strict=True)}
            for grams, probs, backoffs in zip(
                model.grams,
                (values.tolist() for values in model.log10_prob),
                (values.tolist() for values in model.log10_backoff),
                strict=True,
            )
        ]

    def log10_prob(self, word: int, history: Sequence[int]) -> float:
        """log10 p(word | history), by word numbers; only the last order - 1 words of the history count."""
        total = 0.0
        context = tuple(history[-(self.order - 1) :]) if self.order > 1 else ()
        while True:
            entry = self._entries[len(context)].get((*context, word))
            if entry is not None:
                return total + float(entry[0])
            backoff = self._entries[len(context) - 1].get(context)
            total += backoff[1] if backoff is not None else 0.0
            context = context[1:]

    def sentence(self, words: Sequence[str]) -> Score:
        """Score of `words` and `</s>` after `<s>`."""
        history, score = [BOS], Score()
        for word in [*self.vocabulary.encode(words), EOS]:
            value = self.log10_prob(word, history)
            unknown = word == UNK
            score += Score(value, 1, int(unknown), value if unknown else 0.0)
            history.append(word)
        return score

    def text(self, lines: Iterable[str]) -> Score:
        """Score of all non-empty lines, one sentence each."""
        return sum((self.sentence(words) for line in lines if (words := sentence_words(line))), Score())


def _perplexity(log10_prob: float, tokens: int) -> float:
    return 10.0 ** (-log10_prob / tokens) if tokens else float("nan")
