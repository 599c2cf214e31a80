"""The interface of the readers that `audio.Decoder` uses, and the reader based on libsndfile."""

from __future__ import annotations

import errno
import io
import re
from contextlib import nullcontext
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import soundfile

from megahour.core.errors import BadRecord
from megahour.corpus.media.complaints import Complaints
from megahour.corpus.media.containers import Unfinished

BLOCK_FRAMES = 1 << 16
UNKNOWN_FRAMES = 2**63 - 1  # libsndfile's value for a length missing from the header
# libsndfile's log line for a corrected size field (AIFF, AU, W64). WAV and Ogg are checked in `containers`.
_CORRECTED = re.compile(r"^\s*(?:FORM|SSND|riff|data|Data Size)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
# MP3 headers may or may not count the encoder's delay and padding: a few MPEG frames of 1,152 samples.
_SLACK_FRAMES = {"MP3": 4 * 1152}

Float32 = npt.NDArray[np.float32]


class DecodeError(Exception):
    """A decoder failed; `Decoder` determines whether the file is truncated or corrupt.

    before: float32 [T, channels], what it had decoded of the block.
    """

    def __init__(self, message: str, before: Float32 | None = None) -> None:
        super().__init__(message)
        self.before = np.zeros((0, 1), np.float32) if before is None else before


class SoundReader(Protocol):
    """A recording that is read once from start to end.

    `declared` is the number of samples per channel in the header (None if it gives no reliable number), and `slack`
    the deviation from it that is normal for the format. `complaints` holds the decoder's messages.
    """

    format: str
    subtype: str
    rate_hz: int
    channels: int
    declared: int | None
    slack: int
    complaints: Complaints

    def read(self) -> Float32:
        """Read the next float32 [T, channels]; T is up to about 65,536, and 0 at the end. Raises DecodeError."""


class Watched:
    """A file wrapper that records the end of the last read and stores I/O errors for the caller.

    Callbacks of libsndfile and FFmpeg cannot raise: without it, a network failure would look like the end of the file.

    unfinished: how it ends early; its header is read with the length that it should have. start: where the decoder's
    file begins.
    """

    def __init__(self, file: BinaryIO, unfinished: Unfinished | None = None, start: int = 0) -> None:
        self._inner, self._start, self.unfinished = file, start, unfinished
        self.read_to = 0
        self.error: Exception | None = None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        try:
            return self._inner.seek(offset + self._start * (whence == io.SEEK_SET), whence) - self._start
        except Exception as error:
            if not isinstance(error, ValueError) and getattr(error, "errno", None) != errno.EINVAL:
                self.error = error
            return -1  # broken headers may ask for a position before the start of the file

    def tell(self) -> int:
        return self._inner.tell() - self._start

    def read(self, size: int = -1) -> bytes:
        try:
            data = self._inner.read(size)
            if self.unfinished:
                data = self.unfinished.mended(data, self._inner.tell() - len(data))
            self.read_to = self._inner.tell()
        except Exception as error:
            self.error = error
            return b""
        return data

    def raise_error(self) -> None:
        """Raise the stored error, if any."""
        if self.error:
            raise self.error


class SoundFileReader:
    """Reads what libsndfile supports: WAV, FLAC, Ogg Vorbis and Opus, MP3, AIFF, AU, W64, SPHERE and others.

    Raises
    ------
    DecodeError: libsndfile does not know the format. BadRecord: ``unknown-length``, ``truncated-audio``.
    """

    def __init__(self, file: Watched) -> None:
        self.complaints = Complaints()
        try:
            with self.complaints.caught():
                self._sound = soundfile.SoundFile(file)
        except soundfile.LibsndfileError as error:
            raise DecodeError(str(error.error_string or error)) from error
        sound = self._sound
        self.format, self.subtype = sound.format, sound.subtype
        self.rate_hz, self.channels = sound.samplerate, sound.channels
        if sound.frames == UNKNOWN_FRAMES:
            raise BadRecord(
                "unknown-length", f"the {sound.format} header does not declare the length; encode the file again"
            )
        self.declared: int | None = sound.frames
        self.slack = _SLACK_FRAMES.get(sound.format, 0)
        for declared, actual in _CORRECTED.findall(sound.extra_info if sound.format != "WAV" else ""):
            if int(declared) > int(actual) and not file.unfinished:
                raise BadRecord("truncated-audio", f"only {actual} of {declared} bytes")
        self._buffer: Float32 = np.empty((BLOCK_FRAMES, self.channels), np.float32)

    def read(self) -> Float32:
        """See `SoundReader`; the block is valid until the next call."""
        if self.format == "FLAC":  # after an error libsndfile does not say how many samples it has written
            self._buffer.fill(np.nan)
        try:
            with self.complaints.caught() if self.format == "MP3" else nullcontext():
                block: Float32 = self._sound.read(out=self._buffer, always_2d=True)
        except soundfile.LibsndfileError as error:
            message, decoded = str(error.error_string or error), 0
            if self.format == "FLAC":
                decoded = int(np.isnan(np.append(self._buffer[:, -1], np.nan)).argmax())
            raise DecodeError(message, self._buffer[:decoded]) from error
        return block
