"""Log-linear mixture of models at query time (Klakow 1998).

    s(w|h) = Σ_i λ_i log10 p_i(w|h)                      any λ_i ≥ 0
    log10 p(w|h) = s(w|h) - log10 Σ_v 10^s(v|h)          over all words v but `<s>`

The score s is not a probability. It can rank hypotheses, but has no meaningful perplexity, and scores of sentences of
different lengths are not comparable. Normalising takes one pass over the vocabulary for every new context.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megahour.core.errors import MegahourError
from megahour.lm.combine.interpolate import Members
from megahour.lm.text.arrays import Float64
from megahour.lm.text.vocabulary import BOS, EOS

States = tuple[int, ...]


class LogLinear:
    """A log-linear mixture. Words that a model lacks are its `<unk>`: gather `members` with unknown="share".

    Raises MegahourError: the exponents are not one number ≥ 0 per model, or a word is impossible in a model.
    """

    def __init__(self, members: Members, exponents: Sequence[float]) -> None:
        self.members, self.exponents = members, np.array(exponents, np.float64)
        if len(self.exponents) != len(members.walkers) or not (self.exponents >= 0).all():
            raise MegahourError(
                f"exponents {list(exponents)} for {len(members.walkers)} models", remedy="give one ≥ 0 for each model"
            )
        if not all(np.isfinite(walker.added).all() for walker in members.walkers):
            raise MegahourError("a word is impossible in a model", remedy='gather the models with unknown="share"')
        self._sums: dict[States, float] = {}

    def sentence(self, words: Sequence[str], *, normalised: bool = False) -> float:
        """Σ of scores, or of log10 probabilities if `normalised`, of `words` and `</s>` after `<s>`."""
        tokens = np.array([*self.members.vocabulary.encode(words), EOS], np.int32)
        scores = self.exponents @ np.stack([walker.tokens(tokens) for walker in self.members.walkers])
        if not normalised:
            return float(scores.sum())
        states = tuple(int(walker.number[BOS]) + 1 for walker in self.members.walkers)
        total = float(scores.sum())
        for token in tokens.tolist():
            total -= self.log10_sum(states)
            states = tuple(
                walker.advance(state, token) for walker, state in zip(self.members.walkers, states, strict=True)
            )
        return total

    def scores(self, states: States) -> Float64:
        """(U,) s(w|h) of every word; states: one for each model."""
        rows = [walker.distribution(state) for walker, state in zip(self.members.walkers, states, strict=True)]
        return np.asarray(self.exponents @ np.stack(rows), np.float64)

    def log10_sum(self, states: States) -> float:
        """log10 of the sum over the vocabulary in a context; results are cached."""
        if states not in self._sums:
            values = np.delete(self.scores(states), BOS)
            top = float(values.max())
            self._sums[states] = top + float(np.log10((10.0 ** (values - top)).sum()))
        return self._sums[states]
