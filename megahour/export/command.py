"""`megahour export-model`: find a recogniser or a voice, its clips or texts and its origin, and write the bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from megahour.core.errors import ConfigError, StoreError
from megahour.core.store import RESOLVED, Artifact
from megahour.corpus.generate.sentences import vocabulary
from megahour.corpus.text.normalise import normalise
from megahour.export.clips import SpokenClip, clips_at, clips_of_sets
from megahour.export.compare import GraphComparison
from megahour.export.lexicon import lines_of, texts_of_run
from megahour.export.model import TrainedModel
from megahour.export.origin import ModelOrigin, origin_of
from megahour.export.params import CALIBRATED, ExportModelParams
from megahour.export.voice import VoiceComparison, write_voice_bundle
from megahour.export.write import write_bundle
from megahour.models.configuration import read_config
from megahour.transcribe.bundle import Bundle
from megahour.transcribe.parts import parts_of, steps_of_run
from megahour.tts.speaking import Speaker
from megahour.tts.voice_bundle import VoiceBundle
from megahour.tts.voices import lexicon_at, voice_of


def export_model(
    address: str, step: str, params: ExportModelParams, golden: Sequence[str], calibration: Sequence[str], out: str
) -> tuple[Bundle, GraphComparison]:
    """Export a recogniser as a bundle at `out`, and compare it with the model on the golden clips.

    golden, calibration: files, folders, or artifacts of utterances or recordings; by default the clips come from the
        model's run.

    Raises
    ------
    ConfigError: not a model of tokens, no clips, `out` exists, or the bundle does not match the model.
    """
    if Bundle.at(address):
        remedy = "give the run or the model that it was made from, such as a run's folder with --step"
        raise ConfigError("a bundle, which is exported already", where=address, remedy=remedy)
    model = TrainedModel(parts_of(address, step), tell=params.tell)
    origin, rate_hz = origin_of(model.artifact), model.front_end.rate_hz
    told = params.tell if model.config.get("tag") == "language" else ""
    language = told or origin.language or "en"
    clips = (
        clips_at(golden, params.golden_clips, rate_hz, language) if golden else golden_clips(origin, params, rate_hz)
    )
    if not clips:
        raise ConfigError(
            "no golden clips: the model does not belong to a run with held-out sets",
            where=address,
            remedy="give audio that the model was not trained on with --golden",
        )
    return write_bundle(model, params, origin, clips, _calibration(origin, params, calibration, rate_hz), out)


def golden_clips(origin: ModelOrigin, params: ExportModelParams, rate_hz: int) -> list[SpokenClip]:
    """Held-out clips of the model's run, or training clips without their texts; [] without a run."""
    if not origin.selection:
        return []
    found = partial(clips_of_sets, origin.selection, origin.utterances, params.golden_clips, rate_hz)
    # Training clips can test a runtime, but give no fair error rate: their texts are removed.
    return found(but=origin.sets) or [replace(clip, said="") for clip in found(among=origin.sets)]


def _calibration(
    origin: ModelOrigin, params: ExportModelParams, given: Sequence[str], rate_hz: int
) -> list[SpokenClip]:
    if "int8" not in params.precisions or params.int8 not in CALIBRATED:
        return []
    if given:
        return clips_at(given, params.calibration_clips, rate_hz)
    if not origin.selection:
        return []
    return clips_of_sets(origin.selection, origin.utterances, params.calibration_clips, rate_hz, among=origin.sets)


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
    language = params.tell or speaker.languages[0]
    texts = lines_of(golden) or _of_run(origin, language, params.golden_clips)
    if not texts:
        raise ConfigError(
            "no golden sentences: the voice does not belong to a run whose texts are known",
            where=address,
            remedy="give a text file with a sentence per line by --golden",
        )
    own = [word for line in lines_of(words) for word in normalise(line, language).tokens]
    usual = _usual(language) if speaker.pronounce.rules else []
    return write_voice_bundle(speaker, params, origin, texts, [*own, *usual, *speaker.pronounce.lexicon], out)


def _of_run(origin: ModelOrigin, language: str, most: int) -> list[str]:
    """The first training texts in `language` that have `SOME_WORDS` words; if none has, the first of all in it."""
    texts = list(dict.fromkeys(texts_of_run(origin, language))) if origin.selection else []
    longer = [text for text in texts if len(text.split()) >= SOME_WORDS]
    return (longer or texts)[:most]


def _usual(language: str) -> list[str]:
    """Everyday words of `language`: the vocabulary of `sentences` for English, else []."""
    return vocabulary() if language.partition("-")[0] == "en" else []
