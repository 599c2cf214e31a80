"""Measures an utterance's sound quality from its samples: signal-to-noise ratio and clipping.

The ratio is that of levels, as NIST's `stnr` of the SPQA package has it: the speech level is the 95th percentile of the
short-time power, which loud vowels set whatever the share of pauses. The noise level is the 10th percentile: the pauses
and padding of an utterance are at least that share of it. Both are robust to single clicks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megahour.align.edges import long_runs

FRAME_S, SHIFT_S = 0.020, 0.010
NOISE_PERCENTILE, SPEECH_PERCENTILE = 10, 95
QUANTISATION = 1 / 12  # power of rounding to whole numbers: quieter sounds were not recorded
FULL_SCALE = 32767
FLAT_SAMPLES = 4  # equal samples in a row at the utterance's highest or lowest value: a clipped peak
FLAT_LEVEL = 3277  # a tenth of full scale; quiet sounds have flat tops from rounding


def snr_db(samples: NDArray[np.int16], rate_hz: int) -> float:
    """Decibels between the speech and the noise level of int16 [T]; NaN for less than two frames of 20 ms.

    At least 0, which pure noise comes near; at most about 100.
    """
    length, shift = round(FRAME_S * rate_hz), round(SHIFT_S * rate_hz)
    if len(samples) < length + shift:
        return float("nan")
    squares = np.concatenate([[0.0], np.cumsum(np.square(samples, dtype=np.float64))])
    begin = np.arange(0, len(samples) - length + 1, shift)
    total = np.concatenate([[0.0], np.cumsum(samples, dtype=np.float64)])
    mean = (total[begin + length] - total[begin]) / length
    power = (squares[begin + length] - squares[begin]) / length - mean**2
    noise, speech = np.percentile(np.maximum(power, QUANTISATION), [NOISE_PERCENTILE, SPEECH_PERCENTILE])
    return float(10 * np.log10(speech / noise))


def clipped_share(samples: NDArray[np.int16]) -> float:
    """Share of int16 [T] at full scale, or in flat tops at the highest or lowest value; 0 of an empty array.

    Clipping survives a later change of gain as flat tops below full scale.
    """
    if not len(samples):
        return 0.0
    clipped = (samples >= FULL_SCALE) | (samples <= -FULL_SCALE)
    for extreme in (int(samples.max()), int(samples.min())):
        if abs(extreme) >= FLAT_LEVEL:
            clipped |= long_runs(samples == extreme, FLAT_SAMPLES)
    return float(clipped.mean())
