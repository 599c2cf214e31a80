"""ESPnet2's encoders with a CTC head, with its names of weights: samples of one sequence in, logits out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from megahour.foreign.espnet_layers import BranchLayer, Layer, norm, sinusoids

SUBSAMPLING = {
    "conv2d1": ((3, 1), (3, 1)),
    "conv2d2": ((3, 2), (3, 1)),
    "conv2d": ((3, 2), (3, 2)),
    "conv2d6": ((3, 2), (5, 3)),
    "conv2d8": ((3, 2), (3, 2), (3, 2)),
}
"""Size and stride of the kernels of each `input_layer`, without padding."""
SMALLEST_POWER = 1e-10  # of a mel filter
LEGACY_FRAMES = 5000  # the older relative positions count down from here


def subsampled(frames: int, input_layer: str) -> int:
    """Output frames of `frames` of features; 0 if they are too few.

    >>> subsampled(100, "conv2d")
    24
    """
    for kernel, stride in SUBSAMPLING[input_layer]:
        frames = max(0, (frames - kernel) // stride + 1)
    return frames


class Buffers(nn.Module):
    """Tensors of a file that are not trained."""

    def __init__(self, **values: torch.Tensor) -> None:
        super().__init__()
        for name, value in values.items():
            self.register_buffer(name, value)


class EspnetCtc(nn.Module):
    """Front end, encoder and CTC head. Dropout and augmentation of the training are left out.

    The settings are those of `espnet_settings.settings_of`. outputs: number of tokens.
    """

    def __init__(
        self, front_end: Mapping[str, Any], normalise: Mapping[str, Any], encoder: Mapping[str, Any], outputs: int
    ) -> None:
        super().__init__()
        self._front, self._normalise, self._input_layer = dict(front_end), dict(normalise), encoder["input_layer"]
        mels = int(front_end["n_mels"])
        self.frontend = nn.ModuleDict({"logmel": Buffers(melmat=torch.zeros(front_end["n_fft"] // 2 + 1, mels))})
        if normalise["kind"] == "global":
            self.normalize = Buffers(mean=torch.zeros(mels), std=torch.ones(mels))
        self.encoder, self.outputs = EspnetEncoder(encoder, mels), outputs
        self.ctc = nn.ModuleDict({"ctc_lo": nn.Linear(encoder["output_size"], outputs)})

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Samples (n,) → logits (T', V); none of too few samples."""
        front = self._front
        frames = (len(samples) - (0 if front["center"] else front["n_fft"])) // front["hop_length"] + 1
        if len(samples) <= front["n_fft"] // 2 or not subsampled(frames, self._input_layer):
            return samples.new_zeros(0, self.outputs)
        logits: torch.Tensor = self.ctc["ctc_lo"](self.encoder(self.normalised(self.log_mel(samples))))
        return logits

    def log_mel(self, samples: torch.Tensor) -> torch.Tensor:
        """Samples (n,) → (T, mels)."""
        front = self._front
        window = torch.ones(front["win_length"], device=samples.device)
        if front["window"]:
            window = getattr(torch, f"{front['window']}_window")(front["win_length"], device=samples.device)
        spectrum = torch.stft(
            samples,
            front["n_fft"],
            hop_length=front["hop_length"],
            win_length=front["win_length"],
            window=window,
            center=front["center"],
            normalized=front["normalized"],
            return_complex=True,
        )
        power = spectrum.real.square() + spectrum.imag.square()
        return (power.T @ self.get_buffer("frontend.logmel.melmat")).clamp(min=SMALLEST_POWER).log()

    def normalised(self, x: torch.Tensor) -> torch.Tensor:
        """Features (T, mels) less their mean, over their deviation: those of the training, or of this sequence."""
        means, variances = self._normalise["means"], self._normalise["vars"]
        if self._normalise["kind"] == "global":
            x = x - self.get_buffer("normalize.mean") if means else x
            return x / self.get_buffer("normalize.std") if variances else x
        if self._normalise["kind"] == "utterance":
            x = x - x.mean(dim=0)
            return x / x.square().mean(dim=0).sqrt().clamp(min=1e-20) if variances else x
        return x


class EspnetEncoder(nn.Module):
    """Subsampling by convolutions, positions, and layers of attention."""

    def __init__(self, settings: Mapping[str, Any], mels: int) -> None:
        super().__init__()
        size, kernels = settings["output_size"], SUBSAMPLING[settings["input_layer"]]
        self.positions, self.size = settings["positions"], size
        convolutions: list[nn.Module] = []
        for i, (kernel, stride) in enumerate(kernels):
            convolutions += [nn.Conv2d(size if i else 1, size, kernel, stride), nn.ReLU()]
        joined = nn.Linear(size * subsampled(mels, settings["input_layer"]), size)
        self.embed = nn.ModuleDict({"conv": nn.Sequential(*convolutions), "out": joined})
        layer = BranchLayer if settings["kind"] == "e_branchformer" else Layer
        self.encoders = nn.ModuleList(layer(settings) for _ in range(settings["num_blocks"]))
        self.after_norm = norm(size) if settings["normalize_before"] else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features (T, mels) → (T', size)."""
        x = self.embed["conv"](x[None, None])[0]  # (size, T', mels')
        x = self.embed["out"](x.transpose(0, 1).flatten(1)) * math.sqrt(self.size)
        count, relative = len(x), None
        if self.positions == "absolute":
            x = x + sinusoids(torch.arange(count, device=x.device), self.size)
        elif self.positions == "relative":
            relative = sinusoids(torch.arange(count - 1, -count, -1, device=x.device), self.size)
        else:
            first = max(LEGACY_FRAMES, count) - 1
            relative = sinusoids(torch.arange(first, first - count, -1, device=x.device), self.size)
        for layer in self.encoders:
            x = layer(x, relative)
        result: torch.Tensor = self.after_norm(x)
        return result
