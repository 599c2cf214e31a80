"""Tests whether a text belongs to audio whose greedy reading does not show it: is it badly recognised, or wrong?

The text is aligned, and so is its decoy, the same text with the letters of each cue reversed: the same letters in cues
of the same lengths. With the costs above those of the star alone,

    C(text) <= C(decoy) - margin |C(decoy)|

holds, with a margin of 0.2, for the right text even if two of three letters are misread. A text of another recording
costs as much as its decoy, and so does any text with a model that recognises nothing. If cues are single letters or
palindromes, the letters of the whole text are reversed instead; a text of a few letters is not tested.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.align.anchors import Anchoring, align_pieces, anchors_of
from megahour.align.ctc import Problem, scale_of

FEWEST_TOKENS = 8
LEAST_OTHER = 0.5  # share of the places at which a decoy must have another letter


def belongs(posteriors: NDArray[Any], problem: Problem, anchoring: Anchoring, margin: float) -> bool:
    """Whether posteriors (T, V) fit the text of `problem` better than any. Raises NoAnchorsError for a large one."""
    decoy = decoy_of(problem)
    if decoy is None:
        return True
    star = _star(posteriors, problem)
    own, other = (
        -align_pieces(posteriors, each, anchors_of(posteriors, each, anchoring), anchoring)[0].score - star
        for each in (problem, decoy)
    )
    return bool(own <= other - margin * abs(other))


def decoy_of(problem: Problem) -> Problem | None:
    """A decoy that is equally hard to find; None if the text is too short or too uniform."""
    tokens, bounds = problem.tokens, problem.boundaries
    by_cue = np.repeat(bounds[:-1] + bounds[1:] - 1, np.diff(bounds)) - np.arange(len(tokens))
    for other in (tokens[by_cue], tokens[::-1]):
        if len(tokens) >= FEWEST_TOKENS and np.mean(other != tokens) >= LEAST_OTHER:
            return replace(problem, tokens=np.ascontiguousarray(other))
    return None


def _star(posteriors: NDArray[Any], problem: Problem) -> float:
    """Nats of a path without tokens."""
    sign = -1 if scale_of(posteriors) < 0 else 1  # 8-bit values are costs
    best = (posteriors.min if sign < 0 else posteriors.max)(axis=1).astype(np.float32)
    quiet = posteriors[:, problem.blank].astype(np.float32)
    if problem.free >= 0:
        quiet = sign * np.maximum(sign * quiet, sign * posteriors[:, problem.free].astype(np.float32))
    return float(np.minimum((best - quiet) * scale_of(posteriors), problem.star_nats).sum(dtype=np.float64))
