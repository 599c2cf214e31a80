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
class NgramLevel:
    """The k-grams of an order. grams (n, k): word numbers. logp, backoff (n,): log10. ending (n,): row of the last k-1
    words among the shorter ones; unigrams have none. extends (n,): whether a longer n-gram ends with it."""

    grams: Int32
    logp: Float32
    backoff: Float32
    ending: Int32
    extends: Flags

    def __len__(self) -> int:
        return len(self.grams)


def closed(model: NgramModel) -> list[NgramLevel]:
    """The levels of a model, k = 1 …: its own n-grams in their order, then those that are put in."""
    grams = [np.ascontiguousarray(each) for each in model.grams]
    none = np.zeros(0, np.int32)
    parts = [(none, none)] * (len(grams) + 1)  # of each order's n-grams: rows of what they begin and end with
    for k in range(len(grams) - 1, 0, -1):  # from the longest: what is put in wants its own parts too
        begins, ends = grams[k][:, :-1], grams[k][:, 1:]
        parts[k] = _rows(grams[k - 1], begins), _rows(grams[k - 1], ends)
        lacking = np.concatenate([each[rows < 0] for each, rows in zip((begins, ends), parts[k], strict=True)])
        if len(lacking):
            grams[k - 1] = np.concatenate([grams[k - 1], np.unique(lacking, axis=0)])
            parts[k] = _rows(grams[k - 1], begins), _rows(grams[k - 1], ends)
    levels: list[NgramLevel] = []
    for k, (rows, own, weights) in enumerate(zip(grams, model.log10_prob, model.log10_backoff, strict=True)):
        begins, ends = parts[k]
        logp, backoff = np.empty(len(rows), np.float32), np.zeros(len(rows), np.float32)
        logp[: len(own)], backoff[: len(own)] = own, weights
        new = slice(len(own), len(rows))
        if k:
            logp[new] = levels[-1].logp[ends[new]] + levels[-1].backoff[begins[new]]
        goes_on, extends = (_marked(len(rows), each) for each in parts[k + 1])
        backoff[backoff == 0] = np.where(goes_on, np.float32(0.0), np.float32(-0.0))[backoff == 0]
        levels.append(NgramLevel(rows, logp, backoff, ends, extends))
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
