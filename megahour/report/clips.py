"""Audio for the page: FLAC from a shard, or a span of a recording, as a small MP3 with waveform peaks."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from megahour.core.store import Artifact
from megahour.corpus.media.tar import ShardAudio

PEAKS = 400
RATES_HZ = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)  # that MP3 supports
RATE_HZ = 16_000  # to which audio of any other rate is resampled
Coding = Literal["mp3", "flac"]


@dataclass(frozen=True)
class ReportClip:
    """Encoded audio; `peaks` (PEAKS,) uint8 draw its waveform, with the loudest part at 255."""

    name: str
    media: str
    data: bytes
    peaks: NDArray[np.uint8]
    seconds: float

    @property
    def wave(self) -> str:
        return b64encode(self.peaks.tobytes()).decode()


def encode(name: str, samples: NDArray[np.int16], rate_hz: int, coding: Coding) -> ReportClip:
    """Encode int16 [T]. The MP3 has a constant bit rate, so browsers seek exactly and the bytes are reproducible."""
    target = io.BytesIO()
    seconds = len(samples) / rate_hz
    if coding == "flac":
        soundfile.write(target, samples, rate_hz, format="FLAC", subtype="PCM_16")
    else:
        sound: NDArray[Any] = samples
        if rate_hz not in RATES_HZ:
            sound, rate_hz = soxr.resample(samples, rate_hz, RATE_HZ), RATE_HZ
        level = 0.9  # 24 kbit/s at 16 kHz: small, and enough to judge a transcript by
        with soundfile.SoundFile(
            target, "w", rate_hz, 1, format="MP3", bitrate_mode="CONSTANT", compression_level=level
        ) as file:
            file.write(sound)
    return ReportClip(
        name, f"audio/{'mpeg' if coding == 'mp3' else 'flac'}", target.getvalue(), peaks(samples), seconds
    )


def peaks(samples: NDArray[np.int16]) -> NDArray[np.uint8]:
    """Largest absolute sample of each of PEAKS equal parts, relative to the largest of all."""
    bounds = np.linspace(0, len(samples), PEAKS + 1).astype(int)
    loud = np.abs(samples.astype(np.int32))
    loudest = np.array([loud[a:b].max(initial=0) for a, b in pairwise(bounds)])
    return np.round(255 * loudest / max(int(loudest.max(initial=0)), 1)).astype(np.uint8)


@dataclass(frozen=True)
class ClipSpan:
    """A span of a recording: its key, and samples from `start` to `stop`."""

    name: str
    recording: int
    start: int
    stop: int


def rows_by_key(
    artifact: Artifact, keys: Iterable[int], columns: Sequence[str]
) -> Iterator[tuple[int, dict[int, Any]]]:
    """(shard, rows by key) of the shards that have some of the keys; reads the index until all are found."""
    missing = np.array(sorted(keys), np.int64)
    for receipt in artifact.each_receipt() if len(missing) else ():
        index = artifact.read_table(receipt.shard, columns=["key", *columns])
        here = np.flatnonzero(np.isin(index["key"].to_numpy(), missing))
        if rows := {row["key"]: row for row in index.take(here).to_pylist()}:
            missing = np.setdiff1d(missing, np.array(list(rows), np.int64))
            yield receipt.shard, rows
        if not len(missing):
            return


def spans(recordings: Artifact, wanted: Sequence[ClipSpan], coding: Coding) -> dict[str, ReportClip]:
    """Clips by name, for the spans whose recording exists."""
    keys, columns = {span.recording for span in wanted}, ["offset", "size", "samples", "rate_hz"]
    clips: dict[str, ReportClip] = {}
    for shard, rows in rows_by_key(recordings, keys, columns):
        with ShardAudio(recordings, shard) as audio:
            for span in wanted:
                if (row := rows.get(span.recording)) is not None:
                    stop = min(span.stop, row["samples"])
                    if 0 <= span.start < stop:
                        sound = audio.read(row["offset"], row["size"], span.start, stop)
                        clips[span.name] = encode(span.name, sound, row["rate_hz"], coding)
    return clips
