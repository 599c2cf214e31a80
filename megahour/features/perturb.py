"""Augments audio before its features are computed: s(t) → codec(g · (s(t · speed) * h + n)).

The changes of an utterance in an epoch are drawn from (seed, epoch, key), each kind independently: they do not depend
on the batch, the workers or each other. Speed: Ko et al., 2015; noise and rooms: Ko et al., 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.records import key_of
from megahour.corpus.generate.rooms import Noise, impulse_response, noise, speech_rms
from megahour.features.clips import Clips
from megahour.features.codecs import apply_codec, fit_length, resampled
from megahour.features.params import WaveformParams

Audio = NDArray[np.float32]
COLOURS: tuple[Noise, ...] = ("white", "pink", "hum", "babble")
SILENT = 1e-5  # RMS below half a step of 16 bits
DRAWS = 4  # attempts to draw a noise that is not silent
ROOM_S = 2.0  # longest part of an impulse response in use


@dataclass(frozen=True)
class Perturb:
    """Augmentation by `options`. Without `noises` or `rooms`, noises or impulse responses are generated."""

    options: WaveformParams
    seed: int
    noises: Clips | None = None
    rooms: Clips | None = None

    @property
    def identity(self) -> list[Any]:
        """Everything that determines the augmentation, except epoch and utterance."""
        clips = [given.digest if given is not None else "" for given in (self.noises, self.rooms)]
        return [self.options.model_dump(mode="json"), self.seed, *clips]

    def speeds(self, keys: NDArray[np.int64], epoch: int) -> NDArray[np.float64]:
        """Speeds (n,) of the utterances `keys` (n,); 1 where the speed does not change."""
        p, speeds = self.options.speed, self.options.speeds
        if not p:
            return np.ones(len(keys))
        drawn = np.array([key_of("speed", self.seed, epoch, key) for key in keys.tolist()]) / 2**63 / p
        chosen = np.minimum((drawn * len(speeds)).astype(np.int64), len(speeds) - 1)
        return np.where(drawn < 1, np.array(speeds)[chosen], 1.0)

    def augmented(self, signal: Audio, rate_hz: int, key: int, epoch: int) -> Audio:
        """(N,) in ±1 → (N,) with reverberation, noise and codec, as drawn. Silence stays silent."""
        p = self.options
        if (rng := self._generator("reverb", p.reverb, key, epoch)) is not None:
            signal = self._in_a_room(signal, rate_hz, rng)
        if (rng := self._generator("noise", p.noise, key, epoch)) is not None:
            signal = self._with_noise(signal, rate_hz, rng)
        if (rng := self._generator("codec", p.codec, key, epoch)) is not None:
            signal = apply_codec(p.codecs[int(rng.integers(len(p.codecs)))], signal, rate_hz, rng)
        return signal

    def gain_db(self, key: int, epoch: int) -> float:
        """Change of the volume of an utterance in an epoch; 0: none."""
        rng = self._generator("volume", self.options.volume, key, epoch)
        return 0.0 if rng is None else float(rng.uniform(*self.options.volume_db))

    def _generator(self, kind: str, probability: float, key: int, epoch: int) -> np.random.Generator | None:
        """The random generator of this kind of change; None if the utterance is spared."""
        if not probability:
            return None
        rng = np.random.Generator(np.random.PCG64(key_of(kind, self.seed, epoch, key)))
        return rng if rng.random() < probability else None

    def _in_a_room(self, signal: Audio, rate_hz: int, rng: np.random.Generator) -> Audio:
        """Add reverberation. The direct sound keeps its time, and the signal its level."""
        import scipy.signal  # takes a second of CPU, which most processes spare

        if self.rooms is None:
            response = impulse_response(
                rng.uniform(*self.options.rt60_s), rng.uniform(*self.options.direct_db), rate_hz, rng
            )
        else:
            response = self.rooms.beginning(ROOM_S, rate_hz, rng)
            response = response[int(np.abs(response).argmax()) :]
        wet = scipy.signal.oaconvolve(signal, response)[: len(signal)].astype(np.float32)
        before, after = _rms(signal), _rms(wet)
        return signal if after < SILENT else wet * np.float32(before / after)

    def _with_noise(self, signal: Audio, rate_hz: int, rng: np.random.Generator) -> Audio:
        speech, snr_db = speech_rms(signal, rate_hz), rng.uniform(*self.options.snr_db)
        for _ in range(DRAWS):
            if self.noises is None:
                added = noise(COLOURS[int(rng.integers(len(COLOURS)))], len(signal), rate_hz, rng)
            else:
                added = self.noises.excerpt(len(signal), rate_hz, rng)
            if (level := _rms(added)) >= SILENT:
                return signal + added * np.float32(speech * 10 ** (-snr_db / 20) / level)
        return signal


def at_speed(signal: Audio, speed: float) -> Audio:
    """(N,) → (`samples_at`,): faster and higher for `speed` above 1."""
    return signal if speed == 1 else fit_length(resampled(signal, speed, 1.0), int(samples_at(len(signal), speed)))


def samples_at(samples: NDArray[np.int64] | int, speed: NDArray[np.float64] | float) -> NDArray[np.int64]:
    """Number of samples after a change of speed."""
    return np.round(np.asarray(samples) / speed).astype(np.int64)


def _rms(signal: Audio) -> float:
    return float(np.sqrt(np.mean(np.square(signal, dtype=np.float64)))) if len(signal) else 0.0
