"""Simulates telephones and compressed files: libsndfile encodes and decodes; the audio keeps its length and times.

mu-law, a-law: G.711, 8 bits a sample. gsm: GSM 06.10 full rate, 13 kbit/s. adpcm: IMA, 4 bits a sample. mp3, vorbis:
libsndfile's default quality. packet-loss: silent frames of 20 ms, in bursts (Gilbert, 1960). The first four resample to
8 kHz and pass 300 to 3400 Hz, whatever the rate of the audio.
"""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

Audio = NDArray[np.float32]
TELEPHONE_HZ, TELEPHONE_BAND_HZ = 8_000, (300.0, 3_400.0)
WIDE_HZ = 16_000
PACKET_S = 0.02
LOST = (0.01, 0.1)  # range of the share of lost packets
BURST = 2.0  # mean number of packets lost in a row


class Format(NamedTuple):
    """libsndfile's names for a codec, and whether it is a telephone codec."""

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


def apply_codec(codec: str, signal: Audio, rate_hz: int, rng: np.random.Generator) -> Audio:
    """Encode and decode float32 (N,) in ±1 → (N,), in time with the input. Values beyond ±1 are clipped.

    codec: a name of `FORMATS`, or packet-loss, the only one that draws from `rng`.

    >>> apply_codec("mu-law", np.zeros(800, np.float32), 16_000, np.random.default_rng(0)).shape
    (800,)
    """
    if codec == "packet-loss":
        return _without_packets(signal, round(PACKET_S * rate_hz), rng)
    chosen = FORMATS[codec]
    if chosen.telephone:
        import scipy.signal  # takes a second of CPU, which most processes spare

        own_hz = TELEPHONE_HZ
        sections = scipy.signal.butter(2, TELEPHONE_BAND_HZ, "bandpass", fs=rate_hz, output="sos").astype(np.float32)
        signal = np.asarray(scipy.signal.sosfilt(sections, signal), np.float32)
    else:
        own_hz = WIDE_HZ if rate_hz >= WIDE_HZ else TELEPHONE_HZ
    narrow = resampled(signal, rate_hz, own_hz)
    file = io.BytesIO()
    soundfile.write(file, np.clip(narrow, -1, 1), own_hz, format=chosen.file, subtype=chosen.subtype)
    file.seek(0)
    decoded, _ = soundfile.read(file, dtype="float32")
    return fit_length(resampled(fit_length(decoded, len(narrow)), own_hz, rate_hz), len(signal))


def resampled(signal: Audio, from_hz: float, to_hz: float) -> Audio:
    """The signal at rate `to_hz` (soxr, HQ). Only the ratio of the two rates matters."""
    return signal if from_hz == to_hz else np.asarray(soxr.resample(signal, from_hz, to_hz), np.float32)


def fit_length(signal: Audio, samples: int) -> Audio:
    """Cut or pad with silence to `samples`: resamplers and codecs are off by a few samples."""
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
