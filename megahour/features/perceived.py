"""How people would judge speech, by models: PESQ and STOI against a recording, DNSMOS without one.

`score-speech` and the held-out speech of `train` share these. PESQ and STOI need the extra `tts`, DNSMOS `mos`.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import BadRecord
from megahour.features.codecs import resampled

Float32 = NDArray[np.float32]
NARROW_HZ, WIDE_HZ = 8_000, 16_000
SHORTEST_S = 0.4  # PESQ and STOI need at least this much
TOO_FEW_FRAMES = 1e-5  # pystoi's STOI of less than 30 frames with speech


def pesq_and_stoi(true: Float32, true_hz: int, said: Float32, said_hz: int) -> dict[str, float]:
    """PESQ (ITU-T P.862; wide band if both have at least 16 kHz) and STOI of `said` against `true`.

    Both are cut to the shorter length; NaN if that is below 0.4 s, if one of them is silent, or if the measure finds
    too little speech. Both compare frame by frame, so they mean little for speech whose timing differs from the
    recording's, as with most voices.
    """
    from pesq import NoUtterancesError, pesq  # type: ignore[import-untyped]
    from pystoi import stoi  # type: ignore[import-untyped]

    rate_hz = WIDE_HZ if min(true_hz, said_hz) >= WIDE_HZ else NARROW_HZ
    one, other = resampled(true, true_hz, rate_hz), resampled(said, said_hz, rate_hz)
    length = min(len(one), len(other))
    one, other = one[:length], other[:length]
    if length < SHORTEST_S * rate_hz or not (one.any() and other.any()):
        return {"pesq": float("nan"), "stoi": float("nan")}
    try:
        quality = float(pesq(rate_hz, one, other, "wb" if rate_hz == WIDE_HZ else "nb"))
    except NoUtterancesError:
        quality = float("nan")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # too few frames, which its value says, too
        intelligible = float(stoi(one, other, rate_hz))
    return {"pesq": quality, "stoi": float("nan") if intelligible == TOO_FEW_FRAMES else intelligible}


def dnsmos(said: Float32, rate_hz: int) -> dict[str, float]:
    """Mean opinion scores predicted by DNSMOS (Reddy et al., 2022): overall, speech and background.

    Raises BadRecord: all samples are zero.
    """
    from speechmos import dnsmos as model  # type: ignore[import-not-found,import-untyped,unused-ignore]

    if not said.any():
        raise BadRecord("silent", "all samples are zero")
    wave = np.clip(resampled(said, rate_hz, WIDE_HZ), -1, 1)
    found: dict[str, Any] = model.run(wave, WIDE_HZ)
    return {name: float(found[key]) for name, key in _MOS.items()}


_MOS = {"mos": "ovrl_mos", "mos_signal": "sig_mos", "mos_background": "bak_mos"}
