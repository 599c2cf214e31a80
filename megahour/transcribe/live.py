"""Reads audio from a pipe: raw 16-bit samples, or a WAV file of unknown length."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import ConfigError

BLOCK_S = 0.1
UNSENT = "see what the program that should send it says"
MOST_HEADER_BYTES = 1 << 20
UNKNOWN_BYTES = 1 << 30
PCM, EXTENSIBLE = 1, 0xFFFE
FILES = (b"RIFF", b"RF64", b"fLaC", b"OggS")
"""The first bytes of files that people send as raw samples: they would be heard as noise."""


def live_blocks(
    pipe: BinaryIO, model_rate_hz: int, rate_hz: int = 0, where: str = "standard input"
) -> Iterator[NDArray[np.float32]]:
    """Samples in the int16 scale at the model's rate, in blocks of a tenth of a second as they arrive.

    rate_hz: sampling rate of raw little-endian 16-bit mono samples; 0: read a WAV header.
    where: name of the source in errors.

    Raises
    ------
    ConfigError: not a WAV of 16-bit samples, a file where raw samples were announced, or a sampling rate outside 4 to
        384 kHz.
    """
    import soxr

    channels, raw, left = 1, bool(rate_hz), sys.maxsize
    if not raw:
        rate_hz, channels, left = _wave_header(pipe, where)
    if not 4000 <= rate_hz <= 384_000:
        raise ConfigError(f"samples at {rate_hz} Hz", where=where, remedy="--rate-hz from 4000 to 384000")
    resample = None if rate_hz == model_rate_hz else soxr.ResampleStream(rate_hz, model_rate_hz, 1, dtype="float32")
    frame, rest, begun = 2 * channels, b"", not raw
    while data := pipe.read(min(round(rate_hz * BLOCK_S) * frame, left)):
        left -= len(data)
        if not begun and data.startswith(FILES):
            raise ConfigError(
                f"an audio file ({data[:4].decode()} …) in place of raw 16-bit samples",
                where=where,
                remedy="leave --rate-hz out, or send its samples without a header",
            )
        begun = True
        data = rest + data
        rest = data[len(data) // frame * frame :]
        samples = np.frombuffer(data[: len(data) - len(rest)], "<i2").reshape(-1, channels)
        block = samples.mean(axis=1, dtype=np.float32)
        yield block if resample is None else resample.resample_chunk(block)
    if resample is not None:
        yield resample.resample_chunk(np.zeros(0, np.float32), last=True)


def _wave_header(pipe: BinaryIO, where: str) -> tuple[int, int, int]:
    """(rate, channels, bytes of samples) of a WAV of 16-bit samples, read up to its first sample. Title and cover may
    follow the samples. A recorder that does not know the length writes 0, or a gigabyte or more: sys.maxsize.
    """
    if not (first := _read(pipe, 4)):
        raise ConfigError("no audio arrived", where=where, remedy=UNSENT)
    if first != b"RIFF" or len(_read(pipe, 4)) < 4 or _read(pipe, 4) != b"WAVE":
        raise _no_wave("not a WAV file", where)
    rate_hz = channels = 0
    while True:
        name, (size,) = _read(pipe, 4), struct.unpack("<I", _read(pipe, 4).ljust(4, b"\0"))
        if name == b"data" and rate_hz:
            return rate_hz, channels, size if 0 < size < UNKNOWN_BYTES else sys.maxsize
        if name == b"data" or not name or size > MOST_HEADER_BYTES:
            raise _no_wave("the WAV header is damaged", where)
        body = _read(pipe, size + size % 2)
        if name == b"fmt " and len(body) >= 16:
            kind, channels, rate_hz, _, _, bits = struct.unpack("<HHIIHH", body[:16])
            if kind not in (PCM, EXTENSIBLE) or bits != 16 or not 1 <= channels <= 16:
                raise _no_wave(f"a WAV of kind {kind}, {bits} bits, {channels} channels", where)


def _read(pipe: BinaryIO, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := pipe.read(size - len(data))):
        data += more
    return data


def _no_wave(what: str, where: str) -> ConfigError:
    return ConfigError(
        what,
        where=where,
        remedy="send a WAV of 16-bit samples, or raw ones with --rate-hz; without --stream any audio file will do",
    )
