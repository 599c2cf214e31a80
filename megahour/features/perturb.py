"""Audio changed before its features are computed: s(t) → codec(g · (s(t · speed) * h + n)).

What is done to an utterance in an epoch is drawn from (seed, epoch, its key), each kind apart: it does not depend on
the batch, on workers, or on what else is done. Speed: Ko et al., 2015; noise and rooms: Ko et al., 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.signal
from numpy.typing import NDArray

from megahour.core.records import key_of
from megahour.corpus.generate.rooms import Noise, impulse_response, noise, speech_rms
from megahour.features.clips import Clips
from megahour.features.codecs import fitted, resampled, through
from megahour.features.params import WaveformParams

Audio = NDArray[np.float32]
COLOURS: tuple[Noise, ...] = ("white", "pink", "hum", "babble")
SILENT = 1e-5  # RMS below half a step of 16 bits
DRAWS = 4  # of noise, until one is not silent
ROOM_S = 2.0  # of an impulse response that are used


@dataclass(frozen=True)
class Perturb:
    """What `options` say, with noises and impulse responses from artifacts or, where there are none, generated."""

    options: WaveformParams
    seed: int
    noises: Clips | None = None
    rooms: Clips | None = None

    @property
    def identity(self) -> list[Any]:
        """All that what is done follows from, but epoch and utterance."""
        clips = [given.digest if given is not None else "" for given in (self.noises, self.rooms)]
        return [self.options.model_dump(mode="json"), self.seed, *clips]

    def speeds(self, keys: NDArray[np.int64], epoch: int) -> NDArray[np.float64]:
        """(n,) of the utterances: 1 for those that stay as they are."""
        p, speeds = self.options.speed, self.options.speeds
        if not p:
            return np.ones(len(keys))
        drawn = np.array([key_of("speed", self.seed, epoch, key) for key in keys.tolist()]) / 2**63 / p
        chosen = np.minimum((drawn * len(speeds)).astype(np.int64), len(speeds) - 1)
        return np.where(drawn < 1, np.array(speeds)[chosen], 1.0)

    def changed(self, signal: Audio, rate_hz: int, key: int, epoch: int) -> Audio:
        """(N,) in ±1 → (N,): all but speed and volume. What is silent stays so."""
        p = self.options
        if (rng := self._drawn("reverb", p.reverb, key, epoch)) is not None:
            signal = self._in_a_room(signal, rate_hz, rng)
        if (rng := self._drawn("noise", p.noise, key, epoch)) is not None:
            signal = self._with_noise(signal, rate_hz, rng)
        if (rng := self._drawn("codec", p.codec, key, epoch)) is not None:
            signal = through(p.codecs[int(rng.integers(len(p.codecs)))], signal, rate_hz, rng)
        return signal

    def gain_db(self, key: int, epoch: int) -> float:
        rng = self._drawn("volume", self.options.volume, key, epoch)
        return 0.0 if rng is None else float(rng.uniform(*self.options.volume_db))

    def _drawn(self, kind: str, probability: float, key: int, epoch: int) -> np.random.Generator | None:
        """A source for what is done, if it is."""
        if not probability:
            return None
        rng = np.random.Generator(np.random.PCG64(key_of(kind, self.seed, epoch, key)))
        return rng if rng.random() < probability else None

    def _in_a_room(self, signal: Audio, rate_hz: int, rng: np.random.Generator) -> Audio:
        """The direct sound stays where it is, and the level what it is."""
        if self.rooms is None:
            response = impulse_response(
                rng.uniform(*self.options.rt60_s), rng.uniform(*self.options.direct_db), rate_hz, rng
            )
        else:
            response = self.rooms.whole(ROOM_S, rate_hz, rng)
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
                added = self.noises.drawn(len(signal), rate_hz, rng)
            if (level := _rms(added)) >= SILENT:
                return signal + added * np.float32(speech * 10 ** (-snr_db / 20) / level)
        return signal


def at_speed(signal: Audio, speed: float) -> Audio:
    """(N,) → (`samples_at`,): faster and higher above 1."""
    return signal if speed == 1 else fitted(resampled(signal, speed, 1.0), int(samples_at(len(signal), speed)))


def samples_at(samples: NDArray[np.int64] | int, speed: NDArray[np.float64] | float) -> NDArray[np.int64]:
    """How many samples are left at a speed."""
    return np.round(np.asarray(samples) / speed).astype(np.int64)


def _rms(signal: Audio) -> float:
    return float(np.sqrt(np.mean(np.square(signal, dtype=np.float64)))) if len(signal) else 0.0
