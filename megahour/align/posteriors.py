"""CTC posteriors of long recordings, window by window through the accelerator, kept as 8-bit costs in memory.

A recording is one row of 10 ms frames, computed in chunks that join without a seam; its causal mean runs over all of it
as over a speaker's utterances in training. Windows of stacked frames overlap by a margin on each side, whose outputs
are thrown away: the model sees context there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from megahour.align.ctc import quantise
from megahour.core.errors import ConfigError
from megahour.features.fbank import SHIFT_S, WINDOW_S, frame_count, log_mel
from megahour.features.normalise import CausalMean
from megahour.features.stack import stack

if TYPE_CHECKING:
    from megahour.engine.accelerator.client import Session

CHUNK_FRAMES = 6000
ReadSamples = Callable[[int, int], NDArray[np.int16]]


@dataclass(frozen=True)
class FrontEnd:
    """How samples become a model's input. window, margin: stacked frames of a window and of its margin at each end."""

    mean: NDArray[np.float32]
    inv_std: NDArray[np.float32]
    size: int
    prior: float
    low_hz: float
    high_hz: float
    window: int
    margin: int

    @staticmethod
    def of(
        config: Mapping[str, Any], *, prior: float, low_hz: float, high_hz: float, window_s: float, margin_s: float
    ) -> FrontEnd:
        """From a model's `.model.json` (stack, stats).

        Raises
        ------
        ConfigError: the window has no room beside its margins.
        """
        mean, inv_std = (np.asarray(config["stats"][name], np.float32) for name in ("mean", "inv_std"))
        size = int(config["stack"])
        window, margin = round(window_s / SHIFT_S) // size, round(margin_s / SHIFT_S) // size
        if window <= 2 * margin:
            raise ConfigError(
                f"window_s = {window_s} with margins of {margin_s} s leaves nothing", remedy="raise window_s"
            )
        return FrontEnd(mean, inv_std, size, prior, low_hz, high_hz, window, margin)


@dataclass(frozen=True)
class Source:
    """A recording to be read: `read(start, stop)` gives its int16 samples."""

    samples: int
    rate_hz: int
    read: ReadSamples


@dataclass
class Heard:
    """What the model said of a recording: posteriors (T, V) uint8, and level (T10,) mean log-mel energy at 10 ms."""

    posteriors: NDArray[np.uint8]
    level: NDArray[np.float32]


@dataclass
class _Plan:
    """Windows of a recording that are on their way; `pieces` have come back."""

    levels: list[NDArray[np.float32]] = field(default_factory=list)
    kept: dict[int, tuple[int, int]] = field(default_factory=dict)  # window → rows of its output that count
    pieces: list[NDArray[np.uint8]] = field(default_factory=list)
    complete: bool = False


def listen(sources: Iterable[Source], front: FrontEnd, session: Session) -> Iterator[Heard]:
    """Posteriors of each source, in order. Reads ahead no further than the session's window of frames.

    Raises SequenceFailedError when the model fails on a window.
    """
    plans: list[_Plan] = []

    def windows() -> Iterator[tuple[int, NDArray[np.float32]]]:
        for number, source in enumerate(sources):
            plan = _Plan()
            plans.append(plan)
            for i, (features, first, last) in enumerate(_windows(source, front, plan.levels)):
                plan.kept[i] = (first, last)
                yield number << 32 | i, features
            plan.complete = True

    done = 0
    for key, outputs in session.infer(windows(), ordered=True):
        number, window = key >> 32, key & 0xFFFFFFFF
        while done < number:
            yield _heard(plans, done)
            done += 1
        plan = plans[number]
        first, last = plan.kept[window]
        plan.pieces.append(quantise(outputs["log_probs"][first:last]))
    while done < len(plans):
        yield _heard(plans, done)
        done += 1


def _heard(plans: list[_Plan], number: int) -> Heard:
    plan, plans[number] = plans[number], _Plan()  # let go of it
    if not plan.complete or len(plan.pieces) != len(plan.kept):
        raise AssertionError(f"recording {number}: {len(plan.pieces)} of {len(plan.kept)} windows")
    posteriors = np.concatenate(plan.pieces) if plan.pieces else np.zeros((0, 1), np.uint8)
    return Heard(posteriors, np.concatenate(plan.levels) if plan.levels else np.zeros(0, np.float32))


def _windows(
    source: Source, front: FrontEnd, levels: list[NDArray[np.float32]]
) -> Iterator[tuple[NDArray[np.float32], int, int]]:
    """(stacked features of a window, first and last row that count); appends each chunk's energy to `levels`."""
    step, size = front.window - 2 * front.margin, front.size
    total = frame_count(source.samples, source.rate_hz) // size  # stacked frames
    held = np.zeros((0, len(front.mean)), np.float32)  # normalised 10 ms frames from stacked frame `held_from`
    held_from, begin = 0, 0
    chunks = _chunks(source, front, levels)
    while begin < total:
        left, right = max(0, begin - front.margin), min(total, begin + step + front.margin)
        while held_from * size + len(held) < right * size:
            held = np.concatenate([held, next(chunks)])
        held, held_from = held[(left - held_from) * size :], left
        features = stack(held[: (right - left) * size], 0, front.mean, front.inv_std, size)
        end = min(total, begin + step)
        yield features, begin - left, end - left
        begin = end
    for _ in chunks:  # the energy of frames that fill no stack
        pass


def _chunks(source: Source, front: FrontEnd, levels: list[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """Log-mel frames with the causal mean taken off, `CHUNK_FRAMES` at a time."""
    shift, length = round(SHIFT_S * source.rate_hz), round(WINDOW_S * source.rate_hz)
    causal = CausalMean(np.full(len(front.mean), front.prior, np.float32))
    frames = frame_count(source.samples, source.rate_hz)
    for first in range(0, frames, CHUNK_FRAMES):
        last = min(frames, first + CHUNK_FRAMES)
        samples = source.read(first * shift, (last - 1) * shift + length)
        features = log_mel(samples, source.rate_hz, len(front.mean), front.low_hz, front.high_hz)
        levels.append(features.mean(axis=1))
        yield causal.apply(features)
