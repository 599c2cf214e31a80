"""Cuts a row of words into utterances at the longest pauses, never within a word or across a gap in the text.

Words between which no cut is allowed form an atom. Atoms are joined into utterances of at most `longest` by dynamic
programming over

    cost = sum over cuts of (1 - min(pause, GOOD_PAUSE_S) / GOOD_PAUSE_S) + CUT_COST, and SHORT_COST for each utterance
           that is shorter than `shortest`

so that a cut in a pause of half a second is free, and fewer cuts are better than more. An atom that is longer
than `longest` is first divided at its widest gaps between words, however short down to `least_pause`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

GOOD_PAUSE_S = 0.5
CUT_COST = 0.1
SHORT_COST = 5.0
Verdict = Literal["", "too-long-without-pause", "too-short"]


@dataclass(frozen=True, slots=True)
class CutLimits:
    """Lengths in samples: of utterances with their padding, of padding, and of pauses (see CutParams)."""

    shortest: int
    longest: int
    pad: int
    least_pause: int
    shortest_pause: int
    longest_pause: int
    rate_hz: int


@dataclass(frozen=True, slots=True)
class Span:
    """Words first .. last-1 and their samples start .. end with padding; `verdict`: why the span is left out, or ""."""

    first: int
    last: int
    start: int
    end: int
    verdict: Verdict


class Outline(NamedTuple):
    """Of words (W,): where an utterance that begins (ends) with each begins (ends), with padding; and the pause before
    each (W+1,), 0 at both ends."""

    head: NDArray[np.int64]
    tail: NDArray[np.int64]
    pause: NDArray[np.int64]

    def length(self, first: int, last: int) -> int:
        """Samples of an utterance of words first .. last-1."""
        return int(self.tail[last - 1] - self.head[first])

    def span(self, first: int, last: int, verdict: Verdict) -> Span:
        return Span(int(first), int(last), int(self.head[first]), int(self.tail[last - 1]), verdict)


def plan_spans(
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    split_before: NDArray[np.bool_],
    busy: NDArray[np.int64],
    samples: int,
    limits: CutLimits,
) -> list[Span]:
    """Spans of words (W,) with times in samples, in order; every word is in exactly one.

    split_before: (W,) whether word w must not share an utterance with word w-1. busy: (R, 2) stretches of other sound,
    which padding keeps out of. samples: length of the recording.
    """
    if not len(start):
        return []
    pause = np.append(np.insert(start[1:] - end[:-1], 0, 0), 0)
    words = Outline(*_padded(start, end, busy, samples, limits.pad), pause)
    split_before = split_before | (pause[:-1] > limits.longest_pause)
    split_before[0] = True
    edges = np.append(np.flatnonzero(split_before | (pause[:-1] >= limits.shortest_pause)), len(start))
    edges = _divided(edges, words, limits)
    atoms = edges[:-1]
    spans: list[Span] = []
    run = 0
    for i in range(len(atoms)):
        long = words.length(edges[i], edges[i + 1]) > limits.longest
        if i > run and (long or split_before[edges[i]]):
            spans += _join(edges[run : i + 1], words, limits)
            run = i
        if long:
            spans.append(words.span(edges[i], edges[i + 1], "too-long-without-pause"))
            run = i + 1
    if run < len(atoms):
        spans += _join(edges[run:], words, limits)
    return spans


def _divided(edges: NDArray[np.intp], words: Outline, limits: CutLimits) -> NDArray[np.intp]:
    """`edges` (A+1,) of atoms, with too long atoms divided repeatedly at their widest gap."""
    result: list[int] = []
    waiting = list(pairwise(edges.tolist()))[::-1]
    while waiting:
        first, last = waiting.pop()
        gaps = words.pause[first + 1 : last]
        if words.length(first, last) > limits.longest and gaps.size and gaps.max() >= limits.least_pause:
            middle = first + 1 + int(gaps.argmax())
            waiting += [(middle, last), (first, middle)]
        else:
            result.append(first)
    return np.array([*result, edges[-1]], np.intp)


def _padded(
    start: NDArray[np.int64], end: NDArray[np.int64], busy: NDArray[np.int64], samples: int, pad: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Padded start (end) of an utterance that begins (ends) with each word: at most half way to the next sound."""
    ends = np.sort(np.concatenate([end, busy[:, 1]]))
    starts = np.sort(np.concatenate([start, busy[:, 0]]))
    before = np.insert(ends, 0, -(1 << 40))[np.searchsorted(ends, start, "right")]
    after = np.append(starts, 1 << 40)[np.searchsorted(starts, end, "left")]
    head = start - np.minimum(pad, (start - before) // 2)
    tail = end + np.minimum(pad, (after - end) // 2)
    return np.maximum(head, 0), np.minimum(tail, samples)


def _join(edges: NDArray[np.intp], words: Outline, limits: CutLimits) -> list[Span]:
    """The cheapest utterances of one run of atoms, `edges` (A+1,) being their first words and the run's end."""
    count = len(edges) - 1
    good = GOOD_PAUSE_S * limits.rate_hz
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    origin = np.zeros(count + 1, np.intp)
    for j in range(1, count + 1):
        cut = 0.0 if j == count else CUT_COST + 1.0 - min(float(words.pause[edges[j]]), good) / good
        for i in range(j - 1, -1, -1):
            length = words.length(edges[i], edges[j])
            if length > limits.longest:
                break
            cost = best[i] + cut + (SHORT_COST if length < limits.shortest else 0.0)
            if cost < best[j]:
                best[j], origin[j] = cost, i
    spans: list[Span] = []
    j = count
    while j:
        i = int(origin[j])
        short = words.length(edges[i], edges[j]) < limits.shortest
        spans.append(words.span(edges[i], edges[j], "too-short" if short else ""))
        j = i
    return spans[::-1]
