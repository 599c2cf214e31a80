"""Turns a recording's samples into a model's input, according to the model's configuration (`audio`).

There are three kinds, all computed as streams so that memory does not grow with the recording:

    stacked    megahour's models: log-mel, less a causal mean or that of the utterance, global statistics, neighbours
               joined
    log-mel    frames of 10 ms for a model that subsamples by itself
    waveform   samples, in rows of one output frame

A row is one element of the stream (10 ms of log-mel, or the samples of an output frame); `rows` rows make an output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy as np
import soxr
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.features.fbank import WINDOW_S, frame_count, lead_samples, log_mel, noise_floor
from megahour.features.normalise import CausalMean, without_mean
from megahour.features.params import SHIFT_S, UNIT, Mean, frame_seconds
from megahour.features.stack import stack
from megahour.serve.spec import bucket_frames

BLOCK_S = 120  # seconds read at once
ENERGY_MELS = 64  # for the level, if the model's input is samples
Rows = NDArray[np.float32]


class Source(NamedTuple):
    """A recording to read: `read(start, stop)` returns its int16 samples."""

    samples: int
    rate_hz: int
    read: Callable[[int, int], NDArray[np.int16]]


@dataclass(frozen=True)
class FrontEnd:
    """A model's input. window, margin: output frames of a window, and of its context at each end.

    shift_s: seconds from one output frame to the next. inputs: input frames per output frame.
    units: number of tokens V. stats: mean and inv_std (F,) of stacked input. mirrored: the ends of log-mel frames are
    reflected (`edges` of stage `features`). restarts: share of the training utterances that began without a mean.
    mean, range_db: parameters of stage `features` by these names.
    """

    kind: str
    rate_hz: int
    shift_s: float
    rows: int
    window: int
    margin: int
    units: int
    mels: int
    low_hz: float
    high_hz: float
    inputs: int
    prior: float = 0.0
    scale: float = 1.0
    normalise: bool = False
    stats: tuple[Rows, ...] | None = None
    mirrored: bool = False
    restarts: float = 0.0
    mean: Mean = "causal"
    range_db: float = 0.0

    @staticmethod
    def of(
        config: Mapping[str, Any],
        *,
        window_s: float = 30.0,
        margin_s: float = 0.0,
        tokens: bool = True,
        where: str = "",
    ) -> FrontEnd:
        """From a model's `.model.json` (audio, tokens; stack and stats of a trained one).

        The window is shortened to a length that the model service computes without padding. tokens: whether a model of
        tokens, such as a CTC model, is required. where: the model's address, for errors.

        Raises
        ------
        ConfigError: not a model of audio, not of tokens if required, or a window no longer than its margins.
        """
        _check_configuration(config, tokens=tokens, where=where)
        audio = config["audio"]
        kind, mean = audio["input"], audio.get("mean", "causal")
        rate_hz = int(audio["rate_hz"])
        stacked = kind == "stacked"
        trained_s = config.get("stack", 1) * config.get("subsample", 1) * frame_seconds(rate_hz)
        shift_s = trained_s if stacked else audio["frame_shift_samples"] / rate_hz
        rows = 1 if kind == "waveform" else round(shift_s / SHIFT_S)
        inputs = rows // config["stack"] if stacked else rows
        margin = round(margin_s / shift_s)
        window = _unpadded(round(window_s / shift_s), inputs)
        if window <= 2 * margin:
            raise ConfigError(
                f"window_s = {window_s} with margins of {margin_s} s leaves nothing",
                where=where,
                remedy="raise window_s",
            )
        stats = (
            tuple(np.asarray(config["stats"][name], np.float32) for name in ("mean", "inv_std")) if stacked else None
        )
        return FrontEnd(
            kind,
            rate_hz,
            shift_s,
            rows,
            window,
            margin,
            int(config["outputs"]),
            len(stats[0]) if stats else int(audio["mels"]),
            float(audio["low_hz"]),
            float(audio["high_hz"]),
            inputs,
            float(audio["prior"]) if stacked else 0.0,
            1.0 if audio.get("scale", "int16") == "int16" else UNIT,
            not stacked and bool(audio["normalise"]),
            stats,
            audio.get("edges") == "mirrored",
            float(audio.get("restarts", 0.0)),
            mean,
            float(audio.get("range_db", 0.0)),
        )

    @property
    def frame_s(self) -> float:
        """Seconds from one log-mel frame, or one level of `rows_of`, to the next: 10 ms, in whole samples."""
        return frame_seconds(self.rate_hz)

    @property
    def lowest(self) -> NDArray[np.float32] | None:
        """The floor (F,) of log-mels. None in the scale of -1 … 1, where that of the logarithm is high enough."""
        return noise_floor(self.rate_hz, self.mels, self.low_hz, self.high_hz) if self.scale == 1 else None

    @property
    def sequence_frames(self) -> int:
        """Frames T of a whole window as the model service counts them."""
        return self.window * self.inputs

    def check_rate(self, rate_hz: int) -> None:
        """Check the recordings' rate: a trained model needs its own; for imported models audio is resampled.

        Raises
        ------
        ConfigError: recordings of another rate than the model was trained on.
        """
        if self.kind == "stacked" and rate_hz != self.rate_hz:
            raise ConfigError(
                f"the aligner was trained on audio of {self.rate_hz} Hz, but the recordings have {rate_hz} Hz",
                remedy=f"ingest with rate_hz: {self.rate_hz}, or train an aligner for {rate_hz} Hz",
            )

    def outputs(self, samples: int, rate_hz: int) -> int:
        """Output frames T of a recording of `samples` at `rate_hz`."""
        samples = samples * self.rate_hz // rate_hz
        if self.kind == "waveform":
            return samples // round(self.shift_s * self.rate_hz)
        return frame_count(samples, self.rate_hz, mirrored=self.mirrored) // self.rows

    def rows_of(
        self, blocks: Iterator[NDArray[np.float32]], levels: list[NDArray[np.float16]], *, mean: bool = True
    ) -> Iterator[Rows]:
        """Rows (N, F) of samples in blocks, in the int16 scale and at the model's rate, from the beginning.

        levels: gets the mean log-mel energy of the 10 ms frames, rounded to float16 as it is in files. mean: subtract
        the causal mean if the model needs it; otherwise the caller does, and `less_own_mean` if it needs that.
        """
        if self.kind == "waveform":
            energy = _Mels(self.rate_hz, ENERGY_MELS, floor=noise_floor(self.rate_hz, ENERGY_MELS))  # of int16 samples

            def measured() -> Iterator[NDArray[np.float32]]:
                for block in blocks:
                    levels.append(energy.push(block).mean(axis=1).astype(np.float16))
                    yield block

            yield from _samples(measured(), round(self.shift_s * self.rate_hz), self.scale)
            return
        lowest = self.lowest
        causal = self.causal_mean() if mean else None
        floor = lowest if self.kind == "stacked" else None  # an imported model has the floor of its own features
        bank = self.rate_hz, self.mels, self.low_hz, self.high_hz
        mels = _Mels(*bank, self.scale, mirrored=self.mirrored, floor=floor)
        for mel in mels.all_of(blocks):
            heard = mel if lowest is None or floor is not None else np.maximum(mel, lowest)
            levels.append(heard.mean(axis=1).astype(np.float16))
            yield mel if causal is None else causal.apply(mel, lowest)

    def utterance(self, samples: NDArray[np.int16], *, mean: bool = True) -> Rows:
        """Rows (N, F) of a whole utterance at the model's rate. mean: subtract the mean, of whichever kind."""
        rows = np.concatenate(list(self.rows_of(iter([samples.astype(np.float32)]), [], mean=mean)))
        return self.less_own_mean(rows) if mean else rows

    def causal_mean(self) -> CausalMean | None:
        """The causal mean at the beginning of a recording; None if the model subtracts none."""
        subtracts = self.kind == "stacked" and self.mean == "causal"
        return CausalMean(np.full(self.mels, self.prior, np.float32)) if subtracts else None

    def less_own_mean(self, rows: Rows) -> Rows:
        """The rows (N, F) of a whole utterance, less their mean and in the model's range, if the mean is its own."""
        return without_mean(rows, self.lowest, self.range_db) if self.mean == "utterance" else rows

    def shape(self, rows: Rows) -> Rows:
        """The model's input (T, F) for the rows of a window."""
        if self.stats is not None:
            return stack(rows, 0, self.stats[0], self.stats[1], self.rows // self.inputs)
        if not self.normalise:
            return rows.copy()  # a view would keep the whole block alive while the window is in flight
        axis = None if self.kind == "waveform" else 0
        spread = rows.std(axis=axis, dtype=np.float64, keepdims=True)
        centred = rows - rows.mean(axis=axis, dtype=np.float64, keepdims=True)
        return np.asarray(centred / np.maximum(spread, 1e-7), np.float32)


def _check_configuration(config: Mapping[str, Any], *, tokens: bool, where: str) -> None:
    """Raises ConfigError, as `FrontEnd.of` does, unless a model's configuration describes a front end."""
    audio = config.get("audio") or {}
    kind = audio.get("input")
    lacks = tokens and "tokens" not in config
    if kind not in ("stacked", "log-mel", "waveform") or lacks or not audio.get("rate_hz"):
        raise ConfigError(
            "the model's configuration does not describe its input (`audio`, `tokens`)",
            where=where,
            remedy="train it with criterion ctc on features of one sampling rate, or use import-aligner",
        )
    if tokens and config.get("phones"):
        raise ConfigError(
            "the model has phones, but transcripts are aligned by letters",
            where=where,
            remedy="train it without the input `lexicon`",
        )
    if (mean := audio.get("mean", "causal")) not in get_args(Mean):
        what = f"the model's configuration has an unknown mean {mean!r}"
        raise ConfigError(what, where=where, remedy="copy the model again, or use the version that trained it")
    if "tokens" in config and len(config["tokens"]) != config["outputs"]:
        raise misfit(config["outputs"], len(config["tokens"]), where=where)


def misfit(outputs: int, tokens: int, *, where: str = "") -> ConfigError:
    """The error for a model and a token list that do not belong together."""
    return ConfigError(
        f"the model gives {outputs} values per frame, but the list has {tokens} tokens",
        where=where,
        remedy="give the token list that the model was trained with, its blank included",
    )


def _unpadded(frames: int, step: int) -> int:
    """The longest window of at most `frames` whose `step`-fold input fills its bucket."""
    while frames > 1 and bucket_frames(frames * step) != frames * step:
        frames -= 1
    return frames


def blocks_of(source: Source, rate_hz: int) -> Iterator[NDArray[np.float32]]:
    """Blocks of samples in the int16 scale at `rate_hz`."""
    resample = soxr.ResampleStream(source.rate_hz, rate_hz, 1, dtype="float32") if source.rate_hz != rate_hz else None
    step = BLOCK_S * source.rate_hz
    for start in range(0, source.samples, step):
        stop = min(source.samples, start + step)
        block = source.read(start, stop).astype(np.float32)
        yield block if resample is None else resample.resample_chunk(block, last=stop == source.samples)


class _Mels:
    """Computes log-mel frames (N, F) of 10 ms from blocks, without seams between them. floor (F,): as of `log_mel`."""

    def __init__(
        self,
        rate_hz: int,
        mels: int,
        low_hz: float = 20.0,
        high_hz: float = 0.0,
        scale: float = 1.0,
        *,
        mirrored: bool = False,
        floor: Rows | None = None,
    ) -> None:
        self._bank, self._floor = (rate_hz, mels, low_hz, high_hz), floor
        self._scale = np.float32(scale)
        self._shift, self._length = round(SHIFT_S * rate_hz), round(WINDOW_S * rate_hz)
        self._held = np.zeros(0, np.float32)
        self._mirrored, self._lead = mirrored, lead_samples(rate_hz) if mirrored else 0
        self._samples = self._frames = 0

    def all_of(self, blocks: Iterator[NDArray[np.float32]]) -> Iterator[Rows]:
        """The frames of all blocks, including the end."""
        for block in blocks:
            yield self.push(block)
        if self._mirrored:
            yield self._end()

    def push(self, block: NDArray[np.float32]) -> Rows:
        """Frames completed by this block of samples in the int16 scale."""
        waiting = np.concatenate([self._held, block if self._scale == 1 else block * self._scale])
        self._samples += len(block)
        if self._lead and len(waiting) >= self._lead:
            waiting, self._lead = np.concatenate([waiting[: self._lead][::-1], waiting]), 0
        frames = 0 if self._lead else frame_count(len(waiting), self._bank[0])
        self._frames += frames
        self._held = waiting[frames * self._shift :]
        if not frames:
            return np.zeros((0, self._bank[1]), np.float32)
        return log_mel(waiting[: (frames - 1) * self._shift + self._length], *self._bank, self._floor)

    def _end(self) -> Rows:
        """The last frames, whose windows extend into the reflected end."""
        left = frame_count(self._samples, self._bank[0], mirrored=True) - self._frames
        if left <= 0:
            return np.zeros((0, self._bank[1]), np.float32)
        waiting = np.pad(self._held, (self._lead, 0), mode="symmetric")
        needed = (left - 1) * self._shift + self._length - len(waiting)
        return log_mel(np.pad(waiting, (0, max(0, needed)), mode="symmetric"), *self._bank, self._floor)[:left]


def _samples(blocks: Iterator[NDArray[np.float32]], shift: int, scale: float) -> Iterator[Rows]:
    """Rows of `shift` samples."""
    waiting = np.zeros(0, np.float32)
    for block in blocks:
        waiting = np.concatenate([waiting, block * np.float32(scale)])
        rows = len(waiting) // shift
        yield waiting[: rows * shift].reshape(rows, shift)
        waiting = waiting[rows * shift :]
