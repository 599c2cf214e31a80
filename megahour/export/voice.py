"""Write the bundle of a voice: graphs, lexicon, golden sentences, manifest; published only if it matches the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.export import lexicon as words_and_phones
from megahour.export.folder import GOLDEN, files_of, made_by, published
from megahour.export.onnx_file import set_metadata
from megahour.export.origin import ModelOrigin
from megahour.export.params import ExportModelParams
from megahour.export.play import SherpaVoice
from megahour.export.voice_files import licences_of, sherpa_metadata, write_graphs, write_words
from megahour.features.distortion import analyse, distortion
from megahour.transcribe.bundle_files import MANIFEST, VOICE
from megahour.tts.data_shard import forbids_derivatives
from megahour.tts.exported import ExportedSpeaker
from megahour.tts.script import Reader, SpokenPiece
from megahour.tts.sound_file import NOTICE, WavWriter
from megahour.tts.speaking import Manner, Speaker, Spoken
from megahour.tts.voice_bundle import Form, GoldenSpeech, Precision, VoiceBundle

CLOSE = 1e-2
"""Largest difference of an fp32 sample (full scale 1) from the model's: Griffin-Lim amplifies rounding errors."""
Float32 = NDArray[np.float32]


@dataclass
class VoiceComparison:
    """How a bundle's graphs compare with the model.

    largest: largest difference of a sample from the model's, by runtime and form. mcd_db: mean distortion against fp32,
    by graph. sherpa: the version of sherpa-onnx that agreed, or "" with a `reason` if it could not be compared.
    """

    sentences: int = 0
    words: int = 0
    not_said: int = 0
    largest: dict[str, float] = field(default_factory=dict)
    mcd_db: dict[str, float] = field(default_factory=dict)
    sherpa: str = ""
    reason: str = ""


@dataclass
class _VoiceDraft:
    """A bundle under construction, in a scratch folder beside its destination."""

    folder: Path
    speaker: Speaker
    params: ExportModelParams
    origin: ModelOrigin
    language: str
    golden: list[tuple[GoldenSpeech, SpokenPiece, Float32]] = field(default_factory=list)
    graphs: dict[Form, dict[Precision, str]] = field(default_factory=dict)
    quantisation: dict[str, dict[str, Any]] = field(default_factory=dict)
    found: VoiceComparison = field(default_factory=VoiceComparison)

    @property
    def vocoder(self) -> dict[str, Any]:
        """Provenance of a trained vocoder; {} for Griffin-Lim."""
        digest = self.speaker.vocoder_digest
        return {"vocoder": {"digest": digest}} if digest else {}

    @property
    def forms(self) -> list[Form]:
        return ["vits", "matcha"] if self.params.matcha else ["vits"]

    def bundle(self) -> VoiceBundle:
        """Write the manifest of what is there so far, and open the bundle."""
        config, found = self.speaker.config, self.found
        values = {
            "format": 1,
            "made_by": made_by(),
            "name": str(self.origin.provenance["model"]["digest"])[:12],
            "criterion": VOICE,
            "notice": NOTICE,
            "rate_hz": self.speaker.rate_hz,
            "symbols": config["symbols"],
            "voices": config["voices"],
            "language": self.language,
            "rules": self.speaker.rules.get(self.language, config["language"]),
            "scripts": config["scripts"],
            "graphs": self.graphs["vits"],
            "acoustic": self.graphs.get("matcha", {}),
            "sherpa_onnx": {
                "form": "" if found.reason else " and ".join(self.forms),
                "version": found.sherpa,
                "reason": found.reason,
            },
            "quantisation": self.quantisation,
            "golden": [each.model_dump() for each, _, _ in self.golden],
            "provenance": self.origin.provenance | self.vocoder,
            "licences": licences_of(self.speaker, self.origin),
            "files": dict(files_of(self.folder)),
        }
        (self.folder / MANIFEST).write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", "utf-8")
        return VoiceBundle.open(str(self.folder))


def write_voice_bundle(
    speaker: Speaker, params: ExportModelParams, origin: ModelOrigin, texts: Sequence[str], words: Sequence[str],
    out: str,
) -> tuple[VoiceBundle, VoiceComparison]:  # fmt: skip
    """Write a bundle to `out`, a local folder that must not exist, and compare its graphs with the model on `texts`.

    words: for the lexicon, in addition to those of the run and of the texts.

    Raises
    ------
    ConfigError: a licence forbids derivatives; `out` exists; a graph gives other samples than the model; or one in
        fp16 or int8 differs by more than `most_mcd_db`. After an error nothing new is left at `out`.
    """
    for licence in [*speaker.config.get("licences", []), *(each["licence"] for each in origin.licences)]:
        if forbids_derivatives(licence or ""):
            what = f"the voice was trained on speech under {licence}, which forbids derivatives"
            raise ConfigError(what, where=speaker.url, remedy="train on speech of people who agreed to it")
    language = speaker.languages[speaker.number_of("languages", params.tell)]
    with published(out) as folder:
        draft = _VoiceDraft(folder, speaker, params, origin, language)
        reader = speaker.reader(language)
        _golden(draft, texts, reader)
        _lexicon(draft, words, reader)
        _graphs(draft)
        bundle = draft.bundle()
        _compare(draft, bundle)
        _smaller_ones(draft, bundle)
        _play(draft, bundle)
        draft.bundle()
    return VoiceBundle.open(out), draft.found


def _golden(draft: _VoiceDraft, texts: Sequence[str], reader: Reader) -> None:
    """Speak the sentences of the texts with the model without noise, the voices taking turns, and store them."""
    speaker, pieces = draft.speaker, [piece for text in texts for piece in reader.pieces(text)]
    for number, piece in enumerate(piece for piece in pieces if piece.symbols):
        voice = speaker.voices[number % len(speaker.voices)]
        said: Spoken = speaker.spoken(piece, Manner(voice, draft.language, spread=0.0))
        samples, sound = (f"{GOLDEN}/{number:03d}.{kind}" for kind in ("npy", "wav"))
        np.save(draft.folder / samples, said.samples)
        with WavWriter(draft.folder / sound, speaker.rate_hz) as wav:
            wav.add(said.samples)
        golden = GoldenSpeech(
            text=words_and_phones.written(piece, reader) or piece.text,
            voice=voice, symbols=piece.symbols, frames=said.frames, samples=samples, sound=sound,
        )  # fmt: skip
        draft.golden.append((golden, piece, said.samples))
    if not draft.golden:
        remedy = "; ".join(reader.details[:3]) or "give a text file with a sentence per line by --golden"
        raise ConfigError("no golden sentences that the voice can say", where=speaker.url, remedy=remedy)
    draft.found.sentences = len(draft.golden)


def _lexicon(draft: _VoiceDraft, words: Sequence[str], reader: Reader) -> None:
    """Write the lexicon and tokens of each form."""
    own = [word for _, piece, _ in draft.golden for word in piece.text.split()]
    run = words_and_phones.words_of_run(draft.origin, draft.language)
    phones, draft.found.not_said = words_and_phones.pronounced([*own, *run, *words], reader)
    draft.found.words = len(phones)
    for form in draft.forms:
        write_words(draft.folder, form, phones, draft.speaker.config["symbols"])


def _graphs(draft: _VoiceDraft) -> None:
    """Write the graphs of each form in all precisions."""
    for form in draft.forms:
        files = write_graphs(draft.folder, form, draft.speaker, draft.language, draft.params.precisions)
        metadata = sherpa_metadata(draft.speaker, draft.origin, draft.language, form)
        for precision, name in files.items():
            set_metadata(draft.folder / name, metadata)
            if precision != "fp32":
                size, whole = ((draft.folder / each).stat().st_size for each in (name, files["fp32"]))
                how = "weights" if precision == "fp16" else "dynamic"
                draft.quantisation[_key(form, precision)] = {"how": how, "share_of_fp32": round(size / whole, 4)}
        draft.graphs[form] = files


def _key(form: Form, precision: Precision) -> str:
    """Key of a quantised graph in the manifest."""
    return precision if form == "vits" else f"{form} {precision}"


def _compare(draft: _VoiceDraft, bundle: VoiceBundle) -> None:
    """Compare onnxruntime's fp32 samples with the model's. Raises ConfigError: they differ."""
    for form in draft.forms:
        exported = ExportedSpeaker(bundle.url, form=form)
        for golden, piece, samples in draft.golden:
            said = exported.spoken(piece, Manner(golden.voice, spread=0.0))
            _check(draft, _runtime("onnxruntime", form), golden, samples, said.samples)


def _runtime(name: str, form: Form) -> str:
    return name if form == "vits" else f"{name} ({form})"


def _check(draft: _VoiceDraft, runtime: str, golden: GoldenSpeech, mine: Float32, other: Float32) -> None:
    """Record the largest difference of a sample. Raises ConfigError: it is above CLOSE."""
    apart = float(np.abs(mine - other).max(initial=0.0)) if len(mine) == len(other) else float("inf")
    draft.found.largest[runtime] = max(apart, draft.found.largest.get(runtime, 0.0))
    if apart > CLOSE:
        what = f"{len(other)} samples instead of {len(mine)}" if apart == np.inf else f"a sample differs by {apart:.2g}"
        raise ConfigError(
            f'{runtime} speaks "{golden.text[:80]}" differently from the model: {what}, the limit is {CLOSE}',
            where=golden.samples,
            remedy="this is a bug in the exporter: please report it with the text",
        )


def _smaller_ones(draft: _VoiceDraft, bundle: VoiceBundle) -> None:
    """Measure the distortion of fp16 and int8 graphs. Raises ConfigError: it is above `most_mcd_db`."""
    for form, precision in [(f, p) for f in draft.forms for p in draft.graphs[f] if p != "fp32"]:
        exported, key = ExportedSpeaker(bundle.url, precision=precision, form=form), _key(form, precision)
        apart, frames = [], []
        for golden, piece, samples in draft.golden:
            said = exported.spoken(piece, Manner(golden.voice, spread=0.0))
            apart.append(distortion(*(analyse(each, exported.rate_hz) for each in (samples, said.samples))).mcd_db)
            frames.append(sum(abs(a - b) for a, b in zip(golden.frames, said.frames, strict=True)) / sum(golden.frames))
        mcd_db = draft.found.mcd_db[key] = round(float(np.mean(apart)), 4)
        found = {"mcd_db": mcd_db, "largest_mcd_db": round(max(apart), 4), "moved_frames": round(max(frames), 4)}
        draft.quantisation[key] |= found
        if mcd_db > draft.params.most_mcd_db:
            raise ConfigError(
                f"the voice in {key} differs from fp32 by {mcd_db:.2f} dB, the limit is {draft.params.most_mcd_db:g}",
                where="export-model",
                remedy="leave this precision out, or raise --most-mcd-db if it sounds good to you",
            )


def _play(draft: _VoiceDraft, bundle: VoiceBundle) -> None:
    """Compare sherpa-onnx, if it is installed, with the model. Raises ConfigError: the samples differ."""
    found, reader = draft.found, draft.speaker.reader(draft.language)
    for form in draft.forms:
        fit = []
        for golden, piece, samples in draft.golden:
            words = words_and_phones.written(piece, reader).rstrip(".").replace(",", "").split()
            if words and (form == "matcha" or all(words_and_phones.looked_up(word) for word in words)):
                fit.append((golden, samples))
        if not fit:
            found.reason = f"in the form {form} it cannot look up words in this script"
        elif find_spec("sherpa_onnx"):
            client = SherpaVoice(bundle, spread=0.0, form=form)
            for golden, samples in fit:
                said = client.say(golden.text, draft.speaker.number_of("voices", golden.voice))
                _check(draft, _runtime("sherpa-onnx", form), golden, samples, said)
            found.sherpa = metadata.version("sherpa-onnx")
