"""Cues: a stretch of text with a time, and the repairs that need their neighbours."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, replace

from megahour.core.errors import BadRecord

MAX_DISORDER = 0.2  # share of timed cues that may stand out of order before the file is refused
ROLLING_SHARE = 0.5  # share of cues that begin with their predecessor's end, above which captions roll
OVERLAP_WORDS = 3  # fewer repeated words are chance unless one cue holds the other whole


@dataclass(frozen=True)
class Cue:
    """`raw` is said from `start_samples` to `end_samples` of the recording; -1 for an unknown time."""

    start_samples: int
    end_samples: int
    raw: str


def check_order(cues: list[Cue]) -> list[Cue]:
    """Keep the longest run of cues whose starts do not decrease; the others keep their place and lose their times.

    Raises
    ------
    BadRecord: ``cues-out-of-order`` when more than `MAX_DISORDER` of the timed cues would lose theirs.
    """
    timed = [place for place, cue in enumerate(cues) if cue.start_samples >= 0]
    kept = _longest_non_decreasing([cues[place].start_samples for place in timed])
    lost = len(timed) - len(kept)
    if lost > MAX_DISORDER * len(timed):
        raise BadRecord("cues-out-of-order", f"{lost} of {len(timed)} cues start before their predecessors")
    in_order = {timed[position] for position in kept}
    return [
        cue if place in in_order else replace(cue, start_samples=-1, end_samples=-1) for place, cue in enumerate(cues)
    ]


def _longest_non_decreasing(values: list[int]) -> list[int]:
    """Positions of a longest non-decreasing subsequence (patience sorting, O(n log n))."""
    tails: list[int] = []
    tail_places: list[int] = []
    before: list[int] = []
    for place, value in enumerate(values):
        pile = bisect.bisect_right(tails, value)
        before.append(tail_places[pile - 1] if pile else -1)
        if pile == len(tails):
            tails.append(value)
            tail_places.append(place)
        else:
            tails[pile], tail_places[pile] = value, place
    chain = []
    place = tail_places[-1] if tail_places else -1
    while place >= 0:
        chain.append(place)
        place = before[place]
    return chain[::-1]


def strip_rolling(cues: list[Cue]) -> list[Cue]:
    """Take repeated words out of rolling captions, where each cue shows the last line again above a new one.

    Cues with equal times and text are one cue in any file. Words that a speaker repeats are left alone unless most of
    the file's cues overlap their predecessors.
    """
    unique = [cue for place, cue in enumerate(cues) if place == 0 or cue != cues[place - 1]]
    words = [cue.raw.split() for cue in unique]
    overlaps = [0] + [_overlap(words[place - 1], words[place]) for place in range(1, len(words))]
    if len(unique) < 3 or sum(n > 0 for n in overlaps) < ROLLING_SHARE * (len(unique) - 1):
        return unique
    rolled = []
    for cue, own, repeated in zip(unique, words, overlaps, strict=True):
        if repeated < len(own):
            rolled.append(replace(cue, raw=" ".join(own[repeated:])) if repeated else cue)
    return rolled


def _overlap(previous: list[str], current: list[str]) -> int:
    """Words at the end of `previous` that begin `current`."""
    for n in range(min(len(previous), len(current)), 0, -1):
        if previous[-n:] == current[:n]:
            return n if n >= OVERLAP_WORDS or n in (len(previous), len(current)) else 0
    return 0


def fit_to_length(cues: list[Cue], samples: int) -> list[Cue]:
    """Cues of a recording of `samples`: ends are cut to it, times behind its end become unknown.

    Raises
    ------
    BadRecord: ``transcript-too-long`` when most timed cues start after the recording's end: it is another recording's.
    """
    timed = sum(cue.start_samples >= 0 for cue in cues)
    late = sum(cue.start_samples >= samples for cue in cues)
    if late > timed / 2:
        raise BadRecord("transcript-too-long", f"{late} of {timed} cues start after the recording's {samples} samples")
    return [
        replace(cue, start_samples=-1, end_samples=-1)
        if cue.start_samples >= samples
        else replace(cue, end_samples=min(cue.end_samples, samples))
        for cue in cues
    ]
