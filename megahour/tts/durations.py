"""Phones and durations from an utterance's senone alignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import BadRecord
from megahour.units.hmm import SILENCE, Units, viterbi
from megahour.units.lexicon import Lexicon
from megahour.units.paths import path_of

PAUSE = " "
"""The symbol for silence before, between and after words."""
OFF = np.float32(-1e6)  # score of any senone but the aligned one
WINDOW_FRAMES = 1
"""Offset of alignment frames from mel frames, 12.5 ms rounded to 10: windows of the former begin at the frame's time,
those of the latter are centred on it."""


@dataclass(frozen=True)
class SpokenPhone:
    """A phone or `PAUSE`, and its duration in frames of 10 ms."""

    phone: str
    frames: int


def spoken_phones(
    senones: NDArray[np.int16], words: Sequence[str], lexicon: Lexicon, units: Units
) -> list[SpokenPhone]:
    """The phones of `words` and the silences around them, with durations that add up to the T frames of `senones` (T,).

    Viterbi recovers the aligned path: the choice of pronunciations and silences that gives exactly these senones.

    Raises
    ------
    BadRecord: a word is not in the lexicon, or the senones belong to another text.
    """
    if missing := [word for word in words if word not in lexicon]:
        raise BadRecord("no-pronunciation", f"{missing[0]!r} is not in the lexicon of the units")
    silent = {SILENCE, *units.noises.values()}
    column = {phone: 0 for word in words for way in lexicon[word] for phone in way} | dict.fromkeys(silent, 0)
    path = path_of(units, [lexicon[word] for word in words], column)
    of_slots = np.array([units.senone_of(*slot) for slot in path.slots], np.int32)
    scores = np.where(np.arange(units.size)[None, :] == senones[:, None], np.float32(0), OFF)
    found = viterbi(scores, replace(path, emission=of_slots[path.slot]))
    if found is None or found[1] < OFF / 2:
        raise BadRecord("not-as-aligned", "the aligned senones are not those of the text: make the units again")
    pauses = np.array([phone in silent for _, phone, _ in path.slots])[found[0]]
    starts = np.flatnonzero(np.diff(np.where(pauses, -2, found[0]), prepend=-1))  # silence and noises are one pause
    frames = np.diff(np.append(starts, len(senones)))
    names = [path.slots[found[0][start]][1] for start in starts]
    return [SpokenPhone(PAUSE if name in silent else name, int(n)) for name, n in zip(names, frames, strict=True)]


@dataclass(frozen=True)
class Timing:
    """Phones (U,) and their durations `frames` (U,) in mel frames, starting at mel frame `first`.

    The first and the last phone are pauses.
    """

    phones: list[str]
    frames: NDArray[np.int32]
    first: int

    @property
    def end(self) -> int:
        return self.first + int(self.frames.sum())


def timing(spoken: Sequence[SpokenPhone], mel_frames: int, *, pause: int, edge: int, longest: int) -> Timing:
    """Durations in mel frames; a short silence is added to the phone before it.

    mel_frames: length of the mel spectrum. pause: fewest frames of a pause between words. edge: most frames of silence
    to keep at either end. longest: most frames of a phone.

    Raises
    ------
    BadRecord: there is no speech, a phone is longer than `longest`, or the alignment does not fit the mel spectrum.
    """
    phones: list[str] = []
    frames: list[int] = []
    for each in spoken:
        if phones and each.phone == PAUSE and each.frames < pause:
            frames[-1] += each.frames
        else:
            phones.append(each.phone)
            frames.append(each.frames)
    if PAUSE not in phones[:1]:
        phones, frames = [PAUSE, *phones], [0, *frames]
    if phones[-1] != PAUSE:
        phones, frames = [*phones, PAUSE], [*frames, 0]
    if len(phones) < 3:
        raise BadRecord("no-speech", "the alignment is all silence")
    for phone, n in zip(phones, frames, strict=True):
        if n > longest and phone != PAUSE:
            raise BadRecord("badly-aligned", f"phone {phone!r} lasts {n / 100:.2f} s, phone_s is {longest / 100:g}")
    ends = np.cumsum(frames) + WINDOW_FRAMES
    ends[-1] = mel_frames
    first = max(0, int(ends[0]) - edge)
    ends[-1] = min(int(ends[-1]), int(ends[-2]) + edge)
    found = np.diff(ends, prepend=first)
    if (found[1:-1] < 1).any() or found[-1] < 0:
        raise BadRecord(
            "badly-aligned", f"the alignment has {int(sum(frames))} frames, but the mel spectrum {mel_frames}"
        )
    return Timing(phones, found.astype(np.int32), first)


def means_of(values: NDArray[Any], frames: NDArray[np.int32]) -> NDArray[np.float32]:
    """Mean of `values` (T,) over each phone's frames (U,); for a phone without frames, the value at its position."""
    ends = np.cumsum(frames)
    starts = np.minimum(ends - frames, len(values) - 1)
    sums = np.concatenate(([0.0], np.cumsum(values, dtype=np.float64)))
    means = (sums[ends] - sums[ends - frames]) / np.maximum(frames, 1)
    return np.where(frames > 0, means, values[starts]).astype(np.float32)  # type: ignore[no-any-return]
