"""Augments stacked, normalised features of a batch, with draws per piece from the batch's own generator.

Four kinds: bands of time and of mels set to zero, the global mean (SpecAugment, Park et al., 2019); a stretch of the
mel axis by a factor near 1, which moves formants as another vocal tract would (vocal tract length perturbation, Jaitly
and Hinton, 2013; here on the mel axis instead of the filters, so that stored features can be used); stationary noise,
which on log energies is a floor, x ← log(exp x + exp n), with the mean put back as a causal mean would; and another
channel, a smooth curve over the mels that is added to all frames. Cepstra become mels for all of this, and then again
cepstra.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from megahour.features.cepstra_mels import mel_matrix

QUIET, LOUD, TILT = -4.0, 1.0, 3.0  # nats
CURVES = 3  # most half-waves over the mels in a channel's curve
CEPSTRA_MELS = 40  # number of mels to which cepstra are converted
WARPS = 21  # warp factors are drawn from this many, evenly spaced


@dataclass(frozen=True)
class Augment:
    """Augmentations of each piece.

    `times` bands of up to `time_frames` stacked frames, none over a quarter of the piece; `mel_bands` bands of up to
    `mels` neighbouring mels; a warp of the mel axis by a factor from 1 − `warp` to 1 + `warp`; with probability `noise`
    a noise floor between `QUIET` and `LOUD` nats above the mean log energy, with a random tilt over the mels; with a
    `channel`, a smooth curve over the mels of that standard deviation, in nats. `cepstra`: the features are cepstra.
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
        """Change `features` (B, T, stack · F), normalised by `inv_std` (F,), in place, up to `lengths`."""
        joined = features.reshape(*features.shape[:2], -1, len(inv_std))
        mels, scale = joined, inv_std
        if self.cepstra:
            to_mels, to_cepstra = _cepstra_and_mels(len(inv_std))
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
                mels[b, :length] += (self.channel * _curve(len(scale), rng)) * scale
            for _ in range(self.times):
                first, last = _band(rng, min(self.time_frames, length // 4), length)
                mels[b, first:last] = 0.0
            for _ in range(self.mel_bands):
                first, last = _band(rng, min(self.mels, mels.shape[3]), mels.shape[3])
                mels[b, :, :, first:last] = 0.0
        if self.cepstra:
            joined[:] = (mels @ to_cepstra) * inv_std


def _with_noise(x: NDArray[np.float32], inv_std: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """`x` (T, stack, F), normalised log energies, with a noise floor."""
    tilt = rng.uniform(-TILT, TILT) * np.linspace(-0.5, 0.5, len(inv_std), dtype=np.float32)
    floor = np.float32(rng.uniform(QUIET, LOUD)) + tilt
    noisy: NDArray[np.float32] = np.logaddexp(x / inv_std, floor.astype(np.float32)) * inv_std
    noisy += x.mean(axis=(0, 1)) - noisy.mean(axis=(0, 1))
    return noisy


def _curve(mels: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """(F,): half-waves with random heights, of standard deviation 1 over all draws and mels."""
    waves = np.cos(np.pi * np.arange(1, CURVES + 1)[:, None] * (np.arange(mels) + 0.5) / mels)
    curve: NDArray[np.float32] = (rng.standard_normal(CURVES) @ waves * np.sqrt(2 / CURVES)).astype(np.float32)
    return curve


def _band(rng: np.random.Generator, widest: int, size: int) -> tuple[int, int]:
    width = int(rng.integers(0, widest + 1))
    first = int(rng.integers(0, size - width + 1))
    return first, first + width


@lru_cache(maxsize=4)
def _cepstra_and_mels(dims: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Matrices from cepstra to mels and back."""
    to_mels = mel_matrix(dims, max(CEPSTRA_MELS, dims))
    return to_mels, np.linalg.pinv(to_mels)


@lru_cache(maxsize=4)
def warp_matrices(mels: int, warp: float) -> NDArray[np.float32]:
    """(WARPS, F, F): x (T, F) @ matrix reads mel f·α of x, between neighbours linearly, past the top the last one."""
    matrices = np.zeros((WARPS, mels, mels), dtype=np.float32)
    for matrix, factor in zip(matrices, np.linspace(1 - warp, 1 + warp, WARPS), strict=True):
        source = np.minimum(np.arange(mels) * factor, mels - 1)
        low = np.minimum(source.astype(int), mels - 2)
        matrix[low, np.arange(mels)] = 1 - (source - low)
        matrix[low + 1, np.arange(mels)] = source - low
    return matrices
