"""What a text scores: its log10 probability, out-of-vocabulary words, perplexity."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add


@dataclass(frozen=True)
class TextScore:
    """Summed log10 probability of `tokens` predicted tokens (words and `</s>`), `oov` of them unknown.

    `log10_oov` is the part of `log10_prob` that the unknown words have.
    """

    log10_prob: float = 0.0
    tokens: int = 0
    oov: int = 0
    log10_oov: float = 0.0

    def __add__(self, other: TextScore) -> TextScore:
        return TextScore(*map(add, vars(self).values(), vars(other).values()))

    @property
    def perplexity(self) -> float:
        """Over all tokens, unknown words scored as `<unk>`. NaN without tokens."""
        return _perplexity(self.log10_prob, self.tokens)

    @property
    def perplexity_known(self) -> float:
        """Over the tokens that the vocabulary knows. NaN without such tokens."""
        return _perplexity(self.log10_prob - self.log10_oov, self.tokens - self.oov)


def _perplexity(log10_prob: float, tokens: int) -> float:
    return 10.0 ** (-log10_prob / tokens) if tokens else float("nan")
