"""Decode any audio that libsndfile or FFmpeg reads to mono or per-channel int16 at one rate, in bounded memory.

Blocks of about 65,536 frames go through decode → mix → resample (soxr HQ) → int16, so memory does not grow with the
length of the file. All checks run while decoding: a header's length is verified by counting the samples.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from megahour.core.errors import BadRecord
from megahour.corpus.media.complaints import Complaints
from megahour.corpus.media.containers import (
    Sniffed,
    byte_size,
    check_container,
    counts_frames,
    sniff,
    zeros_before_mpeg,
)
from megahour.corpus.media.early_ends import check_early_end
from megahour.corpus.media.soundfiles import DecodeError, Float32, SoundFileReader, SoundReader, Watched

FULL_SCALE = 32768.0
LEAST_LEFT = 0.01  # of the channels' energy in their mix; of independent sound in 16 channels a sixteenth is left
LONE_LEVEL = 100.0  # ratio of energies: 20 dB above the other channel, where only one is heard
HEARD_LEVEL = 1e-5  # mean square, 50 dB below full scale
LONE_SHARE = 0.1  # of the time in which something is heard: of two people in turns, each has more
LONE_SAMPLES = 1024
CLIPPED_LEVEL = 0.9999  # 32767/32768 counts as clipped, 32766/32768 does not
# Unread bytes allowed at the end of a file: MP3 and FLAC files may end with tags.
MAX_TAIL_BYTES = {"FLAC": 1 << 16, "MP3": 1 << 20}
CHECKED_WHOLE = frozenset({"MOV", "MATROSKA", "AVI"})  # `check_container` has already ruled out truncation

Channels = Literal["mix", "split"]
Int16 = npt.NDArray[np.int16]


@dataclass(frozen=True)
class AudioLimits:
    """Limits on a recording. Decoding stops if the first `silent_head_s` seconds are silent.

    cut_short: read files that end before the length in their header as far as they go.
    options: whether these are the parameters of a stage, which messages then name.
    """

    max_bytes: int = 8 << 30
    max_seconds: float = 12 * 3600.0
    min_seconds: float = 0.1
    min_rate_hz: int = 4000
    max_rate_hz: int = 384_000
    max_channels: int = 16
    silent_peak: float = 0.001
    silent_head_s: float = 900.0
    max_clipped: float = 0.05
    cut_short: bool = False
    options: bool = True

    def described(self, name: str) -> str:
        """A limit for people, with its name where they can set it."""
        return f"the limit {f'{name} ' * self.options}is {getattr(self, name)}"


@dataclass
class AudioStats:
    """Measurements made while decoding: rate, lengths, peak level and number of samples at full scale."""

    format: str
    subtype: str
    rate_hz_in: int
    channels_in: int
    samples_in: int = 0
    samples_out: int = 0
    clipped: int = 0
    peak: float = 0.0
    unfinished: str = ""  # how the file ends early
    opposite_samples: int = 0  # where the channels cancel each other, and one was taken
    heard_samples: int = 0  # where one of two channels or both are heard
    lone_samples: tuple[int, int] = (0, 0)  # where only the first is heard, and only the second

    @property
    def seconds_in(self) -> float:
        return self.samples_in / self.rate_hz_in

    @property
    def remarks(self) -> list[str]:
        """What to tell people about a recording that was read all the same."""
        opposite = (
            f"in {self.opposite_samples / self.rate_hz_in:.1f} of {self.seconds_in:.1f} s the channels cancel each "
        )
        opposite += "other (opposite phase): one of them was taken there"
        first, second = (samples / self.rate_hz_in for samples in self.lone_samples)
        separate = f"the two channels hold different voices (only the first is heard for {first:.1f} s, only the second"
        separate += f" for {second:.1f} s) and were mixed: take each by itself (`ingest --channels split`,"
        separate += " `transcribe --channel each`)"
        return [
            *[self.unfinished] * bool(self.unfinished),
            *[opposite] * bool(self.opposite_samples),
            *[separate] * self.separate,
        ]

    @property
    def separate(self) -> bool:
        """Whether two channels that were mixed hold different voices, as recorders of calls write them."""
        return 0 < LONE_SHARE * self.heard_samples <= min(self.lone_samples)

    @property
    def clipped_share(self) -> float:
        return self.clipped / max(1, self.samples_in * self.channels_in)


class Decoder:
    """Decode one recording once from a seekable binary file. The format is detected from the bytes, not the name.

    Parameters
    ----------
    file: seekable binary file; closed by the caller.
    rate_hz: output sampling rate.
    channels: "mix" (the mean of all channels, one output channel; where they cancel each other, one of them) or "split"
        (all channels).

    Raises
    ------
    BadRecord: from the constructor for problems in the header (``zero-length-audio``, ``unreadable-audio``,
    ``truncated-audio``, ``header-lies``, ``too-large``, ``too-long``, ``too-short``, ``sample-rate``,
    ``too-many-channels``, ``unknown-length``, ``no-audio-stream``, ``encrypted-audio``, ``unsupported-codec``), from
    `blocks()` for problems in the samples (also ``corrupt-audio``, ``changing-format``, ``nan-audio``,
    ``silent-audio``, ``clipped-audio``).
    """

    def __init__(
        self, file: BinaryIO, rate_hz: int, *, channels: Channels = "mix", limits: AudioLimits | None = None
    ) -> None:
        self.limits = limits or AudioLimits()
        self.rate_hz = rate_hz
        self._size = byte_size(file)
        if self._size > self.limits.max_bytes:
            raise BadRecord("too-large", f"{self._size} bytes, {self.limits.described('max_bytes')}")
        unfinished = check_container(file, self._size, cut_short=self.limits.cut_short) or check_early_end(
            file, self._size, cut_short=self.limits.cut_short
        )
        kind = sniff(file)
        self._file = Watched(file, unfinished, zeros_before_mpeg(file))
        self._file.seek(0)
        self._ended = False  # the decoder failed where the file was cut
        try:
            self._sound = _reader(self._file, kind)
        except DecodeError as error:
            self._file.raise_error()
            what, reason = f"{error} ({self._size} bytes)", "truncated-audio" if unfinished else "unreadable-audio"
            raise BadRecord(reason, f"{unfinished.remark}; {what}" if unfinished else what) from error
        self._file.raise_error()
        sound = self._sound
        self.stats = AudioStats(sound.format, sound.subtype, sound.rate_hz, sound.channels)
        self.stats.unfinished = unfinished.remark if unfinished else ""
        self.channels_out = 1 if channels == "mix" else sound.channels
        self._check_header()

    def _check_header(self) -> None:
        limits, stats, samples = self.limits, self.stats, self._sound.declared
        if not limits.min_rate_hz <= stats.rate_hz_in <= limits.max_rate_hz:
            allowed = f"{limits.min_rate_hz} to {limits.max_rate_hz} Hz"
            raise BadRecord("sample-rate", f"{stats.rate_hz_in} Hz, outside {allowed}")
        if stats.channels_in > limits.max_channels:
            raise BadRecord("too-many-channels", f"{stats.channels_in} channels, {limits.described('max_channels')}")
        if samples is None:
            return
        if samples == 0 and stats.unfinished:
            raise BadRecord("truncated-audio", f"{stats.unfinished}, and no whole one is before it")
        if samples == 0:
            raise BadRecord("zero-length-audio", f"the {stats.format} header declares 0 samples")
        self._check_length(samples)

    def _check_length(self, samples: int) -> None:
        limits, seconds = self.limits, samples / self.stats.rate_hz_in
        if seconds > limits.max_seconds:
            raise BadRecord("too-long", f"{seconds / 3600:.2f} hours, the limit is {limits.max_seconds / 3600:.2f}")
        if seconds < limits.min_seconds:
            raise BadRecord("too-short", f"{seconds:.3f} s, {limits.described('min_seconds')}")

    def blocks(self) -> Iterator[Int16]:
        """Yield int16 [T, C] blocks at `rate_hz`; C is `channels_out`. Checks of the whole recording run at the end."""
        resample = None
        if self.stats.rate_hz_in != self.rate_hz:
            resample = soxr.ResampleStream(self.stats.rate_hz_in, self.rate_hz, self.channels_out, dtype="float32")
        for block in self._decoded():
            signal = block if self.channels_out == block.shape[1] else self._mixed(block)
            yield self._emit(resample.resample_chunk(signal) if resample else signal)
        if resample:
            yield self._emit(resample.resample_chunk(np.zeros((0, self.channels_out), np.float32), last=True))
        self._check_whole()

    def _mixed(self, block: Float32) -> Float32:
        """float32 [T, C] → [T, 1]: the mean, or the first loud channel if the channels cancel each other."""
        mean = _mean_channel(block)
        if block.shape[1] == 2:
            self._count_lone(block)
        energies = np.array([np.dot(each, each) for each in block.T.astype(np.float64)])
        if np.dot(mean[:, 0], mean[:, 0]) >= LEAST_LEFT * energies.mean():
            return mean
        self.stats.opposite_samples += len(block)
        loud = int(np.argmax(energies >= energies.max() / 2))
        return np.ascontiguousarray(block[:, loud : loud + 1])

    def _count_lone(self, block: Float32) -> None:
        """Count where only one of two channels is heard; the last part of a block that is too short is left out."""
        whole = block[: len(block) // LONE_SAMPLES * LONE_SAMPLES].reshape(-1, LONE_SAMPLES, 2)
        levels = np.einsum("wtc,wtc->cw", whole, whole) / LONE_SAMPLES
        heard = levels.max(axis=0) > HEARD_LEVEL
        stats = self.stats
        stats.heard_samples += LONE_SAMPLES * int(heard.sum())
        first, second = (int((heard & (one > LONE_LEVEL * other)).sum()) for one, other in (levels, levels[::-1]))
        before = stats.lone_samples
        stats.lone_samples = before[0] + LONE_SAMPLES * first, before[1] + LONE_SAMPLES * second

    def _decoded(self) -> Iterator[Float32]:
        """Yield float32 [T, channels_in] blocks; checks and counts their samples."""
        stats, limit = self.stats, self.limits.max_seconds * self.stats.rate_hz_in
        while True:
            block = self._next_block()
            self._file.raise_error()
            if not len(block):
                return
            level = float(np.abs(block).max())
            if not np.isfinite(level):
                raise BadRecord(
                    "nan-audio", f"NaN or infinity among samples {stats.samples_in} to {stats.samples_in + len(block)}"
                )
            stats.samples_in += len(block)
            if stats.samples_in > limit:  # only if the header does not declare the length
                self._check_length(stats.samples_in)
            if level >= CLIPPED_LEVEL:
                stats.clipped += int(np.count_nonzero(np.abs(block) >= CLIPPED_LEVEL))
            yield block

    def _next_block(self) -> Float32:
        if self._ended:
            return np.zeros((0, self.stats.channels_in), np.float32)
        try:
            return self._sound.read()
        except DecodeError as error:
            self._file.raise_error()
            broken = self._broken(str(error))
            self._ended = self.limits.cut_short and broken.reason == "truncated-audio"
            if not self._ended:
                raise broken from error
            return error.before

    def _emit(self, signal: Float32) -> Int16:
        stats = self.stats
        stats.samples_out += len(signal)
        if len(signal):
            stats.peak = max(stats.peak, float(np.abs(signal).max()))
        if stats.peak < self.limits.silent_peak and stats.seconds_in > self.limits.silent_head_s:
            raise BadRecord(
                "silent-audio", f"the first {stats.seconds_in:.0f} s stay below silent_peak, {self.limits.silent_peak}"
            )
        return to_int16(signal)

    def _broken(self, message: str) -> BadRecord:
        """The error for a failed decoder: truncated if it had read to the end of the file, else corrupt."""
        at_end = self._file.read_to >= self._size and self._sound.format not in CHECKED_WHOLE
        return BadRecord("truncated-audio" if at_end else "corrupt-audio", self._counted(message))

    def _counted(self, message: str) -> str:
        declared = "" if self._sound.declared is None else f" of {self._sound.declared}"
        counted = f"{message or 'decoder error'}: {self.stats.samples_in}{declared} samples decoded"
        return f"{counted}; {self.complaints}" if self.complaints.count else counted

    @property
    def declared_s(self) -> float:
        """Duration in seconds declared by the header; NaN if it declares none."""
        return math.nan if self._sound.declared is None else self._sound.declared / self.stats.rate_hz_in

    @property
    def complaints(self) -> Complaints:
        """Messages of the decoder so far."""
        return self._sound.complaints

    def _check_whole(self) -> None:
        limits, stats, declared = self.limits, self.stats, self._sound.declared
        if self._ended or (declared is not None and stats.samples_in < declared - self._sound.slack):
            if not limits.cut_short or not stats.samples_in:
                raise BadRecord("truncated-audio", self._counted("the data ends early"))
            of = "" if declared is None else f" of {declared / stats.rate_hz_in:.1f}"
            stats.unfinished = stats.unfinished or f"the file ends early, after {stats.seconds_in:.1f}{of} s"
        if declared is None:
            self._check_length(stats.samples_in)
        elif stats.samples_in > declared + self._sound.slack:
            raise BadRecord("header-lies", self._counted("the data continues after the declared end"))
        unread = self._size - self._file.read_to
        if unread > MAX_TAIL_BYTES.get(stats.format, self._size):
            raise BadRecord("header-lies", self._counted(f"{unread} bytes follow the declared end"))
        if stats.peak < limits.silent_peak:
            raise BadRecord("silent-audio", f"peak {stats.peak:.6f}, {limits.described('silent_peak')}")
        if stats.clipped_share > limits.max_clipped:
            share = f"{stats.clipped_share:.3f} of the samples are at full scale"
            raise BadRecord("clipped-audio", f"{share}, {limits.described('max_clipped')}")


def _reader(file: Watched, kind: Sniffed) -> SoundReader:
    """Open the file with libsndfile if possible, else (unsupported container or codec) with FFmpeg."""
    if kind.libsndfile:
        counted = counts_frames(file)
        file.seek(0)
        try:
            sound = SoundFileReader(file)
        except DecodeError:
            file.raise_error()
            if not kind.demuxer:
                raise
        else:
            if sound.format != "MP3" or counted:
                return sound
            # libsndfile estimates the length from the bit rate of the first frames and stops there, so use FFmpeg.
            kind = Sniffed(False, "mp3")
        file.seek(0)
    from megahour.corpus.media.tracks import TrackReader  # FFmpeg's libraries take 0.1 s to load

    return TrackReader(file, kind.demuxer)


def _mean_channel(block: Float32) -> Float32:
    """float32 [T, C] → [T, 1]. The loop is four times as fast as `mean(axis=1)`, and its rounding is reproducible."""
    total = block[:, 0].copy()
    for channel in range(1, block.shape[1]):
        total += block[:, channel]
    mean: Float32 = (total / np.float32(block.shape[1]))[:, None]
    return mean


def to_int16(signal: Float32) -> Int16:
    """float32 in ±1 → int16, rounded to nearest; exact for samples that came from int16."""
    with np.errstate(over="ignore"):  # values near the largest float overflow and are clipped below
        scaled = np.rint(signal * np.float32(FULL_SCALE))
    samples: Int16 = np.clip(scaled, -32768, 32767).astype(np.int16)
    return samples


def decode(file: BinaryIO, rate_hz: int, *, channels: Channels = "mix", limits: AudioLimits | None = None) -> Int16:
    """Decode a short recording to int16 [T, C]; for long recordings, iterate over `Decoder.blocks()`."""
    return np.concatenate(list(Decoder(file, rate_hz, channels=channels, limits=limits).blocks()))


def encode_flac(samples: Int16, rate_hz: int) -> bytes:
    """int16 [T] → FLAC bytes; equal samples give equal bytes with the same version of libFLAC."""
    target = io.BytesIO()
    with FlacEncoder(target, rate_hz) as flac:
        flac.write(samples)
    return target.getvalue()


class FlacEncoder:
    """Streaming FLAC encoder, 16-bit mono, into a seekable binary file (the header is rewritten at the end)."""

    def __init__(self, target: BinaryIO, rate_hz: int) -> None:
        self._sound = soundfile.SoundFile(target, "w", rate_hz, 1, subtype="PCM_16", format="FLAC")
        self.samples = 0

    def __enter__(self) -> FlacEncoder:
        return self

    def __exit__(self, *error: object) -> None:
        self._sound.close()

    def write(self, samples: Int16) -> None:
        """Append int16 [T]."""
        self._sound.write(samples)
        self.samples += len(samples)
