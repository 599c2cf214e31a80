"""Sets limits on the error rate of a recording's second reading, from its usual errors on right and on wrong texts.

A weak aligner misreads right texts too, so no fixed limit suits all. For a recording, the median error rate c is the
reading's usual one. Among right texts of n characters the rate varies by

    s(n) = sqrt(CLUSTERED c (1 - c) / n)

since errors come in clusters. Texts from elsewhere in the recording, compared with the same readings, have the mean m
and the deviation d / sqrt(n). An utterance is dropped above

    max(dirty_cer, min(c + q(1 - false_reject) s(n), m + q(false_accept) d / sqrt(n)))

where q are quantiles of the normal distribution; `dirty_cer` is for aligners that read better than that. If c is above
`UNREADABLE`, readings cannot distinguish texts, and `dirty_cer` applies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from megahour.align.evidence import usual_quantile
from megahour.corpus.text.edit_distance import distance
from megahour.cut.params import CutParams

CLUSTERED = 4.0  # times the variance of independent errors
UNREADABLE = 0.65  # error rate; any two texts of a language have 0.7 to 0.85
Row = dict[str, Any]


@dataclass(frozen=True)
class ReadingLimits:
    """Limits for the utterances of one recording. NaN, without a reading, drops nothing.

    usual, wrong: error rates of the readings, and against other texts. spread: d, the deviation of `wrong` for a text
    of one character.
    """

    p: CutParams
    confidence: float
    usual: float = math.nan
    wrong: float = math.nan
    spread: float = 0.0

    def cer(self, characters: int) -> float:
        """Error rate above which a text of `characters` is dropped."""
        if not self.usual <= UNREADABLE or not self.p.false_reject:
            return self.p.dirty_cer
        length = max(1, characters)
        varies = math.sqrt(CLUSTERED * self.usual * max(0.0, 1 - self.usual) / length)
        most = self.usual + NormalDist().inv_cdf(1 - self.p.false_reject) * varies
        if self.p.false_accept and not math.isnan(self.wrong):
            most = min(most, self.wrong + NormalDist().inv_cdf(self.p.false_accept) * self.spread / math.sqrt(length))
        return max(self.p.dirty_cer, most)

    def edge_cer(self, characters: int) -> float:
        """The limit at the edges: five characters prove nothing with a reading for which `dirty_cer` is too strict."""
        limit = self.cer(characters)
        return self.p.dirty_edge_cer if limit <= self.p.dirty_cer and limit < 1 else math.inf


def limits_of(p: CutParams, utterances: Sequence[Row]) -> ReadingLimits:
    """Limits for the utterances of one recording, rows with `text`, `heard`, `cer` and `confidence`."""
    confidence = np.array([row["confidence"] for row in utterances])
    if not p.false_reject or not len(confidence):
        return ReadingLimits(p, p.min_confidence)
    least = usual_quantile(confidence, p.false_reject)
    read = [row for row in utterances if not math.isnan(row["cer"])]
    if not read:
        return ReadingLimits(p, min(p.min_confidence, least))
    wrong, lengths = _against_others(read)
    middle = float(np.median(wrong)) if len(wrong) else math.nan
    spread = float(np.sqrt(np.mean((wrong - middle) ** 2 * lengths))) if len(wrong) else 0.0
    return ReadingLimits(
        p, min(p.min_confidence, least), float(np.median([row["cer"] for row in read])), middle, spread
    )


def _against_others(read: Sequence[Row]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Error rate of each reading against a text of the same length half the recording away, and the text's length.

    In very short recordings, readings for which that is their own text are left out.
    """
    texts = [row["text"].replace(" ", "") for row in read]
    every = "".join(texts)
    around = every + every
    begins = np.cumsum([0, *map(len, texts)])
    rates, lengths = [], []
    for row, text, begin in zip(read, texts, begins, strict=False):
        at = (int(begin) + len(every) // 2) % len(every)
        other = around[at : at + len(text)]
        if len(every) >= 2 * len(text):
            rates.append(distance(other, row["heard"].replace(" ", "")) / len(text))
            lengths.append(len(text))
    return np.array(rates), np.array(lengths)
