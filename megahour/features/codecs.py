"""Speech as it comes out of a telephone or a compressed file: coded and decoded by libsndfile, in step with itself.

mu-law, a-law: G.711, 8 bits a sample. gsm: GSM 06.10 full rate, 13 kbit/s. adpcm: IMA, 4 bits a sample. mp3, vorbis: as
libsndfile writes them. packet-loss: frames of 20 ms that are silent, in bursts (Gilbert, 1960). The first four are of
8 kHz and 300 to 3400 Hz, whatever the rate of the audio.
"""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np
import scipy.signal
import soundfile
import soxr
from numpy.typing import NDArray

Audio = NDArray[np.float32]
TELEPHONE_HZ, TELEPHONE_BAND_HZ = 8_000, (300.0, 3_400.0)
WIDE_HZ = 16_000
PACKET_S = 0.02
LOST = (0.01, 0.1)  # share of the packets
BURST = 2.0  # packets that are lost together, on average


class Format(NamedTuple):
    """What libsndfile calls a codec, and whether it is a telephone's."""

    file: str
    subtype: str
    telephone: bool


FORMATS = {
    "mu-law": Format("WAV", "ULAW", telephone=True),
    "a-law": Format("WAV", "ALAW", telephone=True),
    "gsm": Format("WAV", "GSM610", telephone=True),
    "adpcm": Format("WAV", "IMA_ADPCM", telephone=True),
    "mp3": Format("MP3", "MPEG_LAYER_III", telephone=False),
    "vorbis": Format("OGG", "VORBIS", telephone=False),
}


def through(codec: str, signal: Audio, rate_hz: int, rng: np.random.Generator) -> Audio:
    """float32 (N,) in ±1 → (N,) of the same times; what is beyond ±1 is cut off. `rng` loses packets."""
    if codec == "packet-loss":
        return _without_packets(signal, round(PACKET_S * rate_hz), rng)
    chosen = FORMATS[codec]
    if chosen.telephone:
        own_hz = TELEPHONE_HZ
        sections = scipy.signal.butter(2, TELEPHONE_BAND_HZ, "bandpass", fs=rate_hz, output="sos").astype(np.float32)
        signal = np.asarray(scipy.signal.sosfilt(sections, signal), np.float32)
    else:
        own_hz = WIDE_HZ if rate_hz >= WIDE_HZ else TELEPHONE_HZ
    there = resampled(signal, rate_hz, own_hz)
    file = io.BytesIO()
    soundfile.write(file, np.clip(there, -1, 1), own_hz, format=chosen.file, subtype=chosen.subtype)
    file.seek(0)
    back, _ = soundfile.read(file, dtype="float32")
    return fitted(resampled(fitted(back, len(there)), own_hz, rate_hz), len(signal))


def resampled(signal: Audio, from_hz: float, to_hz: float) -> Audio:
    """At another rate (soxr, HQ); only the ratio of the rates counts."""
    return signal if from_hz == to_hz else np.asarray(soxr.resample(signal, from_hz, to_hz), np.float32)


def fitted(signal: Audio, samples: int) -> Audio:
    """Cut, or filled up with silence: resamplers and codecs are some samples off."""
    return signal[:samples] if len(signal) >= samples else np.pad(signal, (0, samples - len(signal)))


def _without_packets(signal: Audio, packet: int, rng: np.random.Generator) -> Audio:
    packets = -(-len(signal) // packet)
    share = rng.uniform(*LOST)
    lost, out = False, signal.copy()
    for i, u in enumerate(rng.random(packets).tolist()):
        lost = u < (1 - 1 / BURST if lost else share / ((1 - share) * BURST))
        if lost:
            out[i * packet : (i + 1) * packet] = 0
    return out
