"""Simulates channels, noise and rooms on cepstra, for test sets whose audio is not published.

Cepstra become log mel energies, as smooth as they are, and go back to cepstra afterwards. In between, with power
P(t, f) in frame t and mel f:

- channel: log P + c(f), a smooth curve;
- noise: log(P + N), where N is stationary noise with the fluctuation of few averaged periodogram bins;
- reverb: P(t) + a · Σ_k d^k P(t − k), the energy of a room's tail, which falls by 60 dB in RT60 (as in Hirsch and
  Finster, 2008).

Powers are added without their cross terms, and no echo reaches the frame before it: real rooms and noises are harder to
tell from speech. Each utterance draws its own values, by its key.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megahour.core.records import key_of
from megahour.features.cepstra_mels import channel_curve, to_mels_and_back
from megahour.features.params import Simulated

CHANNEL = 1.0  # nats, standard deviation of the curve
SNR_DB, TILT_DB = (5.0, 15.0), (-12.0, 0.0)  # tilt: from the lowest mel to the highest
BINS = 4  # periodogram bins that a mel averages
RT60_S, DIRECT_DB = (0.3, 0.7), (0.0, 6.0)
SPEECH_DB = 30.0  # frames this far below the loudest one are pauses


def simulated(condition: Simulated, cepstra: NDArray[np.float32], key: int, frame_s: float) -> NDArray[np.float32]:
    """Cepstra (T, dims), before normalisation of their mean, → (T, dims) under the condition that `key` draws.

    Loudness and reverberation are relative to the utterance's own speech.

    >>> simulated("channel", np.ones((2, 13), np.float32), key=1, frame_s=0.01).shape
    (2, 13)
    """
    rng = np.random.Generator(np.random.PCG64(key_of("simulated", condition, key)))
    to_mels, to_cepstra = to_mels_and_back(cepstra.shape[1], np.float64)
    logs = cepstra @ to_mels
    if condition == "channel":
        logs = logs + CHANNEL * channel_curve(logs.shape[1], rng)
    elif condition == "noise":
        logs = np.logaddexp(logs, _noise(logs, rng))
    else:
        logs = _in_a_room(logs, frame_s, rng)
    return np.asarray(logs @ to_cepstra, np.float32)


def _noise(logs: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Log energies (T, F) of noise below those of the speech in `logs` (T, F) by a ratio drawn from SNR_DB."""
    frames = np.exp(logs).mean(axis=1)
    speech = np.log(frames[frames >= frames.max() * 10 ** (-SPEECH_DB / 10)].mean())
    slope = np.exp(_nats(rng.uniform(*TILT_DB)) * np.linspace(0, 1, logs.shape[1]))
    level = speech - _nats(rng.uniform(*SNR_DB))
    return np.asarray(level + np.log(slope / slope.mean()) + np.log(rng.gamma(BINS, 1 / BINS, logs.shape)))


def _in_a_room(logs: NDArray[np.float64], frame_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """`logs` (T, F) with the tail of a room, of which every frame's energy adds to the frames after it."""
    fall = np.exp(-_nats(60.0) * frame_s / rng.uniform(*RT60_S))  # from one frame to the next
    tail = np.exp(-_nats(rng.uniform(*DIRECT_DB))) * (1 - fall) / fall  # so that the tail's energies sum to the ratio
    power = np.exp(logs)
    wet, echo = np.empty_like(power), np.zeros(power.shape[1])
    for t, direct in enumerate(power):
        wet[t] = direct + tail * echo
        echo = (echo + direct) * fall
    return np.log(wet)


def _nats(decibels: float) -> float:
    return decibels / 10 * float(np.log(10))
