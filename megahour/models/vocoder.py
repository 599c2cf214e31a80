"""A trained vocoder: convolutions refine the spectrum that a few rounds of Griffin-Lim find.

    log mels (B, T, M) → Griffin-Lim, `rounds` → spectrum (B, bins, T) complex
    log mels, log magnitudes, advance of the phases → ConvNeXt blocks at frame rate → gain and turn of each bin
    spectrum · gain · turn → inverse transform → samples                      (Vocos; Siuzdak, 2024)

Initially, gains and turns change nothing, so training starts from Griffin-Lim (a first guess of the phases; Masuyama et
al., 2019). The vocoder is trained against discriminators, which are part of the model, like HiFi-GAN (Kong et al.,
2020): on the samples at several periods, and on spectra of several resolutions. One backward pass trains both sides;
each treats the other's weights as constants.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from megahour.features.mel_spectrum import FLOOR, MelSpectrum
from megahour.models.griffin_lim import GriffinLim
from megahour.models.joint_chain import ChainBatch, JointChain
from megahour.models.voice import VoiceBlock

PERIODS = (2, 3, 5)
SIZES = (64, 128, 256, 512, 1024)
"""FFT sizes of the spectra in the loss. Discriminators use all but the first and the last."""
SEGMENT = 48  # frames of each utterance per training step
NOISE = 0.1  # added to normalised mels in training: mels of voices are less clear than those of recordings
SPECTRA, FEATURES, FOOLED = 15.0, 1.0, 1.0  # weights of the losses
LEAST = 1e-5


class Vocoder(nn.Module):
    """Log mels (B, T, M) → (B, (T − 1) · shift) samples, like `GriffinLim`. It is deterministic."""

    def __init__(
        self,
        spectrum: MelSpectrum,
        stats: Mapping[str, Sequence[float]],
        units: int,
        layers: int,
        rounds: int,
    ) -> None:
        super().__init__()
        with torch.device("cpu"):  # tables need values even on the meta device
            self.first = GriffinLim(spectrum, rounds)
            for name in ("mean", "inv_std"):
                self.register_buffer(name, torch.tensor(stats[name], dtype=torch.float32), persistent=False)
        self.mean: Tensor
        self.inv_std: Tensor
        self.bins, self.units = spectrum.size // 2 + 1, units
        self.enter = nn.Linear(spectrum.mels + 5 * self.bins, units)
        self.blocks = nn.ModuleList(VoiceBlock(units, 7) for _ in range(layers))
        self.norm = nn.LayerNorm(units)
        out = nn.Linear(units, 3 * self.bins)
        nn.init.zeros_(out.weight)  # before registration: `build_in_parts` may free it then
        nn.init.zeros_(out.bias)
        self.out = out

    def forward(self, mel: Tensor) -> Tensor:
        with torch.no_grad():
            parts = self.first.parts(self.first(mel))
        return self.refined((mel - self.mean) * self.inv_std, parts)

    def refined(self, mel: Tensor, parts: Tensor) -> Tensor:
        """Samples from normalised `mel` (B, T, M) and the guessed spectrum (B, 2 · bins, T), real and imaginary."""
        x = self.entered(mel, parts)
        for i in range(len(self.blocks)):
            x = self.layer(i, x)
        return self.left(x, parts)

    def entered(self, mel: Tensor, parts: Tensor) -> Tensor:
        """The input (B, T, C) of the first block."""
        real, imaginary = parts.transpose(1, 2).chunk(2, dim=2)
        power = real * real + imaginary * imaginary
        size = (power + LEAST).sqrt()
        cosine, sine = real / size, imaginary / size
        known = [mel, size.log()]
        for before in ((0, 0, 1, -1), (1, -1)):  # how phases advance from frame to frame, and from bin to bin
            earlier = functional.pad(cosine, before), functional.pad(sine, before)
            known += _product(cosine, sine, earlier[0], -earlier[1])
        return self.enter(torch.cat(known, 2))  # type: ignore[no-any-return]

    def layer(self, i: int, x: Tensor) -> Tensor:
        return self.blocks[i](x, torch.ones_like(x[:, :, :1]))  # type: ignore[no-any-return]

    def left(self, x: Tensor, parts: Tensor) -> Tensor:
        """Samples from the last block's output (B, T, C)."""
        real, imaginary = parts.transpose(1, 2).chunk(2, dim=2)
        gain, ahead, aside = self.out(self.norm(x)).chunk(3, dim=2)
        ahead = 1 + ahead
        turn = gain.clamp(-4, 2).exp() / (ahead * ahead + aside * aside + LEAST).sqrt()
        real, imaginary = _product(real, imaginary, ahead * turn, aside * turn)
        return self.first.sound(torch.cat((real, imaginary), 2).transpose(1, 2))


def _product(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """(a + bi) · (c + di)."""
    return a * c - b * d, a * d + b * c


class PeriodJudge(nn.Module):
    """Discriminator of every `period`-th sample. Returns the outputs of its layers; the last is the decision."""

    def __init__(self, period: int, units: int) -> None:
        super().__init__()
        self.period = period
        sizes = (1, units, 2 * units, 4 * units)
        self.layers = nn.ModuleList(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0)) for a, b in pairwise(sizes))
        self.out = nn.Conv2d(sizes[-1], 1, (3, 1), padding=(1, 0))

    def forward(self, sound: Tensor) -> list[Tensor]:
        x = functional.pad(sound, (0, -sound.shape[1] % self.period)).reshape(len(sound), 1, -1, self.period)
        return _judged(x, self.layers, self.out)


class SpectrumJudge(nn.Module):
    """Discriminator of the spectrum with windows of `size`. Returns its layers' outputs; the last is the decision."""

    def __init__(self, size: int, units: int) -> None:
        super().__init__()
        self.size = size
        self.layers = nn.ModuleList(
            nn.Conv2d(1 if first else units, units, (3, 7), (1, 1 if first else 2), (1, 3))
            for first in (True, False, False)
        )
        self.out = nn.Conv2d(units, 1, 3, padding=1)

    def forward(self, sound: Tensor) -> list[Tensor]:
        return _judged(magnitudes(sound, self.size).log().transpose(1, 2)[:, None], self.layers, self.out)


def _judged(x: Tensor, layers: nn.ModuleList, out: nn.Module) -> list[Tensor]:
    outputs = []
    for layer in layers:
        x = functional.leaky_relu(layer(x), 0.1)
        outputs.append(x)
    return [*outputs, out(x)]


def magnitudes(sound: Tensor, size: int) -> Tensor:
    """Magnitudes (B, bins, frames) of `sound` (B, N), with Hann windows of `size` every `size` / 4."""
    window = torch.hann_window(size, device=sound.device)
    parts = torch.view_as_real(torch.stft(sound, size, size // 4, window=window, return_complex=True))
    return (parts.square().sum(-1) + LEAST**2).sqrt()


class VocoderModel(JointChain):
    """A vocoder and the discriminators that train it."""

    draws = True
    """A generator draws the segment of each utterance and noise."""
    subsample = 1
    streams = recompute = False
    judges_in_parts = False
    """Whether workers hold the weights of the discriminators in parts and gather them (FSDP)."""

    def __init__(self, vocoder: Vocoder, judge_units: int) -> None:
        super().__init__()
        self.vocoder, self.shift, self.width = vocoder, vocoder.first.shift, vocoder.units
        self.judges = nn.ModuleList(
            [PeriodJudge(period, judge_units) for period in PERIODS]
            + [SpectrumJudge(size, judge_units) for size in SIZES[1:-1]]
        )

    def chain(self) -> list[list[nn.Module]]:
        """The last link has the discriminators, too."""
        head = [self.vocoder.norm, self.vocoder.out, *self.judges]
        return [[self.vocoder.enter], *([block] for block in self.vocoder.blocks), head]

    def rows(self, link: int, frames: int, targets: Mapping[str, Tensor]) -> int:
        return SEGMENT

    def through(self, links: range, x: Tensor | None, batch: ChainBatch) -> Tensor:
        """As `JointChain.through`: the loss per frame of a segment, times `lengths` (B,).

        features: normalised mels. targets: `sound` (B, T · shift). Without a generator, the loss is the distance of the
        spectra alone. The first and the last link both find the guessed spectrum.
        """
        features, lengths, generator, targets = batch
        last = 1 + len(self.vocoder.blocks)
        if x is None or last in links:
            mel, real = self._segments(features, lengths, targets["sound"], generator)
            with torch.no_grad():
                first = self.vocoder.first
                parts = first.parts(first(mel / self.vocoder.inv_std + self.vocoder.mean))
        if x is None:
            if generator is not None:
                mel = mel + NOISE * torch.randn(mel.shape, generator=generator, device=mel.device)
            x = self.vocoder.entered(mel, parts)
        for i in range(max(links.start, 1), min(links.stop, last)):
            x = self.vocoder.layer(i - 1, x)
        if links.stop <= last:
            return x
        made = self.vocoder.left(x, parts).float()
        each = SPECTRA * spectral_distance(made, real)
        if generator is not None:
            for judge in self.judges:
                each = each + _learnt(judge, made, real, self.judges_in_parts)
        return each * lengths

    def shortest(self) -> dict[str, Tensor]:
        """Targets of the shortest possible utterance: one frame."""
        return {"sound": torch.zeros((1, self.shift), device=self.vocoder.out.weight.device)}

    def _segments(
        self, features: Tensor, lengths: Tensor, sound: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """A segment of each utterance, (B, SEGMENT, M) and (B, (SEGMENT − 1) · shift), padded with silence."""
        drawn = torch.Generator(features.device).manual_seed(0) if generator is None else generator
        at = torch.rand(len(features), generator=drawn, device=features.device)
        starts = (at * (lengths - SEGMENT + 1).clamp(min=1)).long()[:, None]
        frames = starts + torch.arange(SEGMENT, device=features.device)
        there = (frames < lengths[:, None])[:, :, None]
        own = frames.clamp(max=features.shape[1] - 1)[:, :, None].expand(-1, -1, features.shape[2])
        silence = (float(np.log(FLOOR)) - self.vocoder.mean) * self.vocoder.inv_std
        mel = torch.where(there, features.float().gather(1, own), silence)
        samples = starts * self.shift + torch.arange((SEGMENT - 1) * self.shift, device=features.device)
        heard = samples < ((lengths - 1) * self.shift)[:, None]
        return mel, sound.gather(1, samples.clamp(max=sound.shape[1] - 1)) * heard


def spectral_distance(made: Tensor, real: Tensor) -> Tensor:
    """Distance (B,) of the spectra of (B, N) in nats and amplitude, mean over `SIZES` (Yamamoto et al., 2020)."""
    total = torch.zeros(len(made), device=made.device)
    for size in SIZES:
        one, other = magnitudes(made, size).clamp(min=1e-3), magnitudes(real, size).clamp(min=1e-3)
        total = total + (one.log() - other.log()).abs().mean((1, 2)) + 0.5 * (one - other).abs().mean((1, 2))
    return total / len(SIZES)


def _learnt(judge: nn.Module, made: Tensor, real: Tensor, in_parts: bool) -> Tensor:
    """(B,): losses of the discriminator (least squares; Mao et al., 2017), and of the vocoder against it."""
    of_real, of_made = judge(real), judge(made.detach())
    learns = ((1 - of_real[-1]).square() + of_made[-1].square()).mean((1, 2, 3))
    if in_parts:  # no constants can take the place of its weights: take their gradient off again
        fooled, near = (
            one - other + other.detach()
            for one, other in zip(_fooled(judge(made), of_real), _fooled(of_made, of_real), strict=True)
        )
    else:
        fooled, near = _fooled(_constant(judge)(made), of_real)
    loss: Tensor = learns + FOOLED * fooled + FEATURES * near
    return loss


def _constant(judge: nn.Module) -> nn.Module:
    """The same discriminator with constant weights. A copy, since other threads train the original."""
    return copy.deepcopy(judge, {id(weight): weight.detach() for weight in judge.parameters()})


def _fooled(of_made: Sequence[Tensor], of_real: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Losses (B,) of the vocoder by a discriminator's decisions, and by its other layers' outputs."""
    pairs = zip(of_made[:-1], of_real[:-1], strict=True)
    near = [(one - other.detach()).abs().mean((1, 2, 3)) for one, other in pairs]
    return (1 - of_made[-1]).square().mean((1, 2, 3)), torch.stack(near).mean(0)


def build_vocoder(config: Mapping[str, Any], sizes: Mapping[str, int]) -> VocoderModel:
    """A freshly initialised module for a configuration of kind vocoder, whose `sizes` are checked."""
    spectrum = MelSpectrum.from_config(config["spectrum"])
    vocoder = Vocoder(spectrum, config["stats"], sizes["units"], sizes["layers"], sizes["rounds"])
    return VocoderModel(vocoder, sizes["judge_units"])
