"""Cues (timed stretches of text) and repairs that compare neighbouring cues."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, replace
from itertools import pairwise

from megahour.core.errors import BadRecord
from megahour.corpus.text.markup import spoken_text, view

MAX_DISORDER = 0.2  # share of timed cues that may be out of order before the file is refused
ROLLING_SHARE = 0.5  # captions roll if at least this share of cues begin with the end of the previous one
OVERLAP_WORDS = 3  # fewer repeated words count as chance, unless they make up one of the cues
NEIGHBOURS = 10  # cues on each side that decide whether captions roll
MIN_SCROLLS = 2
FEWEST_BEFORE = 2  # cues before midnight; one alone is a title with a time that means nothing
MAX_SHOWN = 200  # maximum number of words that the next cue may repeat
_SHOWN = re.compile(r"\S+")


@dataclass(frozen=True)
class Cue:
    """Text `raw`, spoken from `start_samples` to `end_samples` of the recording; -1 is an unknown time.

    `raw` is copied from the file with its markup, which `normalise` hides. `speaker` is "" if unknown, and so is
    `channel`, what the file calls the channel of the recording.
    """

    start_samples: int
    end_samples: int
    raw: str
    speaker: str = ""
    channel: str = ""

    def untimed(self) -> Cue:
        """The same without times."""
        return replace(self, start_samples=-1, end_samples=-1)


def check_order(cues: list[Cue]) -> list[Cue]:
    """Keep the times of a longest subsequence of cues whose starts do not decrease; remove those of the other cues.

    Raises
    ------
    BadRecord: ``cues-out-of-order`` if more than `MAX_DISORDER` of the timed cues would lose their times.
    """
    timed, in_order = sum(cue.start_samples >= 0 for cue in cues), _longest_in_order(cues)
    lost = timed - len(in_order)
    if lost > MAX_DISORDER * timed:
        raise BadRecord("cues-out-of-order", f"{lost} of {timed} cues start before the cue that precedes them")
    return [cue if number in in_order else cue.untimed() for number, cue in enumerate(cues)]


def _longest_in_order(cues: list[Cue]) -> set[int]:
    """Numbers of a longest subsequence of timed cues whose starts do not decrease (patience sorting, O(n log n))."""
    tails: list[int] = []
    tail_numbers: list[int] = []
    before: dict[int, int] = {}
    for number, start in enumerate(cue.start_samples for cue in cues):
        if start < 0:
            continue
        pile = bisect.bisect_right(tails, start)
        before[number] = tail_numbers[pile - 1] if pile else -1
        if pile == len(tails):
            tails.append(start)
            tail_numbers.append(number)
        else:
            tails[pile], tail_numbers[pile] = start, number
    chain = set()
    number = tail_numbers[-1] if tail_numbers else -1
    while number >= 0:
        chain.add(number)
        number = before[number]
    return chain


def past_midnight(cues: list[Cue], rate_hz: int) -> list[Cue]:
    """Add a day to the times behind midnight, if a clock of the day goes on from 23:59 (or 24:00) to 00:00."""
    timed = [number for number, cue in enumerate(cues) if cue.start_samples >= 0]
    hour = 3600 * rate_hz
    falls = [b for a, b in pairwise(timed) if cues[a].start_samples >= 23 * hour and cues[b].start_samples < hour]
    if len(falls) != 1 or timed.index(falls[0]) < FEWEST_BEFORE:
        return cues
    halves = [(number >= falls[0], cues[number].start_samples < 12 * hour) for number in timed]
    if any(is_behind != is_early for is_behind, is_early in halves):
        return cues
    return [
        replace(cue, start_samples=cue.start_samples + 24 * hour, end_samples=_later(cue.end_samples, 24 * hour))
        if number >= falls[0] and cue.start_samples >= 0
        else cue
        for number, cue in enumerate(cues)
    ]


def _later(samples: int, by: int) -> int:
    return samples + by if samples >= 0 else -1


def put_back(cues: list[Cue], reach_samples: int) -> list[Cue]:
    """Sort cues that are out of order by at most `reach_samples` into the position given by their start time.

    Programs that sort by speaker or by screen position write such files; the speech follows the order of the times.
    """
    kept = _longest_in_order(cues)
    order: list[tuple[int, int]] = []
    now = -1
    for number, cue in enumerate(cues):
        if number in kept:
            now = cue.start_samples
        near = cue.start_samples >= 0 and abs(cue.start_samples - max(now, 0)) <= reach_samples
        order.append((cue.start_samples if near or number in kept else now, number))
    return [cues[number] for _, number in sorted(order)]


def without_copies(cues: list[Cue]) -> list[Cue]:
    """Drop duplicate cues: those with the same words as another at the same time, or mostly overlapping it.

    The same words at another time ("No." "No.") or on another channel are a genuine repetition and are kept.
    """
    seen: dict[tuple[str, str], list[int]] = {}
    kept: list[Cue] = []
    for cue in cues:
        words = " ".join(spoken_text(cue.raw).split())
        places = seen.setdefault((words, cue.channel), [])
        original = next((position for position in places[-1:] if _at_once(kept[position], cue)), None)
        if original is None:
            places.append(len(kept))
            kept.append(cue)
        elif cue.end_samples > kept[original].end_samples >= 0:
            kept[original] = replace(kept[original], end_samples=cue.end_samples)
    return kept


def _at_once(one: Cue, other: Cue) -> bool:
    if one.start_samples < 0 or other.start_samples < 0:
        return False
    if (one.start_samples, one.end_samples) == (other.start_samples, other.end_samples):
        return True
    shared = min(one.end_samples, other.end_samples) - max(one.start_samples, other.start_samples)
    shorter = min(one.end_samples - one.start_samples, other.end_samples - other.start_samples)
    return shorter > 0 and shared > shorter / 2


def strip_rolling(cues: list[Cue]) -> list[Cue]:
    """Remove repeated words from rolling captions, where each cue shows the previous line above a new one.

    What remains of `raw` follows the words already shown by the previous cue; a cue with nothing new is dropped. Words
    that a speaker repeats are kept unless most cues nearby scroll, i.e. begin with the end of the previous cue.
    """
    views = (view(cue.raw) for cue in cues)
    words = [[(match[0], shown.raw_span(*match.span())) for match in _SHOWN.finditer(shown.text)] for shown in views]
    shown_words = [[word for word, _ in own] for own in words]
    overlaps = [0] + [_overlap(shown_words[position - 1], shown_words[position]) for position in range(1, len(cues))]
    scrolling = _scrolling(shown_words, overlaps)
    rolled = []
    for position, (cue, own) in enumerate(zip(cues, words, strict=True)):
        repeated = overlaps[position] if scrolling[position] else 0
        if not repeated:
            rolled.append(cue)
        elif repeated < len(own):
            rolled.append(replace(cue, raw=cue.raw[own[repeated - 1][1][1] :].lstrip()))
    return rolled


def _scrolling(words: list[list[str]], overlaps: list[int]) -> list[bool]:
    """For each cue, whether most cues around it scroll. A cue equal to the previous one is not counted."""
    votes, chances = [0], [0]
    for position, (own, n) in enumerate(zip(words, overlaps, strict=True)):
        same = position > 0 and n == len(own) == len(words[position - 1])
        votes.append(votes[-1] + (n > 0 and not same))
        chances.append(chances[-1] + (position > 0 and not same))
    scrolling = []
    for position in range(len(words)):
        low, high = max(0, position - NEIGHBOURS), min(len(words), position + NEIGHBOURS + 1)
        n = votes[high] - votes[low]
        scrolling.append(n >= MIN_SCROLLS and n >= ROLLING_SHARE * (chances[high] - chances[low]))
    return scrolling


def _overlap(previous: list[str], current: list[str]) -> int:
    """Number of words, at most `MAX_SHOWN`, that end `previous` and begin `current`; 0 if they may be chance."""
    for n in range(min(len(previous), len(current), MAX_SHOWN), 0, -1):
        if previous[-n:] == current[:n]:
            return n if n >= OVERLAP_WORDS or n in (len(previous), len(current)) else 0
    return 0


def without_hours(cues: list[Cue], samples: int, rate_hz: int) -> list[Cue]:
    """Take whole hours off times that count from another clock, as in broadcasting, where programmes begin at 10:00:00.

    Cues stay as they are unless all of them start after the recording of `samples`, and none does afterwards.
    """
    starts = [cue.start_samples for cue in cues if cue.start_samples >= 0]
    offset = min(starts, default=0) // (3600 * rate_hz) * 3600 * rate_hz
    if not offset or min(starts) < samples or max(starts) - offset >= samples:
        return cues
    return [
        replace(cue, start_samples=cue.start_samples - offset, end_samples=max(cue.end_samples - offset, -1))
        if cue.start_samples >= 0
        else cue
        for cue in cues
    ]


def fit_to_length(cues: list[Cue], samples: int) -> list[Cue]:
    """Fit cues to a recording of `samples`: clip their ends, and remove the times of cues that start after it.

    Raises
    ------
    BadRecord: ``transcript-too-long`` if most timed cues start after the end: the transcript is of another recording.
    """
    timed = sum(cue.start_samples >= 0 for cue in cues)
    late = sum(cue.start_samples >= samples for cue in cues)
    if late > timed / 2:
        raise BadRecord(
            "transcript-too-long", f"{late} of {timed} cues start after the end of the recording ({samples} samples)"
        )
    return [
        cue.untimed() if cue.start_samples >= samples else replace(cue, end_samples=min(cue.end_samples, samples))
        for cue in cues
    ]
