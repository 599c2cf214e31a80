"""Completion of a model for KenLM's tables, which need the first and the last k-1 words of every k-gram.

n-grams that a pruned model lacks are added with the probability that back-off gives and a weight of zero, so no score
changes. KenLM does the same for suffixes, and refuses models that lack prefixes:

    log10 p(w1 … wk) = log10 p(w2 … wk) + log10 b(w1 … w(k-1))       in float32, short n-grams first, as in KenLM

A back-off weight of zero is -0.0 if no longer n-gram begins with these words, else 0.0 (KenLM's `blank.hh`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megahour.lm.arpa.model import NgramModel
from megahour.lm.arpa.rows import histories
from megahour.lm.text.arrays import Flags, Float32, Int32


@dataclass(frozen=True, eq=False)
class NgramLevel:
    """The k-grams of one order. grams (n, k): word numbers. logp, backoff (n,): log10. ending (n,): row of the last k-1
    words in the level below, empty for unigrams. extends (n,): whether a longer n-gram ends with these words."""

    grams: Int32
    logp: Float32
    backoff: Float32
    ending: Int32
    extends: Flags

    def __len__(self) -> int:
        return len(self.grams)


def closed(model: NgramModel) -> list[NgramLevel]:
    """The levels of a model, k = 1 …: its own n-grams in their order, then the added ones."""
    grams = [np.ascontiguousarray(each) for each in model.grams]
    none = np.zeros(0, np.int32)
    parts = [(none, none)] * (len(grams) + 1)  # by order: rows of the prefixes and suffixes of the n-grams
    for k in range(len(grams) - 1, 0, -1):  # from the longest: added n-grams need prefixes and suffixes, too
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
    """(n,) rows of the k-grams `wanted` (n, k) in `shorter`, -1 for missing ones. A unigram's row is its word."""
    if shorter.shape[1] == 1:
        return np.ascontiguousarray(wanted[:, 0])
    return histories(shorter, np.ascontiguousarray(wanted))


def _marked(n: int, rows: Int32) -> Flags:
    flags = np.zeros(n, np.bool_)
    flags[rows] = True
    return flags
