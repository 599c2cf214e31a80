"""`megahour export-model` for a recogniser: find the model, its clips and its origin, and write the bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from megahour.core.errors import ConfigError
from megahour.export.clips import SpokenClip, clips_of_files, clips_of_sets
from megahour.export.compare import GraphComparison
from megahour.export.model import TrainedModel
from megahour.export.origin import ModelOrigin, origin_of
from megahour.export.params import ExportModelParams
from megahour.export.write import write_bundle
from megahour.transcribe.bundle import Bundle
from megahour.transcribe.parts import parts_of


def export_model(
    address: str, step: str, params: ExportModelParams, golden: Sequence[str], calibration: Sequence[str], out: str
) -> tuple[Bundle, GraphComparison]:
    """Export a recogniser as a bundle at `out`, and compare it with the model on the golden clips.

    golden, calibration: files or folders; by default the clips come from the model's run.

    Raises
    ------
    ConfigError: not a model of tokens, no clips, `out` exists, or the bundle does not match the model.
    """
    model = TrainedModel(parts_of(address, step), tell=params.tell)
    origin, rate_hz = origin_of(model.artifact), model.front_end.rate_hz
    clips = clips_of_files(golden, rate_hz) if golden else golden_clips(origin, params, rate_hz)
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
    origin: ModelOrigin, params: ExportModelParams, files: Sequence[str], rate_hz: int
) -> list[SpokenClip]:
    if "int8" not in params.precisions or params.int8 == "dynamic":
        return []
    if files:
        return clips_of_files(files, rate_hz)
    if not origin.selection:
        return []
    return clips_of_sets(origin.selection, origin.utterances, params.calibration_clips, rate_hz, among=origin.sets)
