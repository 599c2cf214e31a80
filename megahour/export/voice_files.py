"""Write the files of a voice's bundle that sherpa-onnx reads: graphs with metadata, lexicon, tokens.

According to its sources, sherpa-onnx 2.0.1 has two lexicon front ends. The one for VITS takes phone names as they are.
The one for Matcha splits a phone's name into letters unless it ends in a digit or a Latin letter, and then has no
tokens for diacritics; so in the Matcha form each phone's name ends in its number.

Exported graphs of a voice: tokens to samples (VITS form), or tokens to mels and mels to samples (Matcha form).

sherpa-onnx's lexicon front end for VITS (version 2.0.1) adds a token " " after each word, which is not a pause to our
voices, splits a text at . ; ! ? : and -, and skips words that the lexicon lacks. The one for Matcha writes no " ", and
splits at , . ! ? and : unless it is set to pass all sentences at once. So `tokens.txt` defines

    0       " ", which the graph drops
    1       a pause: the comma, and marks that split a text within a sentence
    2 …     phones, numbered as in the model
    N       the end of a sentence: a pause, then silence

and the graph puts pauses before and after the speech, as `megahour.tts.script` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from megahour.export import quantise
from megahour.export.onnx_file import set_metadata, shorten, write_onnx
from megahour.export.origin import ModelOrigin
from megahour.models.voice import STEPS, VoiceModel, whole
from megahour.tts.script import SENTENCE_S
from megahour.tts.sound_file import NOTICE
from megahour.tts.speaking import LOUDEST, Speaker
from megahour.tts.voice_bundle import FILES, VOCODER, Form, Precision
from megahour.units.lexicon import write_lexicon

SPACE, PAUSE_NUMBER = 0, 1
ENDS, PAUSES = ".!?", ",;:-"
"""Punctuation that sherpa-onnx splits at: ends of sentences, and pauses within them."""
SILENT = -20.0
"""Log mel of a frame between sentences: far below `features.mel_spectrum.FLOOR`, so no model outputs it."""


class _TokenGraph(nn.Module):
    """Base of graphs that turn tokens `x` (1, U) into mels (1, T, M)."""

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
        """Example inputs for tracing."""
        one = torch.ones(1)
        x = torch.tensor([[2, SPACE, PAUSE_NUMBER, 2, SPACE, 2, self.end, SPACE]])
        known = {"x": x, "x_length": torch.tensor([x.shape[1]]), "sid": torch.tensor([0])}
        return tuple(known.get(name, one) for name in self.inputs)

    def said(
        self, x: Tensor, x_length: Tensor, noise_scale: Tensor, length_scale: Tensor, sid: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mels (1, T, M), frames of each symbol (1, U'), and two 0/1 flags: has a phone, has an end of a sentence."""
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
        some = (phones > PAUSE_NUMBER).long().sum().clamp(max=1)  # 0 mutes a text that has only pauses
        return mel / self.inv_std + self.mean, durations, some, ended

    def _phones(self, given: Tensor) -> Tensor:
        """Symbols (U',) without spaces, with a pause at either end and no two pauses in a row."""
        kept = given[given != SPACE]
        edge = torch.full_like(given[:1], PAUSE_NUMBER)
        kept = torch.cat((edge, torch.where(kept == self.end, edge, kept), edge))
        pause = kept == PAUSE_NUMBER
        again = torch.cat((torch.zeros_like(pause[:1]), pause[1:] & pause[:-1]))
        return kept[~again]


class VoiceGraph(_TokenGraph):
    """Tokens `x` (1, U) to samples `y` (1, N) in -1 … 1, and the `frames` (1, U') of each symbol.

    noise_scale: `spread` of a flow's noise; length_scale: factor on durations; sid: which of the model's voices. The
    VITS form requires `x_length` and `noise_scale_w`, but they have no effect.
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
    """Tokens `x` (1, U) to log mels `mel` (1, M, T), and the `frames` (1, U') of each symbol: the first Matcha graph.

    The silence after a sentence is frames of SILENT: any vocoder turns them into silence, `VocoderGraph` into zeros.
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
    """Log mels `mel` (1, M, T) to samples `audio` (1, N) in -1 … 1: the second Matcha graph."""

    inputs, outputs = ("mel",), ("audio",)
    free: Mapping[str, Mapping[int, str]] = MappingProxyType({"mel": {2: "T"}, "audio": {1: "N"}})

    def __init__(self, speaker: Speaker) -> None:
        super().__init__()
        self.vocoder, self.mels, self.shift = speaker.vocoder, speaker.spectrum.mels, speaker.spectrum.shift

    def example(self) -> tuple[Tensor, ...]:
        """Example inputs for tracing."""
        return (torch.cat((torch.zeros(1, self.mels, 9), torch.full((1, self.mels, 2), SILENT)), 2),)

    def forward(self, mel: Tensor) -> Tensor:
        silent = mel[:, 0] <= SILENT
        sound = at_most_full(self.vocoder(mel.transpose(1, 2)[:, ~silent[0]]))
        after = torch.zeros_like(mel[:, 0][silent])[:, None].expand(-1, self.shift)
        return torch.cat((sound, after.flatten()[None]), 1)


def at_most_full(sound: Tensor) -> Tensor:
    """Scale samples (1, N) down if their peak would clip."""
    return sound * (LOUDEST / sound.abs().amax().clamp(min=LOUDEST))


_TOLD: dict[Form, dict[str, Any]] = {
    "vits": {"model_type": "vits", "add_blank": 0, "punctuation": " ".join(PAUSES + ENDS), "voice": ""},
    # Up to version 1, "jieba" selects the lexicon front end.
    "matcha": {"model_type": "matcha-tts", "version": 1, "jieba": 1, "use_eos_bos": 0, "pad_id": SPACE},
}


def write_words(folder: Path, form: Form, phones: Mapping[str, Sequence[str]], symbols: Sequence[str]) -> None:
    """Write the lexicon and tokens of one form. phones: by word; symbols: the voice's, indexed by number."""
    names = {symbol: symbol if form == "vits" else f"{symbol}{number}" for number, symbol in enumerate(symbols)}
    lexicon, tokens = (folder / name for name in FILES[form])
    lexicon.parent.mkdir(exist_ok=True)
    lexicon.write_text(write_lexicon({word: [[names[each] for each in own]] for word, own in phones.items()}), "utf-8")
    lines = [f"  {SPACE}"]
    lines += [f"{names[symbol]} {number}" for number, symbol in enumerate(symbols) if number > PAUSE_NUMBER]
    lines += [f"{mark} {PAUSE_NUMBER}" for mark in PAUSES] + [f"{mark} {len(symbols)}" for mark in ENDS]
    tokens.write_text("\n".join(lines) + "\n", "utf-8")


def write_graphs(
    folder: Path, form: Form, speaker: Speaker, language: str, precisions: Sequence[Precision]
) -> dict[Precision, str]:
    """Write the graphs of a form; returns its files by precision. Matcha's vocoder is written in fp32 only."""
    graph = VoiceGraph(speaker, language) if form == "vits" else AcousticGraph(speaker, language)
    name = "model" if form == "vits" else "matcha/acoustic"
    path = folder / f"{name}.onnx"
    write_onnx(graph, graph.example(), graph.free, path)
    files: dict[Precision, str] = {"fp32": f"{name}.onnx"}
    for precision in precisions:
        if precision not in files:
            files[precision] = f"{name}.{precision}.onnx"
            smaller = quantise.to_fp16 if precision == "fp16" else quantise.to_int8
            smaller(path, folder / files[precision])
            shorten(folder / files[precision])
    if form == "matcha":
        vocoder = VocoderGraph(speaker)
        write_onnx(vocoder, vocoder.example(), vocoder.free, folder / VOCODER)
        set_metadata(folder / VOCODER, {"model_type": "hifigan", "sample_rate": speaker.rate_hz, "comment": NOTICE})
    return files


def sherpa_metadata(speaker: Speaker, origin: ModelOrigin, language: str, form: Form) -> dict[str, Any]:
    """Metadata of a voice graph: first what sherpa-onnx reads, then what people should know.

    `comment` is fixed: sherpa-onnx searches it for toolkit names, and an attribution with one would mislead it.
    """
    licences = licences_of(speaker, origin)
    return {
        **_TOLD[form],
        "has_espeak": 0,
        "comment": NOTICE,
        "language": language,
        "sample_rate": speaker.rate_hz,
        "n_speakers": len(speaker.voices),
        "synthetic": f"what this model says is {NOTICE}: say so to those who hear it",
        "speakers": ", ".join(speaker.voices),
        "license": " AND ".join(dict.fromkeys(each["licence"] for each in licences)),
        "attribution": "; ".join(dict.fromkeys(each["attribution"] for each in licences if each["attribution"])),
    }


def licences_of(speaker: Speaker, origin: ModelOrigin) -> list[dict[str, Any]]:
    """Licences and attributions of the voice's training data; without a run, only the licences."""
    named = {each["licence"] for each in origin.licences}
    own = [{"licence": each, "attribution": ""} for each in speaker.config.get("licences", []) if each not in named]
    return [*origin.licences, *own]
