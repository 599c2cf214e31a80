"""Which channel of a call each line is on: the one that the transcript names, else the one that is louder during its
speaker's cues."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from megahour.corpus.ingest.candidates import Candidate, Candidates
from megahour.corpus.ingest.counts import DIVIDED, WHOLE
from megahour.corpus.transcripts.cues import Cue

WINDOW_S = 0.1
FEWEST_WINDOWS = 20  # of a speaker; others go to every channel
LOUDER_DB = 6.0  # by which a speaker's own channel must be louder than the next, relative to all speakers
LOUDER_THERE_DB = (
    1.0  # by which a speaker's own channel must be louder than on average over speakers; a dead channel is not
)
MOST_OFF_S = 5.0  # that the times of a transcript may be early or late
FAR_S, FAR_STEP_S = 60.0, 0.5  # shifts that may show that a transcript is later or earlier than that
LONGEST_S = 10.0  # of a cue without an end, if the next one does not start sooner
_CHANNEL = re.compile(r"(?:ch(?:annel)?[ _-]*)?(?:(\d{1,2})|([a-p]))", re.IGNORECASE)
Levels = NDArray[np.float64]


@dataclass
class ChannelLevels:
    """Levels of a recording's channels in windows of 100 ms, added up block by block: 80 bytes a second and channel."""

    rate_hz: int
    _sums: list[Levels] = field(default_factory=list)
    _rest: NDArray[np.int16] | None = None

    def add(self, block: NDArray[np.int16]) -> None:
        """Count the samples (N, C) that follow."""
        block = block if self._rest is None else np.concatenate([self._rest, block])
        size = round(WINDOW_S * self.rate_hz)
        whole = len(block) // size * size
        windows = block[:whole].astype(np.float64).reshape(-1, size, block.shape[1])
        self._sums.append(np.mean(windows**2, axis=1))
        self._rest = block[whole:].copy()

    def in_db(self) -> Levels:
        """(T, C) level of each whole window."""
        return 10 * np.log10(np.concatenate(self._sums) + 1) if self._sums else np.zeros((0, 0))


def by_side(candidates: Candidates, levels: ChannelLevels) -> list[Candidates]:
    """Each channel's part of the transcripts: its own cues, and those whose side is not known.

    A transcript that names no channels, and whose named speakers cannot be told apart, goes whole to every channel.
    `counts` of the candidates get the number of each kind.
    """
    in_db = levels.in_db()
    if in_db.shape[1] < 2:
        return [candidates]

    def on(channel: int, candidate: Candidate, sides: Sequence[int | None]) -> Candidate:
        own = [side is None or side == channel for side in sides]
        cues = [cue for cue, is_own in zip(candidate.cues, own, strict=True) if is_own]
        spoken = [words for words, is_own in zip(candidate.spoken, own, strict=True) if is_own]
        return replace(candidate, cues=cues, spoken=spoken)

    kept = [(each, _sides_of_cues(each, in_db, levels.rate_hz)) for each in candidates.kept]
    last = candidates.recognised
    of_last = _sides_of_cues(last, in_db, levels.rate_hz) if last else []
    found = [any(side is not None for side in sides) for sides in (*(own for _, own in kept), *[of_last] * bool(last))]
    candidates.counts.update({DIVIDED: sum(found), WHOLE: len(found) - sum(found)})
    return [
        replace(candidates, kept=[on(c, *each) for each in kept], recognised=on(c, last, of_last) if last else None)
        for c in range(in_db.shape[1])
    ]


def _sides_of_cues(candidate: Candidate, in_db: Levels, rate_hz: int) -> list[int | None]:
    """The channel of each cue; None where it is not known."""
    if by_name := numbers_of_channels((cue.channel for cue in candidate.cues), in_db.shape[1]):
        return [by_name.get(cue.channel) for cue in candidate.cues]
    by_speaker = channels_of_speakers(candidate, in_db, rate_hz)
    return [by_speaker.get(cue.speaker) for cue in candidate.cues]


def numbers_of_channels(names: Iterable[str], channels: int) -> dict[str, int]:
    """The channel, from 0, that each name in a transcript means: numbers from 1 (from 0, if there is one), or letters.

    Empty if one is no such name or the recording has no such channel, and if all are of the first, which is what
    programs write that know of no channels.

    >>> numbers_of_channels(["A", "B", "A"], 2), numbers_of_channels(["1", "1"], 2)
    ({'A': 0, 'B': 1}, {})
    """
    found = {name: _CHANNEL.fullmatch(name) for name in names if name}
    first = 0 if any(match and match[1] and int(match[1]) == 0 for match in found.values()) else 1
    numbers = {
        name: int(match[1]) - first if match[1] else ord(match[2].lower()) - ord("a")
        for name, match in found.items()
        if match
    }
    known = len(numbers) == len(found) and any(numbers.values()) and max(numbers.values()) < channels
    return numbers if known else {}


def channels_of_speakers(candidate: Candidate, in_db: Levels, rate_hz: int) -> dict[str, int]:
    """The channel that each named speaker is on, where it is clear. Empty unless at least two channels have a speaker.

    in_db: (T, C) of `ChannelLevels`. Times may be off by `MOST_OFF_S`: what counts is the shift that separates the
    speakers best, unless they may be off by more. A cue without an end lasts until the next one, see `ends_of`.
    """
    size = WINDOW_S * rate_hz
    spans: dict[str, list[tuple[int, int]]] = {}
    for cue, end in zip(candidate.cues, ends_of(candidate.cues, rate_hz), strict=True):
        if cue.speaker and 0 <= cue.start_samples < end:
            spans.setdefault(cue.speaker, []).append((int(cue.start_samples / size), int(end / size)))
    windows = {speaker: np.concatenate([np.arange(*span) for span in own]) for speaker, own in spans.items()}
    windows = {speaker: own for speaker, own in windows.items() if len(own) >= FEWEST_WINDOWS}
    if len(windows) < 2:
        return {}
    most, far, step = (round(seconds / WINDOW_S) for seconds in (MOST_OFF_S, FAR_S, FAR_STEP_S))
    shifts = sorted(range(-most, most + 1), key=abs)  # the nearest of equal ones
    margin, found = max((_compared(windows, in_db, shift) for shift in shifts), key=lambda each: each[0])
    if margin < LOUDER_DB or len(set(found.values())) < 2:
        return {}
    # Turns alternate: if the times are off by more, these shifts may have each speaker's lines in the other's turns.
    others = (_compared(windows, in_db, shift) for shift in range(-far, far + 1, step))
    return found if all(other <= margin for other, sides in others if sides != found) else {}


def ends_of(cues: Sequence[Cue], rate_hz: int) -> list[int]:
    """The end of each cue in samples: its own, else the next start, at most `LONGEST_S` later.

    -1 if another speaker's cue without a start follows, as in a subtitle with two speakers.
    """
    ends: list[int] = []
    next_start, between = -1, set[str]()  # speakers of the cues without a start before it
    for cue in reversed(cues):
        end = cue.end_samples
        if end < 0 <= cue.start_samples < next_start and between <= {cue.speaker}:
            end = min(next_start, cue.start_samples + round(LONGEST_S * rate_hz))
        ends.append(end)
        if cue.start_samples >= 0:
            next_start, between = cue.start_samples, set()
        else:
            between.add(cue.speaker)
    return ends[::-1]


def _compared(windows: Mapping[str, NDArray[np.intp]], in_db: Levels, shift: int) -> tuple[float, dict[str, int]]:
    """By how many dB each speaker's channel is at least louder than the next one, and the channels, at one shift.

    0 dB if a speaker's channel is no louder during that speaker's turns than during the others, as a silent channel is.

    Compared are means over the louder half of a speaker's windows, less their mean over the speakers: channels differ
    in gain, and hear each other's speakers.
    """
    means = []
    for own in windows.values():
        heard = in_db[np.clip(own + shift, 0, len(in_db) - 1)]
        loudest = heard.max(axis=1)
        means.append(heard[loudest >= np.median(loudest)].mean(axis=0))
    relative = np.array(means) - np.mean(means, axis=0)
    second, best = np.sort(relative, axis=1)[:, -2:].T
    louder = np.where(best >= LOUDER_THERE_DB, best - second, 0)
    return float(np.min(louder)), dict(zip(windows, relative.argmax(axis=1).tolist(), strict=True))
