"""What `megahour export-model` does with a voice: finds it, its texts, words and origin, and writes the bundle."""

from __future__ import annotations

from collections.abc import Sequence

from megahour.core.errors import ConfigError, StoreError
from megahour.core.store import Artifact
from megahour.corpus.generate.sentences import vocabulary
from megahour.corpus.text.normalise import normalise
from megahour.export.lexicon import lines_of, texts_of_run
from megahour.export.origin import ModelOrigin, origin_of
from megahour.export.params import ExportModelParams
from megahour.export.voice import VoiceComparison, write_voice_bundle
from megahour.models.configuration import read_config
from megahour.transcribe.parts import RECIPE, steps_of_run
from megahour.tts.speaking import Speaker
from megahour.tts.voice_bundle import VoiceBundle
from megahour.tts.voices import lexicon_at, voice_of

SOME_WORDS = 4  # of a golden sentence from a run: prompts of one word show little


def voice_address(address: str, step: str) -> str:
    """Of the *model* artifact of a voice, where `address` and `step` mean one; "": they mean a recogniser, or nothing.

    Of a run without `step`, its last model is meant.
    """
    home = Artifact(address)
    if home.complete:
        try:
            return home.url if read_config(home).get("kind") == "voice" else ""
        except StoreError:
            return ""
    if not home.fs.exists(home.path(RECIPE)):
        return ""
    criteria = {n: each.get("criterion") for n, each in steps_of_run(home).items() if each["stage"] == "train"}
    criteria = {name: each for name, each in criteria.items() if each != "sound"}  # vocoders do not go alone
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
    """The bundle at `out` of the voice at `address`, and how it did on golden sentences.

    golden: text files, a sentence a line; without them texts are taken from the run that the voice lies in. words: text
    files whose words the bundle shall say, beside those of the run. lexicon, vocoder: as of `say`.

    Raises ConfigError: see `write_voice_bundle`; or there are no golden sentences.
    """
    speaker = Speaker(address, lexicon=lexicon_at(lexicon) if lexicon else None, vocoder=vocoder)
    origin = origin_of(Artifact(address))
    texts = lines_of(golden) or _of_run(origin, params.golden_clips)
    if not texts:
        raise ConfigError(
            "no golden sentences: no run tells what the voice has learnt",
            where=address,
            remedy="give --golden with a text file, a sentence a line",
        )
    language = params.tell or speaker.languages[0]
    own = [word for line in lines_of(words) for word in normalise(line, language).tokens]
    usual = _usual(language) if speaker.pronounce.rules else []
    return write_voice_bundle(speaker, params, origin, texts, [*own, *usual, *speaker.pronounce.lexicon], out)


def _of_run(origin: ModelOrigin, most: int) -> list[str]:
    """The first texts that the voice has learnt, those of several words before others."""
    texts = list(dict.fromkeys(texts_of_run(origin))) if origin.selection else []
    longer = [text for text in texts if len(text.split()) >= SOME_WORDS]
    return (longer or texts)[:most]


def _usual(language: str) -> list[str]:
    """Words of everyday texts in `language`, where we have some: those of `sentences`."""
    return vocabulary() if language.partition("-")[0] == "en" else []
