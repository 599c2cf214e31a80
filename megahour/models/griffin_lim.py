"""Turns a log-mel spectrum into audio without training: fast Griffin-Lim (Perraudin et al., 2013).

Its Fourier transforms are convolutions, so that it can be exported as part of a graph.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from megahour.features.mel_spectrum import MelSpectrum

MOMENTUM = 0.99
SHARPER = 1.1  # exponent of the magnitudes, which sharpens what the mel filters blurred
SOFT = 0.03
"""Share of a magnitude below which an estimate no longer determines the phase. Such an estimate is mostly rounding
error, which 32 rounds would amplify until two machines give different samples."""


class GriffinLim(nn.Module):
    """Inverse of `MelSpectrum.of`: (B, T, mels) → (B, (T − 1) · shift) samples. It is deterministic."""

    analysis: Tensor
    synthesis: Tensor
    envelope: Tensor
    unfilter: Tensor

    def __init__(self, spectrum: MelSpectrum, rounds: int = 32) -> None:
        super().__init__()
        self.size, self.shift, self.rounds = spectrum.size, spectrum.shift, rounds
        window = torch.from_numpy(spectrum.window)
        angles = 2 * np.pi * torch.arange(self.size // 2 + 1)[:, None] * torch.arange(self.size)[None] / self.size
        waves = torch.cat((angles.cos(), -angles.sin())).float() * window
        twice = torch.full((self.size // 2 + 1,), 2.0 / self.size)
        twice[0] = twice[-1] = 1.0 / self.size
        self.register_buffer("analysis", waves[:, None], persistent=False)
        self.register_buffer("synthesis", (waves * twice.repeat(2)[:, None])[:, None], persistent=False)
        self.register_buffer("envelope", (window**2)[None, None], persistent=False)
        inverse = torch.linalg.pinv(torch.from_numpy(spectrum.filters).double()).float()
        self.register_buffer("unfilter", inverse, persistent=False)

    def sound(self, parts: Tensor, weight: Tensor | None = None) -> Tensor:
        """Real and imaginary parts (B, 2 · bins, T) → samples (B, (T − 1) · shift). weight: their `overlap`."""
        summed = functional.conv_transpose1d(parts, self.synthesis, stride=self.shift)
        weight = self.overlap(parts) if weight is None else weight
        half = self.size // 2
        return (summed / weight)[:, 0, half : summed.shape[2] - half]

    def overlap(self, parts: Tensor) -> Tensor:
        """(B, 1, samples): sum of the squared windows over each sample."""
        weight = functional.conv_transpose1d(torch.ones_like(parts[:, :1]), self.envelope, stride=self.shift)
        return weight.clamp(min=1e-3)

    def parts(self, sound: Tensor) -> Tensor:
        """Inverse of `sound`: (B, samples) → (B, 2 · bins, T)."""
        half = self.size // 2
        padded = functional.pad(sound[:, None], (half, half))
        return functional.conv1d(padded, self.analysis, stride=self.shift)

    def forward(self, mel: Tensor) -> Tensor:
        magnitudes = (mel.exp() @ self.unfilter.T).clamp(min=1e-5).transpose(1, 2) ** SHARPER
        both = torch.cat((magnitudes, magnitudes), dim=1)
        parts = both * self._first_phases(magnitudes)
        before, weight = torch.zeros_like(parts), self.overlap(parts)
        for _ in range(self.rounds):
            found = self.parts(self.sound(parts, weight))
            ahead = found - MOMENTUM / (1 + MOMENTUM) * before
            real, imaginary = ahead.chunk(2, dim=1)
            length = (real * real + imaginary * imaginary + (SOFT * magnitudes) ** 2).sqrt()
            parts, before = both * ahead / torch.cat((length, length), dim=1), found
        return self.sound(parts, weight)

    def _first_phases(self, magnitudes: Tensor) -> Tensor:
        """Cosines and sines of initial phases that advance at the bins' frequencies, from different starts."""
        bins = torch.arange(magnitudes.shape[1], device=magnitudes.device)[:, None]
        frames = torch.cumsum(torch.ones_like(magnitudes[:1, :1]), dim=2)[0] - 1
        turns = torch.remainder(bins * (self.shift / self.size) * frames + 0.618034 * bins * bins, 1.0)
        return torch.cat(((2 * np.pi * turns).cos(), (2 * np.pi * turns).sin()))[None].to(magnitudes)
