"""What the exported graphs of a voice compute: tokens to samples (VITS form), or to mels, and mels to samples (Matcha).

sherpa-onnx's front end of lexicons (version 2.0.1) puts a token " " after each word, which is no pause to our voices,
cuts a text at . ; ! ? : and -, and leaves out words that the lexicon lacks. That of Matcha writes no " ", and cuts at
, . ! ? and :, unless it is told to take all sentences at once. So `tokens.txt` says

    0       " ", which the graph drops
    1       a pause: , and what cuts a text without ending a sentence
    2 …     phones, by their numbers in the model
    N       the end of a sentence: a pause, and silence after it

and the graph puts pauses around what is said, as `megahour.tts.script` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from megahour.models.voice import STEPS, VoiceModel, whole
from megahour.tts.script import SENTENCE_S
from megahour.tts.speaking import LOUDEST, Speaker

SPACE, PAUSE_NUMBER = 0, 1
ENDS, PAUSES = ".!?", ",;:-"
"""Marks that sherpa-onnx knows: of sentences' ends, and of pauses within them."""
SILENT = -20.0
"""Log mel of a frame between sentences: far below `features.mel_spectrum.FLOOR`, where no model leads."""


class _TokenGraph(nn.Module):
    """From `x` (1, U) of tokens to mels (1, T, M) of what is said."""

    free: Mapping[str, Mapping[int, str]]

    def __init__(self, speaker: Speaker, language: str, names: tuple[str, ...]) -> None:
        super().__init__()
        module = speaker.module
        self.inputs = (*names, "sid") if module.voice is not None else names
        self.voice: VoiceModel = module
        stats = speaker.config["stats"]
        for name in ("mean", "inv_std"):
            self.register_buffer(name, torch.tensor(stats[name], dtype=torch.float32))
        self.mean: Tensor
        self.inv_std: Tensor
        self.end = len(speaker.symbols)
        self.language = speaker.config["languages"].index(language)

    def example(self) -> tuple[Tensor, ...]:
        """Inputs to trace it with."""
        one = torch.ones(1)
        x = torch.tensor([[2, SPACE, PAUSE_NUMBER, 2, SPACE, 2, self.end, SPACE]])
        known = {"x": x, "x_length": torch.tensor([x.shape[1]]), "sid": torch.tensor([0])}
        return tuple(known.get(name, one) for name in self.inputs)

    def said(
        self, x: Tensor, x_length: Tensor, noise_scale: Tensor, length_scale: Tensor, sid: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mels (1, T, M), frames (1, U') of each symbol, whether there are phones among them, and a sentence's end."""
        given = x[0]
        ended = (given == self.end).long().sum().clamp(max=1)
        phones = self._phones(given)[None]
        voice = torch.zeros_like(x_length) if sid is None else sid
        language = torch.full_like(x_length, self.language)
        said = torch.ones_like(phones).to(self.mean)[:, :, None]
        read = self.voice.read(phones, said, voice, language)
        durations = whole(read.durations.exp() * length_scale)
        sounding = torch.stack((read.pitch, read.energy), 2)
        frames = self.voice.frames(read.h, sounding, durations, durations.sum())
        noise = torch.randn_like(frames[:, :, :1].expand(-1, -1, self.voice.mels)) * noise_scale
        mel = self.voice.decoded(frames, noise if self.voice.flow else None, STEPS)
        some = (phones > PAUSE_NUMBER).long().sum().clamp(max=1)  # nothing is heard of pauses alone
        return mel / self.inv_std + self.mean, durations, some, ended

    def _phones(self, given: Tensor) -> Tensor:
        """(U',): what is said, with one pause before and after it and at most one between."""
        kept = given[given != SPACE]
        edge = torch.full_like(given[:1], PAUSE_NUMBER)
        kept = torch.cat((edge, torch.where(kept == self.end, edge, kept), edge))
        pause = kept == PAUSE_NUMBER
        again = torch.cat((torch.zeros_like(pause[:1]), pause[1:] & pause[:-1]))
        return kept[~again]


class VoiceGraph(_TokenGraph):
    """`x` (1, U) of tokens to samples `y` (1, N) in -1 … 1, and the `frames` (1, U') of what is said.

    noise_scale: `spread` of a flow's noise; length_scale: how much slower; sid: which of several voices. `x_length` and
    `noise_scale_w` are there for the form's sake.
    """

    outputs = ("y", "frames")
    free = MappingProxyType({"x": {1: "U"}, "y": {1: "N"}, "frames": {1: "U'"}})

    def __init__(self, speaker: Speaker, language: str) -> None:
        super().__init__(speaker, language, ("x", "x_length", "noise_scale", "length_scale", "noise_scale_w"))
        self.vocoder = speaker.vocoder
        self.register_buffer("silence", torch.zeros(1, round(SENTENCE_S * speaker.rate_hz)))
        self.silence: Tensor

    def forward(
        self, x: Tensor, x_length: Tensor, noise_scale: Tensor, length_scale: Tensor, noise_scale_w: Tensor,
        sid: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        mel, durations, some, ended = self.said(x, x_length, noise_scale, length_scale, sid)
        sound = at_most_full(self.vocoder(mel))
        return torch.cat(
            (sound[:, : some * sound.shape[1]], self.silence[:, : some * ended * self.silence.shape[1]]), 1
        ), durations


class AcousticGraph(_TokenGraph):
    """`x` (1, U) of tokens to log mels `mel` (1, M, T), and the `frames` (1, U') of what is said: Matcha's first half.

    The silence after a sentence is frames of SILENT, for which any vocoder makes silence and `VocoderGraph` zeros.
    """

    outputs = ("mel", "frames")
    free = MappingProxyType({"x": {1: "U"}, "mel": {2: "T"}, "frames": {1: "U'"}})

    def __init__(self, speaker: Speaker, language: str) -> None:
        super().__init__(speaker, language, ("x", "x_length", "noise_scale", "length_scale"))
        self.register_buffer("silence", torch.full((1, round(100 * SENTENCE_S), self.voice.mels), SILENT))
        self.silence: Tensor

    def forward(
        self, x: Tensor, x_length: Tensor, noise_scale: Tensor, length_scale: Tensor, sid: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        mel, durations, some, ended = self.said(x, x_length, noise_scale, length_scale, sid)
        silence = self.silence[:, : some * ended * self.silence.shape[1]]
        return torch.cat((mel, silence), 1).transpose(1, 2), durations


class VocoderGraph(nn.Module):
    """Log mels `mel` (1, M, T) to samples `audio` (1, N) in -1 … 1: Matcha's second half."""

    inputs, outputs = ("mel",), ("audio",)
    free: Mapping[str, Mapping[int, str]] = MappingProxyType({"mel": {2: "T"}, "audio": {1: "N"}})

    def __init__(self, speaker: Speaker) -> None:
        super().__init__()
        self.vocoder, self.mels, self.shift = speaker.vocoder, speaker.spectrum.mels, speaker.spectrum.shift

    def example(self) -> tuple[Tensor, ...]:
        """Inputs to trace it with."""
        return (torch.cat((torch.zeros(1, self.mels, 9), torch.full((1, self.mels, 2), SILENT)), 2),)

    def forward(self, mel: Tensor) -> Tensor:
        silent = mel[:, 0] <= SILENT
        sound = at_most_full(self.vocoder(mel.transpose(1, 2)[:, ~silent[0]]))
        after = torch.zeros_like(mel[:, 0][silent])[:, None].expand(-1, self.shift)
        return torch.cat((sound, after.flatten()[None]), 1)


def at_most_full(sound: Tensor) -> Tensor:
    """(1, N), made quieter where a sample would be clipped."""
    return sound * (LOUDEST / sound.abs().amax().clamp(min=LOUDEST))
