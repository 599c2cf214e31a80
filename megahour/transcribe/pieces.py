"""A recording in pieces of speech that a model takes at once, whatever blocks the audio comes in.

Models learn from utterances, which `cut` has freed of long pauses; a running mean that pauses have moved is another
one. So pauses are left out here too: a frame is speech where its level is well above the lowest level of late, and a
pause ends a piece. Speech without a pause is cut where it is quietest. `EndRules` has the lengths.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megahour.align.frontend import FrontEnd, Rows
from megahour.features.fbank import SHIFT_S
from megahour.features.normalise import CausalMean

QUIET_FRAMES = 20  # 0.2 s: what is compared when the quietest place is looked for
MARGIN_FRAMES = 20  # of a pause, kept on either side
FIRST_FRAMES = 50  # 0.5 s of a recording, which say what is quiet in it at first
LEAST_FRAMES = 8  # of speech in a piece: less is a click
FLOOR_RISES, PEAK_FALLS = 0.01, 0.005  # nats a frame of log energy: 1 and 0.5 nats a second
LEAST_RISE, RISE_SHARE = 1.5, 0.3  # speech is this many nats, and this share of the way to the peak, above the floor


@dataclass(frozen=True)
class EndRules:
    """When a piece of speech ends; seconds.

    pause: of quiet, by level, above 0.4. Shorter gives finals sooner, and cuts into sentences.
    longest: without a pause it is cut where it is quietest after half of this; lower it where memory is short.
    wordless: in a stream a piece that has words also ends when none has come for so long, whatever the level: for
        rooms with noise. 0: never. It is looked at once a block of audio.
    """

    pause: float = 0.7
    longest: float = 20.0
    wordless: float = 0.0


USUAL_ENDS = EndRules()


@dataclass(frozen=True)
class SpeechPiece:
    """Rows of the model's front end, from `start_s` in the recording."""

    rows: Rows
    start_s: float


class Level:
    """Whether a frame is speech, from the levels up to it: between a floor and a peak that follow slowly."""

    def __init__(self, first: list[float]) -> None:
        """`first`: levels of the beginning, which may be speech already."""
        self._floor, self._peak = min(first), max(first)

    def is_speech(self, level: float) -> bool:
        """Of the next frame, whose mean log-mel energy is `level`."""
        self._floor = min(level, self._floor + FLOOR_RISES)
        self._peak = max(level, self._peak - PEAK_FALLS)
        return level > self._floor + max(LEAST_RISE, RISE_SHARE * (self._peak - self._floor))


class Cutter:
    """Collects a recording's rows and gives them out in pieces of speech.

    Frames are looked at one by one: where a piece ends depends on the samples before, not on the blocks they come in.
    """

    def __init__(self, front: FrontEnd, ends: EndRules = USUAL_ENDS, *, settled: bool = False) -> None:
        """settled: the first piece begins with its own mean, as if the speaker had said it once before; else with the
        prior, as every stream does.
        """
        self._front, self._settled = front, settled
        self._row_s = front.shift_s if front.kind == "waveform" else SHIFT_S
        self._joined = 1 if front.kind == "waveform" else front.rows  # rows that the model takes together
        self._longest, self._pause = round(ends.longest / SHIFT_S), round(ends.pause / SHIFT_S)
        self._mean = CausalMean(np.full(front.mels, front.prior, np.float32)) if front.kind == "stacked" else None
        self._new: list[NDArray[np.float16]] = []  # levels of frames that have not been looked at
        self._tracker: Level | None = None
        self._rows: Rows | None = None  # from frame `_start` on
        self._levels: list[float] = []  # of the frames from `_start` on
        self._start = 0
        self._speech, self._last = 0, 0  # frames of speech among them, and the one after the last of these

    @property
    def held(self) -> SpeechPiece | None:
        """The speech that has not been given out yet, of all frames that are here."""
        if self._tracker is None and self._new:
            list(self._look(np.concatenate(self._new).tolist()))  # shorter than the beginning
        return self._begun(len(self._levels))

    @property
    def certain(self) -> SpeechPiece | None:
        """What the piece under way has whatever comes: speech, and the margin after it. Only where it becomes longer
        than the longest it may be cut before its end.
        """
        return self._begun(min(self._last + MARGIN_FRAMES, len(self._levels)))

    def _begun(self, frames: int) -> SpeechPiece | None:
        """The first frames of those that are held, if there is speech among them."""
        return self._piece(frames, copy.deepcopy(self._mean)) if self._speech >= LEAST_FRAMES else None

    def rows(self, blocks: Iterator[NDArray[np.float32]]) -> Iterator[Rows]:
        """Rows, for `add`, of samples in the int16 scale at the model's rate."""
        return self._front.rows_of(blocks, self._new, mean=False)

    def add(self, rows: Rows) -> Iterator[SpeechPiece]:
        """The pieces that are whole with these rows."""
        self._rows = rows if self._rows is None else np.concatenate([self._rows, rows])
        levels = np.concatenate(self._new).tolist()
        if self._tracker is not None or len(levels) >= FIRST_FRAMES:
            yield from self._look(levels)

    def end(self) -> SpeechPiece | None:
        """Ends the piece under way here, and gives out what is `certain` of it."""
        if self._speech < LEAST_FRAMES:
            return None
        return self._take(min(self._last + MARGIN_FRAMES, len(self._levels)))

    def _look(self, levels: list[float]) -> Iterator[SpeechPiece]:
        """Goes through frames that are new, and gives out what has ended among them."""
        self._new.clear()
        if not levels:  # less audio than a frame
            return
        self._tracker = self._tracker or Level(levels[:FIRST_FRAMES])
        for level in levels:
            self._levels.append(level)
            if self._tracker.is_speech(level):
                if not self._speech:
                    self._drop(max(0, len(self._levels) - 1 - MARGIN_FRAMES))
                self._speech += 1
                self._last = len(self._levels)
            if len(self._levels) >= self._longest and self._speech >= LEAST_FRAMES:
                yield self._take(self._quietest())
            elif len(self._levels) - self._last >= self._pause:
                if self._speech >= LEAST_FRAMES:
                    yield self._take(self._last + MARGIN_FRAMES)
                self._drop(len(self._levels) - MARGIN_FRAMES)

    def _take(self, frames: int) -> SpeechPiece:
        """Gives out the first frames of those that are held."""
        piece = self._piece(frames, self._mean)
        self._drop(frames)
        return piece

    def _piece(self, frames: int, mean: CausalMean | None) -> SpeechPiece:
        assert self._rows is not None
        rows = self._rows[: self._row(frames) // self._joined * self._joined or self._joined]
        if mean is not None and self._settled and not mean.count and len(rows):
            mean.mean, mean.count = rows.mean(axis=0, dtype=np.float64), len(rows)
        return SpeechPiece(rows if mean is None else mean.apply(rows), self._start * SHIFT_S)

    def _drop(self, frames: int) -> None:
        assert self._rows is not None
        self._rows = self._rows[self._row(frames) :].copy()  # a view would keep the whole recording in memory
        del self._levels[:frames]
        self._start += frames
        self._last = max(0, self._last - frames)
        self._speech = self._speech if self._last else 0

    def _row(self, frames: int) -> int:
        """How many rows go with the first `frames` of those that are held."""
        return round((self._start + frames) * SHIFT_S / self._row_s) - round(self._start * SHIFT_S / self._row_s)

    def _quietest(self) -> int:
        """Frames before the place at which to cut, at least half of the longest."""
        half = self._longest // 2
        sums = np.convolve(np.array(self._levels[half:]), np.ones(QUIET_FRAMES), "valid")
        return (
            half + int(sums.argmin()) + QUIET_FRAMES // 2
            if len(self._levels) - half >= QUIET_FRAMES
            else len(self._levels)
        )
