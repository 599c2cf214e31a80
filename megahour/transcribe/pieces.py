"""Splits a recording into pieces of speech for the model; the result does not depend on the size of audio blocks.

Models are trained on utterances from which `cut` has removed long pauses, and pauses would shift the running mean. So
pauses are left out here too. A frame is speech if its level is well above the recent minimum, and a pause ends a piece.
Speech without a pause is cut at its quietest place. `EndRules` has the lengths.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.features.frontend import FrontEnd, Rows
from megahour.features.normalise import CausalMean, sounds

QUIET_FRAMES = 20  # 0.2 s: window in which to look for the quietest place
MARGIN_FRAMES = 20  # of a pause, kept on either side of speech
FIRST_FRAMES = 50  # 0.5 s at the start of a recording, which set the first floor and peak
LEAST_PAUSE_S = 0.4  # both margins
LEAST_FRAMES = 8  # of speech in a piece; anything shorter is a click
FLOOR_RISES, PEAK_FALLS = 0.01, 0.005  # nats a frame of log energy: 1 and 0.5 nats a second
LEAST_RISE, RISE_SHARE = 1.5, 0.3  # speech is this many nats, and this share of the way to the peak, above the floor


@dataclass(frozen=True)
class EndRules:
    """When a piece of speech ends; seconds.

    pause: silence that ends a piece, above 0.4. Shorter pauses give final words sooner but split sentences.
    longest: a piece without a pause is cut at this length, at the quietest place in its second half. Lower it to save
        memory.
    wordless: in a stream, a piece with words also ends after this long without a new word, whatever the level; for
        noisy rooms. 0: never. Checked once per block of audio.

    Raises
    ------
    ConfigError: a shorter pause, or no length.
    """

    pause: float = 0.7
    longest: float = 20.0
    wordless: float = 0.0

    def __post_init__(self) -> None:
        if not (self.pause > LEAST_PAUSE_S and self.longest > 0 and self.wordless >= 0):  # NaN is not
            limits = f"pause above {LEAST_PAUSE_S:g} s, longest above 0, wordless from 0"
            raise ConfigError(f"{self}", where="transcribe", remedy=f"give a {limits}")


USUAL_ENDS = EndRules()


@dataclass(frozen=True)
class SpeechPiece:
    """Rows of the model's front end, from `start_s` in the recording."""

    rows: Rows
    start_s: float


class Level:
    """Speech detection by level, relative to a floor and a peak that adapt slowly."""

    def __init__(self, first: list[float]) -> None:
        """`first`: levels of the first frames, which may already be speech."""
        self._floor, self._peak = min(first), max(first)

    def is_speech(self, level: float) -> bool:
        """Whether the next frame, with mean log-mel energy `level`, is speech."""
        self._floor = min(level, self._floor + FLOOR_RISES)
        self._peak = max(level, self._peak - PEAK_FALLS)
        return level > self._floor + max(LEAST_RISE, RISE_SHARE * (self._peak - self._floor))


class Cutter:
    """Collects a recording's rows and returns them in pieces of speech.

    Frames are examined one by one: where a piece ends depends on the samples before, not on the size of audio blocks.
    """

    def __init__(self, front: FrontEnd, ends: EndRules = USUAL_ENDS, *, settled: bool = False) -> None:
        """settled: start the running mean from the mean of the first piece, as if the speaker had said it before; else
        from the prior, as in every stream.
        """
        self._front, self._settled = front, settled
        self._frame_s = front.frame_s
        self._row_s = front.shift_s if front.kind == "waveform" else self._frame_s
        self._joined = 1 if front.kind == "waveform" else front.rows  # rows that the model stacks
        self._longest, self._pause = round(ends.longest / self._frame_s), round(ends.pause / self._frame_s)
        self._mean = front.causal_mean()
        self._new: list[NDArray[np.float16]] = []  # levels of frames not examined yet
        self._tracker: Level | None = None
        self._rows: Rows | None = None  # from frame `_start` on
        self._levels: list[float] = []  # of the frames from `_start` on
        self._start = 0
        self._speech, self._last = 0, 0  # number of speech frames among them, and the end of the last one

    @property
    def held(self) -> SpeechPiece | None:
        """The current piece up to the last frame examined; None if it has no speech."""
        return self._begun(len(self._levels))

    @property
    def certain(self) -> SpeechPiece | None:
        """The part of the current piece that later audio does not change: up to the margin after the last speech.

        The exception is a piece that exceeds the maximum length, which may be cut earlier.
        """
        return self._begun(min(self._last + MARGIN_FRAMES, len(self._levels)))

    def rest(self) -> SpeechPiece | None:
        """`held` at the end of the recording, which may be shorter than FIRST_FRAMES."""
        if self._tracker is None and self._new:
            list(self._look(np.concatenate(self._new).tolist()))
        return self.held

    def _begun(self, frames: int) -> SpeechPiece | None:
        """The first `frames` held frames, if there is speech among them."""
        return self._piece(frames, copy.deepcopy(self._mean)) if self._speech >= LEAST_FRAMES else None

    def rows(self, blocks: Iterator[NDArray[np.float32]]) -> Iterator[Rows]:
        """Rows for `add`, computed from samples in the int16 scale at the model's rate."""
        return self._front.rows_of(blocks, self._new, mean=False)

    def add(self, rows: Rows) -> Iterator[SpeechPiece]:
        """Add rows, and yield the pieces that end among them."""
        self._rows = rows if self._rows is None else np.concatenate([self._rows, rows])
        levels = np.concatenate(self._new).tolist()
        if self._tracker is not None or len(levels) >= FIRST_FRAMES:
            yield from self._look(levels)

    def end(self) -> SpeechPiece | None:
        """End the current piece here and return its `certain` part; None if it has no speech."""
        if self._speech < LEAST_FRAMES:
            return None
        return self._take(min(self._last + MARGIN_FRAMES, len(self._levels)))

    def _look(self, levels: list[float]) -> Iterator[SpeechPiece]:
        """Examine new frames and yield the pieces that end among them."""
        self._new.clear()
        if not levels:  # less audio than one frame
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
        """Remove the first `frames` held frames and return them as a piece."""
        piece = self._piece(frames, self._mean)
        self._drop(frames)
        return piece

    def _piece(self, frames: int, mean: CausalMean | None) -> SpeechPiece:
        assert self._rows is not None
        rows = self._rows[: self._row(frames) // self._joined * self._joined or self._joined]
        if mean is not None:
            lowest = self._front.lowest
            if self._settled and not mean.count and len(heard := sounds(rows, lowest)):
                mean.mean, mean.count = heard.mean(axis=0, dtype=np.float64), len(heard)
            rows = mean.apply(rows, lowest)
        return SpeechPiece(self._front.less_own_mean(rows), self._start * self._frame_s)

    def _drop(self, frames: int) -> None:
        assert self._rows is not None
        self._rows = self._rows[self._row(frames) :].copy()  # a view would keep the whole recording in memory
        del self._levels[:frames]
        self._start += frames
        self._last = max(0, self._last - frames)
        self._speech = self._speech if self._last else 0

    def _row(self, frames: int) -> int:
        """Number of rows that cover the first `frames` held frames."""
        first, last = (round(at * self._frame_s / self._row_s) for at in (self._start, self._start + frames))
        return last - first

    def _quietest(self) -> int:
        """Number of frames before the quietest place, which is in the second half of the maximum length."""
        half = self._longest // 2
        sums = np.convolve(np.array(self._levels[half:]), np.ones(QUIET_FRAMES), "valid")
        return (
            half + int(sums.argmin()) + QUIET_FRAMES // 2
            if len(self._levels) - half >= QUIET_FRAMES
            else len(self._levels)
        )
