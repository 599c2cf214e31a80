"""`megahour export-model`: exports a trained model as a bundle that other programs can run."""

from __future__ import annotations

import logging
import shlex
from typing import TYPE_CHECKING, Any

import click

from megahour.export.params import ExportModelParams
from megahour.runner import log
from megahour.runner.options import OptionCommand, options, repeatable

if TYPE_CHECKING:
    from megahour.export.voice import VoiceComparison
    from megahour.transcribe.bundle import Bundle
    from megahour.tts.voice_bundle import VoiceBundle


@options(ExportModelParams)
@click.command(
    "export-model",
    cls=OptionCommand,
    short_help="Export a trained model to ONNX, for other runtimes.",
)
@click.argument("model")
@click.option("--out", required=True, metavar="FOLDER", help="Folder of the bundle, which must not exist yet.")
@click.option("--step", default="", help="With a run: the step `train` whose model is exported.")
@repeatable(
    "--golden",
    metavar="PATH",
    text="Files, folders or artifacts of clips to check the bundle on and include in it. With a voice: texts.",
)
@repeatable(
    "--calibration",
    metavar="PATH",
    text="Audio files, folders of them, or artifacts of utterances or recordings, for int8 static and mixed.",
)
@repeatable("--words", metavar="PATH", text="Text files whose words the voice must be able to pronounce.")
@click.option(
    "--lexicon", default="", metavar="PATH", help="With a voice: pronunciations that take precedence, as in `say`."
)
@click.option(
    "--vocoder",
    default="",
    metavar="URL",
    help="With a voice: a *model* of kind vocoder to use in place of Griffin-Lim.",
)
@log.logged
def command(
    model: str,
    out: str,
    step: str,
    golden: tuple[str, ...],
    calibration: tuple[str, ...],
    words: tuple[str, ...],
    lexicon: str,
    vocoder: str,
    **values: Any,
) -> None:
    """Export MODEL (a run's folder or a *model* artifact) as a bundle, and check it on clips or sentences.

    \b
    megahour export-model runs/digits --step model --out digits-bundle
    megahour transcribe talk.wav --model digits-bundle
    megahour export-model runs/voice --out voice-bundle
    megahour say "hello" --voice voice-bundle
    """  # fmt: skip
    from megahour.core.config import parse
    from megahour.core.errors import ConfigError
    from megahour.export.command import export_voice, voice_address

    params = parse(ExportModelParams, {key: value for key, value in values.items() if value is not None}, where=PLACE)
    if voice := voice_address(model, step):
        _say_voice(*export_voice(voice, params, golden, words, lexicon, vocoder, out), out)
    elif words or lexicon or vocoder:
        raise ConfigError("--words, --lexicon and --vocoder need a voice", where=model, remedy="leave them out")
    else:
        _recogniser(model, step, params, golden, calibration, out)


def _recogniser(
    model: str, step: str, params: ExportModelParams, golden: tuple[str, ...], calibration: tuple[str, ...], out: str
) -> None:
    from megahour.core.store import Artifact
    from megahour.export.command import export_model
    from megahour.models.configuration import read_config
    from megahour.transcribe.parts import parts_of

    bundle, found = export_model(model, step, params, golden, calibration, out)
    for form, precision in found.graphs:
        figures = found.figures(form, precision)
        wer = f", {figures['wer']:.2f} % WER" if "wer" in figures else ""
        size, whole = (_bytes(bundle, form, each) for each in (precision, "fp32"))
        share = "" if precision == "fp32" else f" ({size / whole:.3f} of fp32)"
        same = f"{figures['same_texts']} of {figures['clips']} texts as fp32{wer}"
        line = f"{form} {precision}: {size / 1e6:.2f} MB{share}, {same}"
        log.say("graph", line, {"form": form, "precision": precision, **figures})
    forms = bundle.manifest.sherpa_onnx
    played = [form for form in ("offline", "streaming") if forms[form]]
    if found.sherpa:
        log.say("sherpa-onnx", f"sherpa-onnx {found.sherpa} gives the same texts: {' and '.join(played)}", forms)
    if not read_config(Artifact(parts_of(model, step).model)).get("audio", {}).get("restarts"):
        what = "a bundle's running mean starts again in each utterance, which this model has seldom seen in training"
        log.say("mean", f"{what}: train on `features --restarts 0.5` for fewer errors", {}, level=logging.WARNING)
    if forms["reason"]:
        log.say("not-played", f"sherpa-onnx cannot run all of it: {forms['reason']}", forms)
    last = f"{out}: {len(bundle.manifest.files)} files, {len(found.clips)} golden clips agree, digest {bundle.digest}"
    _say_bundle(bundle, last, out, shlex.join(["megahour", "transcribe", "AUDIO", "--model", out]))


def _bytes(bundle: Bundle, form: str, precision: str) -> int:
    """Size of the graphs that a runtime loads: of a transducer, its decoder and joiner too."""
    graphs = bundle.manifest.graphs
    names = [graphs[part][precision] for part in (form, "decoder", "joiner") if part in graphs]
    return sum(bundle.manifest.files[name].bytes for name in names)


def _say_bundle(bundle: Bundle | VoiceBundle, text: str, out: str, trial: str) -> None:
    """Print the last line, and the commands that try the bundle and check a copy."""
    log.say_last(text, "exported", {"digest": bundle.digest})
    checked = shlex.join(["megahour", "verify", out, "--digest", bundle.digest])
    log.say_next([("try it", trial), ("check a copy of it", checked)])


def _say_voice(bundle: VoiceBundle, found: VoiceComparison, out: str) -> None:
    from megahour.tts.voice_bundle import VOCODER

    manifest = bundle.manifest
    files = {str(precision): file for precision, file in manifest.graphs.items()}
    files |= {f"matcha {precision}": file for precision, file in manifest.acoustic.items()}
    files |= {"matcha vocoder": VOCODER} if manifest.acoustic else {}
    for name, file in files.items():
        size = manifest.files[file].bytes / 1e6
        apart = f", {found.mcd_db[name]:.2f} dB of mel-cepstral distortion" if name in found.mcd_db else ""
        figures = {"precision": name, **manifest.quantisation.get(name, {})}
        log.say("graph", f"{name}: {size:.2f} MB{apart}", figures)
    for runtime, largest in found.largest.items():
        version = f" {found.sherpa}" if runtime.startswith("sherpa-onnx") else ""
        log.say("same", f"{runtime}{version} gives the model's samples to {largest:.2g}", {runtime: largest})
    if found.reason:
        log.say("not-played", f"sherpa-onnx cannot run it: {found.reason}", {"reason": found.reason})
    left = f", {found.not_said} words left out that the voice cannot pronounce" if found.not_said else ""
    log.say("words", f"{found.words} words in the lexicon{left}", {"words": found.words, "left_out": found.not_said})
    last = (
        f"{out}: {len(bundle.manifest.files)} files, {found.sentences} golden sentences agree, digest {bundle.digest}"
    )
    _say_bundle(bundle, last, out, shlex.join(["megahour", "say", bundle.manifest.golden[0].text, "--voice", out]))


PLACE = "export-model"
