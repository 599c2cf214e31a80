"""Read audio that libsndfile cannot (M4A, MP4, MOV, WebM, Matroska, AAC, AVI, WMA …) with FFmpeg, through PyAV.

The caller names the demuxer: FFmpeg's probing might take text for a playlist and open what it points to. Only the audio
track is demuxed and decoded, packet by packet, in one thread. If the track starts late or has a gap, silence is
inserted to preserve timing, because subtitle times count from the start of the container.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import av
import numpy as np

from megahour.core.errors import BadRecord
from megahour.corpus.media.complaints import Complaints
from megahour.corpus.media.soundfiles import BLOCK_FRAMES, DecodeError, Float32, Watched

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer

READ_BYTES = 1 << 16
SLACK_S = 0.5  # covers encoder delay and padding, and durations rounded to video frames
SLACK_SHARE = 1e-3
GAP_S = 0.1  # more than timestamp jitter (Matroska rounds to milliseconds), about one lost packet of speech
MAX_GAP_S = 600.0  # a longer gap means broken timestamps, not silence
# Demuxers whose duration is estimated from the bit rate or belongs to another track.
_GUESSED = frozenset({"aac", "mp3", "ac3", "eac3", "amr", "mpegts", "mpeg", "flv"})
_SCALE = {"u8": 1 / 128, "s16": 1 / 32768, "s32": 1 / 2147483648, "flt": 1.0, "dbl": 1.0}


class TrackReader:
    """Reads a container's audio track as a `SoundReader`; of several tracks, the one FFmpeg considers best.

    Parameters
    ----------
    demuxer: FFmpeg's name of the container format, see `containers.sniff`.

    Raises
    ------
    DecodeError: the container cannot be opened. BadRecord: ``no-audio-stream``, ``unsupported-codec``,
    ``zero-length-audio``; in `read()` also ``changing-format`` and ``header-lies``.
    """

    def __init__(self, file: Watched, demuxer: str) -> None:
        try:
            self._container: InputContainer = av.open(
                file, "r", format=demuxer, metadata_errors="replace", buffer_size=READ_BYTES
            )
        except (av.FFmpegError, UnicodeError) as error:
            raise DecodeError(f"{demuxer}: {error}") from error
        self.complaints = Complaints()  # stays empty: PyAV silences FFmpeg
        self._stream = self._main_stream()
        self.format = demuxer.upper()
        self.subtype = self._stream.codec_context.name
        self.tracks = len(self._container.streams.audio)
        self._frames = self._decoded()
        first = next(self._frames, None)
        if first is None:
            file.raise_error()
            raise BadRecord("zero-length-audio", f"the {self.subtype} track has no samples")
        # From the first frame, not the header: HE-AAC headers declare half the actual rate.
        self.rate_hz, self.channels = first.sample_rate, len(first.layout.channels)
        self._late: AudioFrame | None = first
        self._position = 0  # samples returned so far
        self._zero_s = _zero_s(self._container)
        self.declared = self._declared_samples(demuxer)
        self.slack = round((SLACK_S + SLACK_SHARE * (self.declared or 0) / self.rate_hz) * self.rate_hz)

    def _main_stream(self) -> AudioStream:
        streams = self._container.streams
        if not streams.audio:
            kinds = ", ".join(stream.type or "data" for stream in streams) or "no streams"
            raise BadRecord(
                "no-audio-stream", f"the container has only {kinds}" if len(streams) else "it has no streams"
            )
        main = streams.best("audio")
        best = next((stream for stream in streams.audio if main and stream.index == main.index), streams.audio[0])
        for stream in streams:
            if stream is not best:
                stream.discard = av.stream.Discard.all  # do not even fetch video
        if best.codec_context is None:
            raise BadRecord("unsupported-codec", "FFmpeg has no decoder for the sound track")
        best.codec_context.thread_count = 1
        best.codec_context.options = {
            "err_detect": "crccheck"
        }  # FLAC, AC-3 and MP3 have checksums, which FFmpeg ignores by default
        return best

    def _declared_samples(self, demuxer: str) -> int | None:
        """Samples from the start of the container, so with the silence before a track that starts late."""
        if demuxer in _GUESSED:
            return None
        seconds, stream = None, self._stream
        if stream.duration is not None and stream.time_base is not None:
            late_s = float((stream.start_time or 0) * stream.time_base) - self._zero_s
            seconds = float(stream.duration * stream.time_base) + max(0.0, late_s)
        elif self._container.duration and len(self._container.streams) == 1:
            seconds = self._container.duration / av.time_base
            seconds -= self._zero_s if demuxer == "matroska" else 0.0  # its duration is the time of the end
        return None if not seconds else round(seconds * self.rate_hz)

    def _decoded(self) -> Iterator[AudioFrame]:
        try:
            for packet in self._container.demux(self._stream):
                yield from self._stream.decode(packet)
        except av.EOFError:
            return
        except av.FFmpegError as error:
            raise DecodeError(str(error)) from error

    def read(self) -> Float32:
        """See `SoundReader`."""
        blocks: list[Float32] = []
        filled = 0
        while filled < BLOCK_FRAMES:
            frame = self._late or next(self._frames, None)
            self._late = None
            if frame is None:
                break
            if gap := self._gap(frame):
                blocks.append(np.zeros((min(gap, BLOCK_FRAMES), self.channels), np.float32))
                self._late = frame  # returned after the gap is filled
            else:
                blocks.append(self._samples(frame))
            filled += len(blocks[-1])
            self._position += len(blocks[-1])
        return np.concatenate(blocks) if blocks else np.zeros((0, self.channels), np.float32)

    def _gap(self, frame: AudioFrame) -> int:
        """Number of samples of silence before a frame; 0 if it follows the last one directly or has no timestamp."""
        if frame.pts is None or frame.time_base is None:
            return 0
        gap = round((float(frame.pts * frame.time_base) - self._zero_s) * self.rate_hz) - self._position
        if gap > MAX_GAP_S * self.rate_hz:
            where = f"{self._position / self.rate_hz:.1f} s"
            raise BadRecord("header-lies", f"the timestamps jump by {gap / self.rate_hz:.0f} s at {where}")
        return gap if gap >= GAP_S * self.rate_hz else 0

    def _samples(self, frame: AudioFrame) -> Float32:
        """Convert a frame of any supported sample format to float32 [T, C]."""
        rate_and_channels = (frame.sample_rate, len(frame.layout.channels))
        if rate_and_channels != (self.rate_hz, self.channels):
            was = f"{self.rate_hz} Hz, {self.channels} channels"
            raise BadRecord(
                "changing-format",
                f"{was} change to {rate_and_channels[0]} Hz, {rate_and_channels[1]} channels in mid-stream",
            )
        kind = frame.format.name.removesuffix("p")
        if kind not in _SCALE:
            raise BadRecord("unsupported-codec", f"samples of format {frame.format.name}")
        values: Any = frame.to_ndarray()
        values = values.T if frame.format.is_planar else values.reshape(-1, self.channels)
        if kind == "u8":
            values = values.astype(np.int16) - 128
        signal: Float32 = values.astype(np.float32)
        if _SCALE[kind] != 1.0:
            signal *= np.float32(_SCALE[kind])
        return signal


def _zero_s(container: Any) -> float:
    """Timestamp in seconds at which playback of the container starts; not 0 in many broadcasts."""
    return 0.0 if container.start_time is None else max(0.0, container.start_time / av.time_base)
