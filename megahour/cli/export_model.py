"""`megahour export-model`: a trained model as a bundle that other programs play."""

from __future__ import annotations

from typing import Any

import click

from megahour.export.params import ExportModelParams
from megahour.runner import log
from megahour.runner.options import OptionCommand, options


@options(ExportModelParams)
@click.command(
    "export-model", cls=OptionCommand, short_help="A trained model as a bundle: ONNX graphs that sherpa-onnx plays."
)
@click.argument("model")
@click.option("--out", required=True, metavar="FOLDER", help="The bundle; it must not be there yet.")
@click.option("--step", default="", help="Of a run: the step `train` with criterion ctc to export.")
@click.option("--golden", multiple=True, metavar="PATH", help="(repeatable) Clips to try and keep: files or folders.")
@click.option("--calibration", multiple=True, metavar="PATH", help="(repeatable) Clips for int8 static and mixed.")
@log.logged
def command(
    model: str, out: str, step: str, golden: tuple[str, ...], calibration: tuple[str, ...], **values: Any
) -> None:
    """Write MODEL, a run's folder or a *model* artifact, as a bundle, and try it on golden clips.

    \b
    megahour export-model runs/digits --step model --out digits-bundle
    megahour transcribe talk.wav --model digits-bundle
    """
    from megahour.core.config import parse
    from megahour.export.command import export_model

    params = parse(ExportModelParams, {key: value for key, value in values.items() if value is not None}, where=PLACE)
    bundle, found = export_model(model, step, params, golden, calibration, out)
    for form, precision in found.graphs:
        figures = found.figures(form, precision)
        wer = f", {figures['wer']:.2f} % WER" if "wer" in figures else ""
        size = bundle.manifest.files[bundle.manifest.graphs[form][precision]].bytes / 1e6
        line = f"{form} {precision}: {size:.2f} MB, {figures['same_texts']} of {figures['clips']} texts as fp32{wer}"
        log.say("graph", line, {"form": form, "precision": precision, **figures})
    forms = bundle.manifest.sherpa_onnx
    played = [form for form in ("offline", "streaming") if forms[form]]
    if found.sherpa:
        log.say("sherpa-onnx", f"sherpa-onnx {found.sherpa} gives the same texts: {' and '.join(played)}", forms)
    if forms["reason"]:
        log.say("not-played", f"sherpa-onnx does not play all of it: {forms['reason']}", forms)
    last = f"{out}: {len(bundle.manifest.files)} files, {len(found.clips)} golden clips agree, digest {bundle.digest}"
    log.say_last(last, "exported", {"digest": bundle.digest})
    checked = f"megahour verify {out} --digest {bundle.digest}"
    log.say_next([("try it", f"megahour transcribe AUDIO --model {out}"), ("whether a copy is this bundle", checked)])


PLACE = "export-model"
