"""Speak with a voice: text → phones → mels → sound, sentence by sentence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.core.records import key_of
from megahour.core.store import Artifact
from megahour.features.mel_spectrum import MelSpectrum
from megahour.models.configuration import read_config
from megahour.models.inference import restore
from megahour.models.read_vocoder import vocoder_at
from megahour.models.voice import STEPS, VoiceModel
from megahour.tts.phones import Pronounce
from megahour.tts.script import Reader, SpokenPiece
from megahour.units.lexicon import Lexicon

LOUDEST = 0.99
KEPT_WORDS = 1 << 16  # pronunciations by rules that stay in memory; each costs espeak-ng some milliseconds
LN_SEMITONE = float(np.log(2) / 12)


@dataclass(frozen=True)
class Manner:
    """How to speak. pace: 2 is twice as fast; semitones: pitch shift upwards; spread, steps: see `VoiceModel.speak`.

    speaker, language: one of the model's `voices` and `languages`; "" means the first.
    """

    speaker: str = ""
    language: str = ""
    pace: float = 1.0
    semitones: float = 0.0
    spread: float = 0.667
    steps: int = STEPS
    seed: int = 0


@dataclass(frozen=True)
class Spoken:
    """A spoken piece: `samples` (N,) in -1 … 1, and the number of frames of each of its symbols."""

    piece: SpokenPiece
    samples: NDArray[np.float32]
    frames: list[int]


class AnySpeaker(ABC):
    """A trained model or an exported bundle that speaks. The first voice and language are the default."""

    url: str
    pronounce: Pronounce
    voices: list[str]
    languages: list[str]

    @property
    @abstractmethod
    def rate_hz(self) -> int:
        """Sampling rate of the speech."""

    @abstractmethod
    def sound(self, piece: SpokenPiece, manner: Manner, number: int) -> tuple[NDArray[np.float32], list[int]]:
        """Synthesise a piece that has symbols: samples (N,), peak not limited, and the frames of each symbol."""

    def ready(self, manner: Manner) -> None:  # noqa: B027 — most have loaded all already
        """Load what speaking in this manner still needs, so that it does not count as time to speak."""

    def reader(self, language: str = "") -> Reader:
        """A reader of texts in `language`; "" means the voice's first language."""
        named = language or self.languages[0]
        return Reader(self.pronouncer(named), named)

    def pronouncer(self, language: str) -> Pronounce:
        """The pronunciations of words in `language`; a bundle has those of one language only."""
        return self.pronounce

    def say(self, text: str, manner: Manner = Manner(), reader: Reader | None = None) -> Iterator[Spoken]:
        """Speak `text` and yield it sentence by sentence. `reader.left_out` counts words that the voice cannot say.

        Breaks wait for the first words, so that a text of which nothing can be said yields nothing.
        """
        own = self.reader() if reader is None else reader
        waiting: list[SpokenPiece] = []
        number = 0
        for piece in own.pieces(text):
            waiting.append(piece)
            if piece.symbols or number:
                for each in waiting:
                    yield self.spoken(each, manner, number)
                    number += 1
                waiting.clear()

    def spoken(self, piece: SpokenPiece, manner: Manner, number: int = 0) -> Spoken:
        """Speak one piece and the silence after it. The noise depends only on the seed and on `number`."""
        silence = np.zeros(round(piece.after_s * self.rate_hz), np.float32)
        if not piece.symbols:
            return Spoken(piece, silence, [])
        sound, frames = self.sound(piece, manner, number)
        peak = float(np.abs(sound).max(initial=0.0))
        sound = sound * (LOUDEST / peak) if peak > LOUDEST else sound
        return Spoken(piece, np.concatenate((sound, silence)).astype(np.float32), frames)

    def number_of(self, kind: Literal["voices", "languages"], name: str) -> int:
        """Index of a name in `voices` or `languages`; "" means the first. Raises ConfigError: the name is unknown."""
        names = self.voices if kind == "voices" else self.languages
        if name and name not in names:
            what = f"{name!r} is not one of the model's {kind}"
            raise ConfigError(what, where=self.url, remedy=f"use one of {', '.join(names)}")
        return names.index(name) if name else 0


class Speaker(AnySpeaker):
    """A voice loaded from a *model* artifact of kind voice.

    lexicon: pronunciations that take precedence over espeak-ng's rules. vocoder: a *model* artifact of kind vocoder;
    "" means Griffin-Lim.

    Example: `np.concatenate([spoken.samples for spoken in Speaker("runs/voice-en/voice").say("Hello, world.")])`.

    Raises
    ------
    ConfigError: the model is not a voice, or the vocoder does not fit it. StoreError: an artifact is damaged.
    """

    def __init__(self, url: str, *, lexicon: Lexicon | None = None, threads: int = 1, vocoder: str = "") -> None:
        artifact = Artifact(url)
        self.config: dict[str, Any] = read_config(artifact)
        if self.config.get("kind") != "voice":
            what = f"a model of kind {self.config.get('kind')}, not a voice"
            raise ConfigError(what, where=url, remedy="give a model of `train` with kind voice and criterion speech")
        torch.set_num_threads(threads)
        module = restore(self.config, artifact.read_bytes(0, ".safetensors"), where=url).eval()
        assert isinstance(module, VoiceModel)
        self.url, self.module = url, module
        self.spectrum = MelSpectrum.from_config(self.config["spectrum"])
        read = vocoder_at(vocoder, self.spectrum)
        self.vocoder, self.vocoder_digest = read.module, read.digest
        for name, more in (("licences", read.licences), ("attributions", read.attributions)):
            self.config[name] = list(dict.fromkeys([*self.config.get(name, []), *more]))
        stats = self.config["stats"]
        self._mean, self._inv_std = (torch.tensor(stats[name]) for name in ("mean", "inv_std"))
        self.symbols = {symbol: number for number, symbol in enumerate(self.config["symbols"])}
        self.voices, self.languages = self.config["voices"], self.config["languages"]
        self.rules: dict[str, str] = self.config.get("rules", {})
        self.lexicon, self._rules_of = lexicon or {}, lru_cache(rules_of)
        self.pronounce = self.pronouncer(self.languages[0])
        if self.pronounce.rules is None and not lexicon:
            what = "the voice has no pronunciation rules, because `tts-data` had no `language`"
            raise ConfigError(what, where=url, remedy="give a lexicon, or make `tts-data` with `language`")

    @property
    def rate_hz(self) -> int:
        return self.spectrum.rate_hz

    def pronouncer(self, language: str) -> Pronounce:
        rules = self._rules_of(self.rules.get(language, self.config["language"]))
        return Pronounce(self.config["symbols"], self.config["scripts"], rules, self.lexicon)

    def sound(self, piece: SpokenPiece, manner: Manner, number: int) -> tuple[NDArray[np.float32], list[int]]:
        mel, frames = self.mel(piece, manner, number)
        with torch.no_grad():
            found: NDArray[np.float32] = self.vocoder(mel)[0].numpy()
        return found, frames

    def mel(self, piece: SpokenPiece, manner: Manner, number: int = 0) -> tuple[torch.Tensor, list[int]]:
        """Log mels (1, T, M) of a piece, and the frames of its symbols."""
        phones = torch.tensor([[self.symbols[symbol] for symbol in piece.symbols]])
        generator = torch.Generator().manual_seed(key_of("say", manner.seed, number))
        found, frames = self.module.speak(
            phones,
            torch.tensor([self.number_of("voices", manner.speaker)]),
            torch.tensor([self.number_of("languages", manner.language)]),
            pace=manner.pace * piece.pace,
            higher=manner.semitones * LN_SEMITONE / self.config["pitch"][1],
            spread=manner.spread,
            steps=manner.steps,
            generator=generator,
        )
        return found / self._inv_std + self._mean, frames[0].tolist()


def rules_of(language: str) -> Callable[[str], list[str]] | None:
    """espeak-ng's, of one of its languages, which are asked once for each word; "": none."""
    from megahour.corpus.generate.espeak import phonemes

    return lru_cache(KEPT_WORDS)(partial(phonemes, language=language)) if language else None
