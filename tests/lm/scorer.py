"""The reference that scoring is compared with: one n-gram at a time, from hash tables.

p(w|h) = p of the longest known n-gram that ends h w, times the back-off weights of the longer histories.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from megahour.lm.arpa.model import NgramModel
from megahour.lm.query.batch import TextScore
from megahour.lm.text.vocabulary import BOS, EOS, UNK


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

    def sentence(self, words: Sequence[str]) -> TextScore:
        """Score of `words` and `</s>` after `<s>`."""
        history, score = [BOS], TextScore()
        for word in [*self.vocabulary.encode(words), EOS]:
            value = self.log10_prob(word, history)
            unknown = word == UNK
            score += TextScore(value, 1, int(unknown), value if unknown else 0.0)
            history.append(word)
        return score

    def text(self, lines: Iterable[str]) -> TextScore:
        """Score of all non-empty lines, one sentence each."""
        return sum((self.sentence(words) for line in lines if (words := line.split())), TextScore())
