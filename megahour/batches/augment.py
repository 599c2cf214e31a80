"""Augments the stacked, normalised features of a batch. Each piece has its own random draws.

There are four kinds:

- masks: bands of time and of mels are set to zero, which is the global mean (SpecAugment, Park et al., 2019);
- warp: the mel axis is stretched by a factor near 1, which moves formants as another vocal tract would (vocal tract
  length perturbation, Jaitly and Hinton, 2013; here on mels instead of the filters, to work on stored features);
- noise: stationary noise is a floor on log energies, x ← log(exp x + exp n); the mean is then restored, as causal mean
  normalisation would do;
- channel: a smooth curve over the mels is added to all frames.

Cepstra are converted to mels, augmented, and converted back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from megahour.features.cepstra_mels import channel_curve, to_mels_and_back

QUIET, LOUD, TILT = -4.0, 1.0, 3.0  # nats
WARPS = 21  # warp factors are drawn from this many, evenly spaced


@dataclass(frozen=True)
class Augment:
    """The augmentations of each piece.

    times, time_frames: mask this many time bands of up to `time_frames` stacked frames, at most a quarter of the piece.
    mel_bands, mels: mask this many bands of up to `mels` neighbouring mels.
    warp: stretch the mel axis by a factor from 1 − `warp` to 1 + `warp`.
    noise: probability of a noise floor, `QUIET` to `LOUD` nats from the mean log energy, with a random tilt over mels.
    channel: standard deviation, in nats, of the curve over the mels that is added; 0 adds none.
    cepstra: the features are cepstra.
    """

    times: int = 0
    time_frames: int = 0
    mel_bands: int = 0
    mels: int = 0
    warp: float = 0.0
    noise: float = 0.0
    channel: float = 0.0
    cepstra: bool = False

    def __bool__(self) -> bool:
        return bool(self.times or self.mel_bands or self.warp or self.noise or self.channel)

    def apply(
        self,
        features: NDArray[np.float32],
        lengths: NDArray[np.int64],
        inv_std: NDArray[np.float32],
        rng: np.random.Generator,
    ) -> None:
        """Augment `features` (B, T, stack · F), normalised by `inv_std` (F,), in place. `lengths` are (B,)."""
        joined = features.reshape(*features.shape[:2], -1, len(inv_std))
        mels, scale = joined, inv_std
        if self.cepstra:
            to_mels, to_cepstra = to_mels_and_back(len(inv_std))
            mels = ((joined / inv_std) @ to_mels).astype(np.float32)
            scale = np.ones(mels.shape[3], np.float32)
        if self.warp:
            matrices = warp_matrices(mels.shape[3], self.warp)
            for b, choice in enumerate(rng.integers(0, WARPS, len(lengths)).tolist()):
                mels[b] = mels[b] @ matrices[choice]
        for b, length in enumerate(lengths.tolist()):
            if rng.random() < self.noise:
                mels[b, :length] = _with_noise(mels[b, :length], scale, rng)
            if self.channel:
                mels[b, :length] += (self.channel * channel_curve(len(scale), rng).astype(np.float32)) * scale
            for _ in range(self.times):
                first, last = _band(rng, min(self.time_frames, length // 4), length)
                mels[b, first:last] = 0.0
            for _ in range(self.mel_bands):
                first, last = _band(rng, min(self.mels, mels.shape[3]), mels.shape[3])
                mels[b, :, :, first:last] = 0.0
        if self.cepstra:
            joined[:] = (mels @ to_cepstra) * inv_std


def _with_noise(x: NDArray[np.float32], inv_std: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Add a noise floor to normalised log energies `x` (T, stack, F)."""
    tilt = rng.uniform(-TILT, TILT) * np.linspace(-0.5, 0.5, len(inv_std), dtype=np.float32)
    floor = np.float32(rng.uniform(QUIET, LOUD)) + tilt
    noisy: NDArray[np.float32] = np.logaddexp(x / inv_std, floor.astype(np.float32)) * inv_std
    noisy += x.mean(axis=(0, 1)) - noisy.mean(axis=(0, 1))
    return noisy


def _band(rng: np.random.Generator, widest: int, size: int) -> tuple[int, int]:
    width = int(rng.integers(0, widest + 1))
    first = int(rng.integers(0, size - width + 1))
    return first, first + width


@lru_cache(maxsize=4)
def warp_matrices(mels: int, warp: float) -> NDArray[np.float32]:
    """(WARPS, F, F) one matrix per factor α: mel f of x (T, F) @ matrix is mel f·α of x.

    Values between mels are interpolated linearly; above the last mel, the last one is repeated.
    """
    matrices = np.zeros((WARPS, mels, mels), dtype=np.float32)
    for matrix, factor in zip(matrices, np.linspace(1 - warp, 1 + warp, WARPS), strict=True):
        source = np.minimum(np.arange(mels) * factor, mels - 1)
        low = np.minimum(source.astype(int), mels - 2)
        matrix[low, np.arange(mels)] = 1 - (source - low)
        matrix[low + 1, np.arange(mels)] = source - low
    return matrices
