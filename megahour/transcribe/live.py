"""Reads audio from a pipe: raw 16-bit samples, or a WAV of any usual samples whose length may be unknown."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import BadRecord, ConfigError

BLOCK_S = 0.1
UNSENT = "see what the program that should send it says"
MOST_HEADER_BYTES = 1 << 20
UNKNOWN_BYTES = 1 << 30
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
FILES = (b"RIFF", b"RF64", b"fLaC", b"OggS")
"""The first bytes of files that people send as raw samples: they would be heard as noise."""


class WaveForm(NamedTuple):
    """What a WAV header declares. size: bytes of samples, sys.maxsize if the recorder did not know; kind and bits of
    each sample, as in `DECODERS`."""

    rate_hz: int
    channels: int
    size: int
    kind: int
    bits: int


def _of_three_bytes(data: bytes) -> NDArray[Any]:
    wide = np.zeros((len(data) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return wide.view("<i4")[:, 0] / 65536.0


DECODERS: dict[tuple[int, int], Callable[[bytes], NDArray[Any]]] = {
    (PCM, 8): lambda data: (np.frombuffer(data, np.uint8) - 128.0) * 256.0,
    (PCM, 16): lambda data: np.frombuffer(data, "<i2"),
    (PCM, 24): _of_three_bytes,
    (PCM, 32): lambda data: np.frombuffer(data, "<i4") / 65536.0,
    (FLOAT, 32): lambda data: np.frombuffer(data, "<f4") * 32768.0,
    (FLOAT, 64): lambda data: np.frombuffer(data, "<f8") * 32768.0,
}
"""Samples in the int16 scale from little-endian bytes, by kind and bits of a WAV."""


def live_blocks(
    pipe: BinaryIO, model_rate_hz: int, rate_hz: int = 0, where: str = "standard input"
) -> Iterator[NDArray[np.float32]]:
    """Samples in the int16 scale at the model's rate, in blocks of a tenth of a second as they arrive.

    rate_hz: sampling rate of raw little-endian 16-bit mono samples; 0: read a WAV header.
    where: name of the source in errors.

    Raises
    ------
    ConfigError: not a WAV of PCM or floats, a file where raw samples were announced, a sampling rate outside 4 to 384
        kHz, or a sample that is NaN or infinite.
    """
    import soxr

    wave = WaveForm(rate_hz, 1, sys.maxsize, PCM, 16) if rate_hz else _wave_header(pipe, where)
    if not 4000 <= wave.rate_hz <= 384_000:
        raise ConfigError(f"samples at {wave.rate_hz} Hz", where=where, remedy="--rate-hz from 4000 to 384000")
    resample = None
    if wave.rate_hz != model_rate_hz:
        resample = soxr.ResampleStream(wave.rate_hz, model_rate_hz, 1, dtype="float32")
    for data in _whole_frames(pipe, wave, raw=bool(rate_hz), where=where):
        samples = DECODERS[wave.kind, wave.bits](data).reshape(-1, wave.channels)
        block = samples.mean(axis=1, dtype=np.float32)
        if wave.kind == FLOAT:
            if not np.isfinite(block).all():
                raise ConfigError("NaN or infinity among the samples", where=where, remedy="see what the sender does")
            block = block.clip(-32768.0, 32767.0)  # as in a file of 16 bits: a peak beyond full scale is clipped
        yield block if resample is None else resample.resample_chunk(block)
    if resample is not None:
        yield resample.resample_chunk(np.zeros(0, np.float32), last=True)


def checked_blocks(blocks: Iterable[NDArray[np.float32]], rate_hz: int) -> Iterator[NDArray[np.float32]]:
    """`blocks` as they are. A sample that is no number would silence a stream until its end.

    Raises
    ------
    BadRecord: `nan-audio`, or a block that is no array of mono samples.
    """
    samples = 0
    for block in blocks:
        if np.ndim(block) != 1:
            raise BadRecord("sample-shape", f"a block of shape {np.shape(block)}; give mono ones (T,)")
        if not np.isfinite(block).all():
            raise BadRecord("nan-audio", f"NaN or infinity within {len(block)} samples after {samples / rate_hz:.1f} s")
        samples += len(block)
        yield np.asarray(block, np.float32)


def _whole_frames(pipe: BinaryIO, wave: WaveForm, *, raw: bool, where: str) -> Iterator[bytes]:
    """The bytes of the samples, about a tenth of a second at a time, cut between samples of all channels."""
    frame, rest, begun, left = wave.bits // 8 * wave.channels, b"", not raw, wave.size
    while data := pipe.read(min(round(wave.rate_hz * BLOCK_S) * frame, left)):
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
        yield data[: len(data) - len(rest)]


def _wave_header(pipe: BinaryIO, where: str) -> WaveForm:
    """The header of a WAV, read up to its first sample. Title and cover may follow the samples. A recorder that does
    not know the length writes 0, or a gigabyte or more.
    """
    if not (first := _read(pipe, 4)):
        raise ConfigError("no audio arrived", where=where, remedy=UNSENT)
    if first != b"RIFF" or len(_read(pipe, 4)) < 4 or _read(pipe, 4) != b"WAVE":
        raise _no_wave("not a WAV file", where)
    rate_hz = channels = kind = bits = 0
    while True:
        name, (size,) = _read(pipe, 4), struct.unpack("<I", _read(pipe, 4).ljust(4, b"\0"))
        if name == b"data" and rate_hz:
            return WaveForm(rate_hz, channels, size if 0 < size < UNKNOWN_BYTES else sys.maxsize, kind, bits)
        if name == b"data" or not name or size > MOST_HEADER_BYTES:
            raise _no_wave("the WAV header is damaged", where)
        body = _read(pipe, size + size % 2)
        if name == b"fmt " and len(body) >= 16:
            kind, channels, rate_hz, _, _, bits = struct.unpack("<HHIIHH", body[:16])
            if kind == EXTENSIBLE:
                kind = int.from_bytes(body[24:26], "little")  # the first bytes of its GUID
            if (kind, bits) not in DECODERS or not 1 <= channels <= 16:
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
        remedy="send a WAV of PCM or float samples, or raw 16-bit ones with --rate-hz; without --stream or by its name "
        "any audio file will do",
    )
