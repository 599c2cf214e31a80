"""G: an n-gram model as an acceptor with back-off arcs (Mohri, Pereira & Riley 2002, section 4.3).

A state per history that has continuations, an arc per n-gram, and per state one arc `#0` to the longest shorter
history, which costs the back-off weight. `</s>` is a final weight. Read as a plain acceptor, a sentence may also back
off where its n-gram exists, so its cost is the least over these choices: at most the model's, and seldom much less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from megahour.lm.arpa.model import NEVER, NgramModel
from megahour.lm.text.vocabulary import BOS, EOS
from megahour.units.fst import FstArrays, from_columns

LN10 = math.log(10.0)
Gram = tuple[int, ...]


def grammar(model: NgramModel, labels: Mapping[str, int], backoff_label: int) -> FstArrays:
    """G over the words in `labels`; n-grams with other words, `<unk>` among them, are left out.

    Arcs carry `labels[word]` on both sides; back-off arcs read `backoff_label` and write epsilon. Costs are in nats.
    """
    label_of = [0, 0, 0, *(labels.get(word, 0) for word in model.vocabulary.words[3:])]
    backoffs = _backoffs(model)
    states = _histories(model, label_of)
    start = states.get((BOS,) if (BOS,) in states else (), 0)
    final = np.full(len(states), np.inf, np.float32)
    arcs: list[tuple[int, int, int, float, int]] = []
    for grams, log10_probs in zip(model.grams, model.log10_prob, strict=True):
        for gram_list, log10_prob in zip(grams.tolist(), log10_probs.tolist(), strict=True):
            gram = tuple(gram_list)
            state = states.get(gram[:-1])
            if state is None or log10_prob <= NEVER:
                continue
            if gram[-1] == EOS:
                final[state] = -LN10 * log10_prob
            elif label := label_of[gram[-1]]:
                target, skipped = _settle(gram, states, backoffs)
                arcs.append((state, label, label, -LN10 * (log10_prob + skipped), target))
    for history, state in states.items():
        if history:
            target, skipped = _settle(history[1:], states, backoffs)
            arcs.append((state, backoff_label, 0, -LN10 * (backoffs.get(history, 0.0) + skipped), target))
    columns = list(zip(*arcs, strict=True)) or [()] * 5
    return from_columns(start, final, *columns)


def _backoffs(model: NgramModel) -> dict[Gram, float]:
    return {
        tuple(gram): value
        for grams, values in zip(model.grams[:-1], model.log10_backoff[:-1], strict=True)
        for gram, value in zip(grams.tolist(), values.tolist(), strict=True)
    }


def _histories(model: NgramModel, label_of: list[int]) -> dict[Gram, int]:
    """State number of each history that some n-gram continues and that the labelled words can make."""
    states: dict[Gram, int] = {(): 0}
    known = np.array(label_of) != 0
    known[BOS] = True
    for grams in model.grams[1:]:
        for history in grams[known[grams[:, :-1]].all(axis=1), :-1].tolist():
            states.setdefault(tuple(history), len(states))
    return states


def _settle(gram: Gram, states: Mapping[Gram, int], backoffs: Mapping[Gram, float]) -> tuple[int, float]:
    """State of the longest suffix of `gram` that is a state, and the log10 back-off weights passed on the way."""
    skipped = 0.0
    while gram not in states:
        skipped += backoffs.get(gram, 0.0)
        gram = gram[1:]
    return states[gram], skipped
