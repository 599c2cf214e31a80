"""n-grams as KenLM's tables want them: each with the (k-1)-grams that it begins and ends with.

What a pruned model lacks is put in with the probability that back-off gives, and no weight of its own, so that no score
changes; KenLM does the same for endings, and refuses models that lack beginnings:

    log10 p(w1 … wk) = log10 p(w2 … wk) + log10 b(w1 … w(k-1))       in float32, from the shortest on, as KenLM has it

A back-off weight of zero is -0.0 where no n-gram goes on, else 0.0: states stop there (KenLM's `blank.hh`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megahour.lm.arpa.model import NgramModel
from megahour.lm.arpa.rows import histories

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Level:
    """The k-grams of an order. grams (n, k): word numbers. logp, backoff (n,): log10. ending (n,): row of the last k-1
    words among the shorter ones; unigrams have none. extends (n,): whether a longer n-gram ends with it."""

    grams: Int32
    logp: Float32
    backoff: Float32
    ending: Int32
    extends: Flags

    def __len__(self) -> int:
        return len(self.grams)


def closed(model: NgramModel) -> list[Level]:
    """The levels of a model, k = 1 …: its own n-grams in their order, then those that are put in."""
    grams = [np.ascontiguousarray(each) for each in model.grams]
    for k in range(len(grams) - 1, 1, -1):  # from the longest: what is put in wants its own parts too
        begins, ends = grams[k][:, :-1], grams[k][:, 1:]
        lacking = [each[_rows(grams[k - 1], each) < 0] for each in (begins, ends)]
        grams[k - 1] = np.concatenate([grams[k - 1], np.unique(np.concatenate(lacking), axis=0)])
    levels: list[Level] = []
    for k, (rows, own, weights) in enumerate(zip(grams, model.log10_prob, model.log10_backoff, strict=True), 1):
        n = len(rows)
        longer = grams[k] if k < len(grams) else np.zeros((0, k + 1), np.int32)
        logp, backoff = np.empty(n, np.float32), np.zeros(n, np.float32)
        logp[: len(own)], backoff[: len(own)] = own, weights
        ending = np.zeros(0, np.int32)
        if k > 1:
            ending = _rows(levels[-1].grams, rows[:, 1:])
            new = slice(len(own), n)
            begins = _rows(levels[-1].grams, rows[new, :-1])
            logp[new] = levels[-1].logp[ending[new]] + levels[-1].backoff[begins]
        goes_on, extends = (_marked(n, _rows(rows, part)) for part in (longer[:, :-1], longer[:, 1:]))
        backoff[backoff == 0] = np.where(goes_on, np.float32(0.0), np.float32(-0.0))[backoff == 0]
        levels.append(Level(rows, logp, backoff, ending, extends))
    return levels


def _rows(shorter: Int32, wanted: Int32) -> Int32:
    """Rows (n,) of the k-grams `wanted` (n, k) among `shorter`; -1 where it lacks one. A word is its own row."""
    if shorter.shape[1] == 1:
        return np.ascontiguousarray(wanted[:, 0])
    return histories(shorter, np.ascontiguousarray(wanted))


def _marked(n: int, rows: Int32) -> Flags:
    flags = np.zeros(n, np.bool_)
    flags[rows] = True
    return flags
