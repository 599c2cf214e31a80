"""Audio for recognition, from files and from arrays. Damage that leaves something to recognise becomes a remark."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import BadRecord
from megahour.corpus.media.audio import FULL_SCALE, AudioLimits, AudioStats, Decoder
from megahour.transcribe.live import BLOCK_S

ARRAY_BLOCK_S = 10  # of samples from Python that are processed at a time
MOST_FLOAT = 4.0  # peak allowed for float samples, nominally in ±1: resampling may overshoot
LOW_PEAK = 10 ** (-50 / 20)  # 104 steps of 16 bits; the lowest recording of FSDD peaks at -27 dBFS
LIMITS = AudioLimits(silent_head_s=24 * 3600.0, max_clipped=1.0, silent_peak=0.0, cut_short=True, options=False)
"""Silent, clipped and unfinished audio is accepted here; audio that cannot be decoded is still refused."""


def decoded_blocks(file: BinaryIO, rate_hz: int, remarks: list[str], channel: int = 0) -> Iterator[NDArray[np.float32]]:
    """Samples of a seekable file in the int16 scale at `rate_hz`; in the end, what is wrong with it is in `remarks`.

    channel: number of the channel to take, from 1; 0: the mix of all.

    Raises
    ------
    BadRecord: the file cannot be decoded (see `Decoder`) or has no such channel.
    """
    decoder = Decoder(file, rate_hz, limits=LIMITS, channels="split" if channel else "mix")
    if not 0 <= channel <= decoder.channels_out:
        raise BadRecord("no-such-channel", f"channel {channel} of {decoder.channels_out}")
    for block in decoder.blocks():
        yield block[:, max(0, channel - 1)].astype(np.float32)
    remarks += [*decoder.stats.remarks, *_too_loud(decoder.stats), *_too_low(decoder.stats)]


def channels_of(file: BinaryIO, rate_hz: int) -> int:
    """Number of channels of a seekable file, which is rewound. Raises BadRecord: the file cannot be decoded."""
    channels = Decoder(file, rate_hz, limits=LIMITS, channels="split").channels_out
    file.seek(0)
    return channels


def declared_s(file: BinaryIO) -> float:
    """Seconds that the header of a seekable file declares, which is rewound; 0 if it declares none.

    Raises BadRecord: the file cannot be decoded.
    """
    seconds = Decoder(file, LIMITS.min_rate_hz, limits=LIMITS, channels="mix").declared_s
    file.seek(0)
    return 0.0 if math.isnan(seconds) else seconds


def played_blocks(file: BinaryIO, rate_hz: int, remarks: list[str]) -> Iterator[NDArray[np.float32]]:
    """`decoded_blocks` in blocks of a tenth of a second at most, as a microphone would send them."""
    step = round(rate_hz * BLOCK_S)
    for block in decoded_blocks(file, rate_hz, remarks):
        for start in range(0, len(block), step):
            yield block[start : start + step]


def sample_blocks(samples: NDArray[Any], rate_hz: int, to_hz: int) -> Iterator[NDArray[np.float32]]:
    """Mono `samples` (T,) at `rate_hz`, int16 or floats in ±1, in the int16 scale at `to_hz`.

    Raises
    ------
    BadRecord: several channels, no usable `rate_hz`, or another scale.
    """
    import soxr

    if samples.ndim != 1 or not LIMITS.min_rate_hz <= rate_hz <= LIMITS.max_rate_hz:  # 16 for 16000 would take hours
        allowed = f"give mono ones, and rate_hz from {LIMITS.min_rate_hz} to {LIMITS.max_rate_hz}"
        raise BadRecord("sample-rate", f"samples of shape {samples.shape} at {rate_hz} Hz; {allowed}")
    heard = soxr.resample(_in_int16_scale(samples), rate_hz, to_hz)
    step = ARRAY_BLOCK_S * to_hz  # the time to cut a block into pieces grows with its square
    for start in range(0, len(heard), step):
        yield heard[start : start + step]


def _in_int16_scale(samples: NDArray[Any]) -> NDArray[np.float32]:
    """Keep integers, scale up floats in ±1, and refuse samples in any other scale: they would be heard as noise."""
    full_scale, most = (1.0, MOST_FLOAT) if samples.dtype.kind == "f" else (FULL_SCALE, FULL_SCALE)
    peak = float(np.abs(samples.astype(np.float64)).max(initial=0.0)) if samples.dtype.kind in "fi" else np.nan
    if not peak <= most:  # NaN is not
        what = f"samples of {samples.dtype} with a peak of {peak:g}"
        raise BadRecord("sample-scale", f"{what}; give int16, or floats from -1 to 1")
    return samples.astype(np.float32) * np.float32(FULL_SCALE / full_scale)


def _too_loud(stats: AudioStats) -> list[str]:
    """What clipped samples mean: recognised all the same, but as a distorted sound."""
    if stats.peak > MOST_FLOAT:  # only floats reach beyond 1
        return [f"the peak is {stats.peak:g} where full scale is 1, so most of it is clipped: divide the samples"]
    if stats.clipped_share > AudioLimits().max_clipped:
        return [f"{stats.clipped_share:.0%} of the samples are at full scale (clipped), so expect more errors"]
    return []


def _too_low(stats: AudioStats) -> list[str]:
    """Why there may be no words: nothing is there, or little more than the steps of 16 bits."""
    if not stats.peak:
        return ["it is silent: all samples are 0"]
    if stats.peak < LOW_PEAK:
        return [f"the level is very low: it peaks at {20 * math.log10(stats.peak):.0f} dBFS"]
    return []
