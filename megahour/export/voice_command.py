"""`megahour export-model` for a voice: find it, its texts, words and origin, and write the bundle."""

from __future__ import annotations

from collections.abc import Sequence

from megahour.core.errors import ConfigError, StoreError
from megahour.core.store import RESOLVED, Artifact
from megahour.corpus.generate.sentences import vocabulary
from megahour.corpus.text.normalise import normalise
from megahour.export.lexicon import lines_of, texts_of_run
from megahour.export.origin import ModelOrigin, origin_of
from megahour.export.params import ExportModelParams
from megahour.export.voice import VoiceComparison, write_voice_bundle
from megahour.models.configuration import read_config
from megahour.transcribe.parts import steps_of_run
from megahour.tts.speaking import Speaker
from megahour.tts.voice_bundle import VoiceBundle
from megahour.tts.voices import lexicon_at, voice_of

SOME_WORDS = 4  # minimum of a golden sentence from a run: one-word prompts show little


def voice_address(address: str, step: str) -> str:
    """The address of the voice's *model* artifact that `address` and `step` name; "" if they name no voice.

    A run without `step` names its last model that is not a vocoder.
    """
    home = Artifact(address)
    if home.complete:
        try:
            return home.url if read_config(home).get("kind") == "voice" else ""
        except StoreError:
            return ""
    if not home.fs.exists(home.path(RESOLVED)):
        return ""
    criteria = {n: each.get("criterion") for n, each in steps_of_run(home).items() if each["stage"] == "train"}
    criteria = {name: each for name, each in criteria.items() if each != "sound"}  # a vocoder is not exported by itself
    name = step or next(reversed(criteria), "")
    if criteria.get(name) != "speech":
        return ""
    return voice_of(f"{home.url}/{step}" if step else home.url)


def export_voice(
    address: str,
    params: ExportModelParams,
    golden: Sequence[str],
    words: Sequence[str],
    lexicon: str,
    vocoder: str,
    out: str,
) -> tuple[VoiceBundle, VoiceComparison]:
    """Export the voice at `address` as a bundle at `out`, and compare it with the model on golden sentences.

    golden: text files with a sentence per line; by default the texts come from the voice's run. words: text files whose
    words go into the bundle's lexicon in addition to those of the run. lexicon, vocoder: as for `say`.

    Raises ConfigError: see `write_voice_bundle`; or there are no golden sentences.
    """
    speaker = Speaker(address, lexicon=lexicon_at(lexicon) if lexicon else None, vocoder=vocoder)
    origin = origin_of(Artifact(address))
    texts = lines_of(golden) or _of_run(origin, params.golden_clips)
    if not texts:
        raise ConfigError(
            "no golden sentences: the voice does not belong to a run whose texts are known",
            where=address,
            remedy="give a text file with a sentence per line by --golden",
        )
    language = params.tell or speaker.languages[0]
    own = [word for line in lines_of(words) for word in normalise(line, language).tokens]
    usual = _usual(language) if speaker.pronounce.rules else []
    return write_voice_bundle(speaker, params, origin, texts, [*own, *usual, *speaker.pronounce.lexicon], out)


def _of_run(origin: ModelOrigin, most: int) -> list[str]:
    """The first training texts of the voice that have `SOME_WORDS` words; if none has, the first texts."""
    texts = list(dict.fromkeys(texts_of_run(origin))) if origin.selection else []
    longer = [text for text in texts if len(text.split()) >= SOME_WORDS]
    return (longer or texts)[:most]


def _usual(language: str) -> list[str]:
    """Everyday words of `language`: the vocabulary of `sentences` for English, else []."""
    return vocabulary() if language.partition("-")[0] == "en" else []
