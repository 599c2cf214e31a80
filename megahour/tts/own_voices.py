"""Our voices as narrators of generated recordings (`corpus.generate.synthesise`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import soxr

from megahour.core.errors import ConfigError
from megahour.core.stage import Inputs
from megahour.corpus.generate.espeak import RATE_HZ as ESPEAK_HZ
from megahour.corpus.generate.params import SynthesiseParams
from megahour.corpus.generate.sentences import Sentence
from megahour.corpus.generate.synthesise import SaySentence, SpokenAudio
from megahour.corpus.media.audio import to_int16
from megahour.tts.exported import ExportedSpeaker
from megahour.tts.sound_file import NOTICE
from megahour.tts.speaking import AnySpeaker, Manner, Speaker, Spoken
from megahour.units.lexicon import lexicon_of

_NOT_IN_NAMES = re.compile(r"[^\w.-]+")


@dataclass(frozen=True)
class OwnVoice:
    """One voice of a model or a bundle. Each recording draws its pace and pitch, each sentence varies the pace.

    A bundle speaks without noise, whose draws would depend on what it said before, and cannot change its pitch.
    """

    speaker: AnySpeaker
    name: str
    language: str
    licence: str
    attribution: str
    pace: tuple[float, float]
    semitones: tuple[float, float]

    @property
    def label(self) -> str:
        return f"own-{_NOT_IN_NAMES.sub('-', self.name)}"

    @contextmanager
    def speaking(self, rng: np.random.Generator) -> Iterator[SaySentence]:
        """Speaks the sentences of one recording. Raises ConfigError: the voice cannot say a word."""
        pace, semitones = float(rng.uniform(*self.pace)), float(rng.uniform(*self.semitones))
        if isinstance(self.speaker, ExportedSpeaker):
            still = Manner(self.name, self.language, pace, spread=0.0)
        else:
            still = Manner(self.name, self.language, pace, semitones)
        yield partial(self._say, still)

    def _say(self, manner: Manner, sentence: Sentence, rng: np.random.Generator) -> SpokenAudio:
        varied = float(rng.uniform(0.93, 1.08))
        seed = 0 if isinstance(self.speaker, ExportedSpeaker) else int(rng.integers(1 << 31))
        manner = Manner(**{**vars(manner), "pace": manner.pace * varied, "seed": seed})
        reader = self.speaker.reader(self.language)
        pieces = list(self.speaker.say(sentence.said, manner, reader))
        if reader.left_out:
            raise ConfigError(
                f"the voice {self.name} cannot say {sentence.said!r}: {reader.details[0]}",
                where=self.speaker.url,
                remedy="give the input `lexicon` with the phones of such words, or another voice",
            )
        samples, words = np.concatenate([piece.samples for piece in pieces]), _words(pieces, self.speaker.rate_hz)
        scale = ESPEAK_HZ / self.speaker.rate_hz
        sound = to_int16(soxr.resample(samples, self.speaker.rate_hz, ESPEAK_HZ, quality="HQ"))
        first, last = round(words[0][1] * scale), round(words[-1][2] * scale)
        moved = [(word, round(start * scale) - first, round(end * scale) - first) for word, start, end in words]
        return SpokenAudio(sentence, sound[first:last], moved)


def _words(pieces: Sequence[Spoken], rate_hz: int) -> list[tuple[str, int, int]]:
    """The words of the pieces, each with its first sample and the end of its samples in the joined sound."""
    found: list[tuple[str, int, int]] = []
    position = 0
    for spoken in pieces:
        ends = np.cumsum([0, *spoken.frames])
        sounding = len(spoken.samples) - round(spoken.piece.after_s * rate_hz)
        shift = sounding / max(1, ends[-1] - 1)  # of a frame; the first and the last have half of one
        for word, *edges in spoken.piece.places:
            first, end = (int(np.clip(round((ends[edge] - 0.5) * shift), 0, sounding)) for edge in edges)
            found.append((word, position + first, position + end))
        position += len(spoken.samples)
    return found


def own_voices(p: SynthesiseParams, inputs: Inputs) -> list[OwnVoice]:
    """All voices of the input `voice` and of `bundles`.

    Raises ConfigError: one of them speaks no English, which the sentences are, or is no voice.
    """
    given = inputs.get("lexicon")
    lexicon = lexicon_of(given) if given else None
    found: list[OwnVoice] = []
    if "voice" in inputs:
        model = Speaker(
            inputs["voice"].url, lexicon=lexicon, vocoder=inputs["vocoder"].url if "vocoder" in inputs else ""
        )
        found += _voices(p, model, model.config["licences"], model.config["attributions"])
    for url in p.bundles:
        bundle = ExportedSpeaker(url, lexicon=lexicon)
        licences = bundle.bundle.manifest.licences
        names = ([each[name] for each in licences if each.get(name)] for name in ("licence", "attribution"))
        found += _voices(p, bundle, *names)
    return found


def _voices(
    p: SynthesiseParams, speaker: AnySpeaker, licences: Sequence[str], attributions: Sequence[str]
) -> Iterator[OwnVoice]:
    language = next((each for each in speaker.languages if each.split("-")[0] == "en"), None)
    if language is None:
        what = f"the voice speaks {', '.join(speaker.languages)}, and the sentences of `synthesise` are English"
        raise ConfigError(what, where=speaker.url, remedy="give an English voice; `speak` says other texts")
    licence = " AND ".join(dict.fromkeys(licences))
    attribution = "; ".join([NOTICE, *dict.fromkeys(attributions)])
    for name in speaker.voices:
        yield OwnVoice(speaker, name, language, licence, attribution, p.pace, p.semitones)
