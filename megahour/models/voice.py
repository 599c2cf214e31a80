"""A voice: turns phones into a log-mel spectrum, with durations, pitch and energy learnt from an alignment.

    phones (B, U) → convolutions → h (B, C, U) ┬ durations, pitch, energy of each phone
                                               └ h of each phone, repeated for each of its frames (B, C, T)
        decoder fast:  convolutions → mels (B, M, T)                          (FastSpeech 2, Ren et al., 2021)
        decoder flow:  a first guess μ, and a flow from noise to mels          (Matcha-TTS, Mehta et al., 2024)

Sizes: B utterances, U phones, T frames, C units, M mels. Mels, pitch and energy are normalised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from megahour.models.joint_chain import ChainBatch, JointChain

DECODERS = ("fast", "flow")
SIGMA = 1e-4  # standard deviation of the noise at the end of a flow
USUAL = 2.0  # initial prediction of the logarithm of a phone's frames
LONGEST = 200  # longest duration of a spoken phone, in frames
STEPS = 8
"""Default number of steps of the flow."""


class VoiceBlock(nn.Module):
    """A depthwise convolution over time and a feed-forward layer, with a residual (ConvNeXt; Liu et al., 2022)."""

    def __init__(self, units: int, width: int, wider: int = 3) -> None:
        super().__init__()
        self.over_time = nn.Conv1d(units, units, width, padding=width // 2, groups=units)
        self.norm = nn.LayerNorm(units)
        self.up, self.down = nn.Linear(units, wider * units), nn.Linear(wider * units, units)

    def forward(self, x: Tensor, mask: Tensor, shift: Tensor | None = None) -> Tensor:
        """`x` (B, T, C), `mask` (B, T, 1), `shift` (B, C) or none."""
        h = self.norm(self.over_time((x * mask).transpose(1, 2)).transpose(1, 2))
        if shift is not None:
            h = h + shift[:, None]
        return (x + self.down(functional.gelu(self.up(h)))) * mask  # type: ignore[no-any-return]


class PhoneReading(nn.Module):
    """Predicts a value for each phone: (B, U, C) → (B, U)."""

    def __init__(self, units: int, usual: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv1d(units, units, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(units) for _ in range(2))
        out = nn.Linear(units, 1)
        nn.init.constant_(out.bias, usual)  # before registration: `build_in_parts` may free it then
        self.out = out

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer, norm in zip((self.first, self.second), self.norms, strict=True):
            x = norm(functional.relu(layer((x * mask).transpose(1, 2))).transpose(1, 2))
        return self.out(x)[:, :, 0] * mask[:, :, 0]  # type: ignore[no-any-return]


class MelDecoder(nn.Module):
    """Decodes frames (B, T, C) to mels (B, T, M), or with `flow` to the velocity of the flow at a point."""

    def __init__(self, units: int, mels: int, layers: int, flow: bool) -> None:
        super().__init__()
        self.enter = nn.Linear(units + 2 * mels if flow else units, units)
        self.blocks = nn.ModuleList(VoiceBlock(units, 9, 2) for _ in range(layers))
        self.out = nn.Linear(units, mels)
        if flow:
            self.time = nn.Sequential(nn.Linear(64, units), nn.GELU(), nn.Linear(units, units), nn.GELU())
            self.shifts = nn.ModuleList(nn.Linear(units, units) for _ in range(layers))

    def forward(self, known: Tensor, mask: Tensor, at: Tensor | None = None) -> Tensor:
        """known: (B, T, C), or (B, T, C + 2 · M) with the guess and the point of the flow. at: (B,) time, 0 to 1."""
        x, time = self.begin(known, mask, at)
        for i in range(len(self.blocks)):
            x = self.layer(i, x, mask, time)
        return self.out(x) * mask  # type: ignore[no-any-return]

    def begin(self, known: Tensor, mask: Tensor, at: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The input (B, T, C) of the first block, and the embedding (B, C) of the time."""
        return self.enter(known) * mask, None if at is None else self.time(_waves(at))

    def layer(self, i: int, x: Tensor, mask: Tensor, time: Tensor | None) -> Tensor:
        return self.blocks[i](x, mask, None if time is None else self.shifts[i](time))  # type: ignore[no-any-return]


def _waves(at: Tensor) -> Tensor:
    """Sinusoidal embedding (B, 64) of times (B,)."""
    angles = 1000.0 * at[:, None] * torch.exp(torch.arange(32, device=at.device) * (-math.log(10_000.0) / 31))
    return torch.cat((angles.sin(), angles.cos()), dim=1)


class ReadPhones(NamedTuple):
    """Encoded phones `h` (B, U, C), and predicted log `durations`, `pitch` and `energy` (B, U)."""

    h: Tensor
    durations: Tensor
    pitch: Tensor
    energy: Tensor


class Drawn(NamedTuple):
    """Random values of a batch: `keep` (B, T, C) of dropout; time `at` (B,) and `noise` (B, T, M) of the flow."""

    keep: Tensor | None = None
    at: Tensor | None = None
    noise: Tensor | None = None


ASIDE = 2  # rows that pass through a pipeline before those of phones or frames: losses so far, and the flow's time


class VoiceModel(JointChain):
    """A voice. symbols, voices, languages: number of each. Symbol 0 is padding. decoder: fast or flow."""

    draws = True
    """A generator draws dropout and the points of the flow."""
    subsample = 1
    streams = recompute = False

    def __init__(
        self,
        symbols: int,
        mels: int,
        units: int,
        layers: int,
        *,
        decoder: str = "flow",
        decoder_layers: int = 8,
        voices: int = 1,
        languages: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.mels, self.width, self.dropout, self.flow = mels, units, dropout, decoder == "flow"
        self.symbol = nn.Embedding(symbols, units)
        self.voice = nn.Embedding(voices, units) if voices > 1 else None
        self.language = nn.Embedding(languages, units) if languages > 1 else None
        self.blocks = nn.ModuleList(VoiceBlock(units, 7) for _ in range(layers))
        self.durations, self.pitch, self.energy = PhoneReading(units, USUAL), PhoneReading(units), PhoneReading(units)
        self.sounding = nn.Linear(2, units)  # pitch and energy
        self.place = nn.Linear(3, units)  # of a frame in its phone
        if self.flow:
            self.guess = nn.Linear(units, mels)
        self.decoder = MelDecoder(units, mels, decoder_layers, self.flow)

    def read(self, phones: Tensor, mask: Tensor, voices: Tensor, languages: Tensor) -> ReadPhones:
        """Encode `phones` (B, U), with `mask` (B, U, 1), `voices` (B,) and `languages` (B,)."""
        x = self._entered(phones, voices, languages)
        for block in self.blocks:
            x = block(x, mask)
        return self._read(x, mask)

    def _entered(self, phones: Tensor, voices: Tensor, languages: Tensor) -> Tensor:
        x: Tensor = self.symbol(phones)
        for table, which in ((self.voice, voices), (self.language, languages)):
            if table is not None:
                x = x + table(which)[:, None]
        return x

    def _read(self, x: Tensor, mask: Tensor) -> ReadPhones:
        aside = x.detach()  # durations are easy to memorise; their gradient would distort the encoder
        return ReadPhones(x, self.durations(aside, mask), self.pitch(x, mask), self.energy(x, mask))

    def frames(self, h: Tensor, sounding: Tensor, durations: Tensor, count: int | Tensor) -> Tensor:
        """Expand phones to T = `count` frames (B, T, C), from `h` (B, U, C), `sounding` (B, U, 2): pitch and energy,
        and integer `durations` (B, U)."""
        ends = durations.cumsum(1)
        times = torch.arange(count, device=h.device)[None]  # type: ignore[arg-type]
        # The number of phones that have ended: as fast as a search, and exportable.
        own = (ends[:, None] <= times[:, :, None]).sum(2).clamp(max=h.shape[1] - 1)
        x = (h + self.sounding(sounding)).gather(1, own[:, :, None].expand(-1, -1, h.shape[2]))
        length = durations.gather(1, own).clamp(min=1).to(x.dtype)
        since = times - (ends - durations).gather(1, own).to(x.dtype)
        at = torch.stack((since / length, (since + 1).log(), (length - since).clamp(min=1).log()), 2)
        return x + self.place(at)  # type: ignore[no-any-return]

    def chain(self) -> list[list[nn.Module]]:
        """The first link of the decoder also reads durations, pitch and energy, and makes frames of phones."""
        tables: list[nn.Module] = [table for table in (self.symbol, self.voice, self.language) if table is not None]
        middle: list[nn.Module] = [self.durations, self.pitch, self.energy, self.sounding, self.place]
        middle.append(self.decoder.enter)
        layers: list[list[nn.Module]] = [[block] for block in self.decoder.blocks]
        if self.flow:
            middle += [self.guess, self.decoder.time]
            layers = [[*layer, shift] for layer, shift in zip(layers, self.decoder.shifts, strict=True)]
        layers[0] = [*middle, *layers[0]]
        return [tables, *([block] for block in self.blocks), *layers, [self.decoder.out]]

    def rows(self, link: int, frames: int, targets: Mapping[str, Tensor]) -> int:
        return ASIDE + (targets["phones"].shape[1] if link <= 1 + len(self.blocks) else frames)

    def through(self, links: range, x: Tensor | None, batch: ChainBatch) -> Tensor:
        """As `JointChain.through`.

        targets: `phones`, `durations`, `pitch` and `energy` (B, U), `voices` and `languages` (B,).
        """
        features, lengths, generator, targets = batch
        said = (targets["phones"] > 0)[:, :, None].to(features.dtype)
        loss, time = torch.zeros(len(features), device=features.device), None
        if x is None:
            x = self._entered(targets["phones"], targets["voices"], targets["languages"])
        else:
            loss, time, x = x[:, 0, 0], x[:, 1] if self.flow else None, x[:, ASIDE:]
        middle, last = 1 + len(self.blocks), 1 + len(self.blocks) + len(self.decoder.blocks)
        for i in range(max(links.start, 1), min(links.stop, middle)):
            x = self.blocks[i - 1](x, said)
        if links.stop <= middle:
            return _passed(loss, time, x)
        mask = (torch.arange(features.shape[1], device=features.device) < lengths[:, None])[:, :, None].to(said)
        drawn = self._drawn(features, generator)
        of_guess = None
        if middle in links:
            of_phones, x = self._frames_of(x, said, targets, features.shape[1])
            loss, (x, time, of_guess) = loss + of_phones, self._led(x, mask, features, drawn)
        for i in range(max(links.start, middle), min(links.stop, last)):
            x = self.decoder.layer(i - middle, x, mask, time)
        if links.stop <= last:
            return _passed(loss if of_guess is None else loss + _mean_of_mels(of_guess, mask), time, x)
        return loss + _mean_of_mels(self._missed(self.decoder.out(x) * mask, features, drawn, of_guess), mask)

    def _frames_of(self, x: Tensor, said: Tensor, targets: Mapping[str, Tensor], count: int) -> tuple[Tensor, Tensor]:
        """Loss (B,) of what is read from phones `x` (B, U, C), and the frames (B, T, C) by their true values."""
        read, durations = self._read(x, said), targets["durations"]
        sounding = torch.stack((targets["pitch"], targets["energy"]), dim=2).to(read.h)
        of_phones = (read.durations - durations.clamp(min=1).log()) ** 2
        of_phones = of_phones + (read.pitch - targets["pitch"]) ** 2 + (read.energy - targets["energy"]) ** 2
        return (of_phones * said[:, :, 0]).float().sum(1), self.frames(read.h, sounding, durations, count)

    def _drawn(self, mel: Tensor, generator: torch.Generator | None) -> Drawn:
        keep = at = noise = None
        if generator is not None and self.dropout:
            keep = torch.rand((*mel.shape[:2], self.width), generator=generator, device=mel.device) >= self.dropout
        if self.flow:
            drawn = torch.Generator(mel.device).manual_seed(0) if generator is None else generator
            at = torch.rand(len(mel), generator=drawn, device=mel.device)
            noise = torch.randn(mel.shape, generator=drawn, device=mel.device)
        return Drawn(keep, at, noise)

    def _led(self, x: Tensor, mask: Tensor, mel: Tensor, drawn: Drawn) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Input of the decoder's first block, embedded time, and weighted squared error (B, T, M) of the guess."""
        if drawn.keep is not None:
            x = x * (drawn.keep / (1 - self.dropout)).to(x)
        if drawn.at is None or drawn.noise is None:
            return *self.decoder.begin(x, mask, None), None
        guess, at = self.guess(x) * mask, drawn.at[:, None, None]
        point = (1 - (1 - SIGMA) * at) * drawn.noise + at * mel
        entered = self.decoder.begin(torch.cat((x, guess, point.to(x)), 2), mask, drawn.at)
        return *entered, 0.5 * (guess - mel) ** 2

    def _missed(self, made: Tensor, mel: Tensor, drawn: Drawn, of_guess: Tensor | None) -> Tensor:
        """Error (B, T, M) of what the decoder made."""
        if drawn.noise is None:
            return (made - mel).abs()
        squared = (made - (mel - (1 - SIGMA) * drawn.noise)) ** 2
        return squared if of_guess is None else squared + of_guess

    def shortest(self) -> dict[str, Tensor]:
        """Targets of the shortest possible utterance: one phone of one frame."""
        one = torch.ones((1, 1), dtype=torch.int64, device=self.symbol.weight.device)
        flat = torch.zeros((1, 1), device=one.device)
        none = torch.zeros(1, dtype=torch.int64, device=one.device)
        return {"phones": one, "durations": one, "pitch": flat, "energy": flat, "voices": none, "languages": none}

    @torch.no_grad()
    def speak(
        self,
        phones: Tensor,
        voice: Tensor,
        language: Tensor,
        *,
        pace: float = 1.0,
        higher: float = 0.0,
        spread: float = 0.667,
        steps: int = STEPS,
        generator: torch.Generator | None = None,
        durations: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Normalised mels (1, T, M) of `phones` (1, U), and the frames (1, U) of each phone.

        pace: 2 is twice as fast. higher: added to the normalised pitch. spread: scale of the flow's initial noise; a
        smaller one is clearer and more monotonous. durations: frames (1, U) instead of the predicted ones.
        """
        said = torch.ones((*phones.shape, 1), device=phones.device)
        read = self.read(phones, said, voice, language)
        if durations is None:
            durations = whole(read.durations.exp() / pace)
        count = int(durations.sum())
        x = self.frames(read.h, torch.stack((read.pitch + higher, read.energy), 2), durations, count)
        noise = torch.randn((1, count, self.mels), generator=generator, device=x.device) if self.flow else None
        return self.decoded(x, None if noise is None else noise * spread, steps), durations

    def decoded(self, x: Tensor, noise: Tensor | None, steps: int) -> Tensor:
        """Normalised mels (1, T, M) of frames `x` (1, T, C). noise: (1, T, M), the start of a flow."""
        mask = torch.ones_like(x[:, :, :1])
        if noise is None:
            return self.decoder(x, mask)  # type: ignore[no-any-return]
        guess, point = self.guess(x), noise
        for step in range(steps):
            at = torch.full((1,), step / steps, device=x.device)
            point = point + self.decoder(torch.cat((x, guess, point), 2), mask, at) / steps
        return point


def whole(frames: Tensor) -> Tensor:
    """Durations rounded to whole frames, from 1 to LONGEST."""
    return frames.round().clamp(1, LONGEST).long()


def _passed(loss: Tensor, time: Tensor | None, x: Tensor) -> Tensor:
    """What passes on in a pipeline, (B, ASIDE + N, C)."""
    first = functional.pad(loss[:, None].to(x), (0, x.shape[2] - 1))
    return torch.cat((first[:, None], (torch.zeros_like(first) if time is None else time.to(x))[:, None], x), 1)


def _mean_of_mels(error: Tensor, mask: Tensor) -> Tensor:
    return (error * mask).float().mean(2).sum(1)


def build_voice(config: Mapping[str, Any], sizes: Mapping[str, int], dropout: float) -> VoiceModel:
    """A freshly initialised module for a configuration of kind voice, whose `sizes` are checked."""
    return VoiceModel(
        len(config["symbols"]),
        sizes["outputs"],
        sizes["units"],
        sizes["layers"],
        decoder=config["decoder"],
        decoder_layers=sizes["decoder_layers"],
        voices=len(config["voices"]),
        languages=len(config["languages"]),
        dropout=dropout,
    )
