"""What `megahour export-model` does: finds the model, its clips and its origin, and writes the bundle."""

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
    """The bundle at `out`, and how it did on the golden clips.

    golden, calibration: files or folders; without them clips are taken from the run that the model lies in.

    Raises
    ------
    ConfigError: no model of tokens, no clips, `out` is there, or the bundle does not say what the model says.
    """
    model = TrainedModel(parts_of(address, step), tell=params.tell)
    origin, rate_hz = origin_of(model.artifact), model.front_end.rate_hz
    clips = clips_of_files(golden, rate_hz) if golden else golden_clips(origin, params, rate_hz)
    if not clips:
        raise ConfigError(
            "no golden clips: no run with held-out sets tells where there are some",
            where=address,
            remedy="give --golden with audio that the model has not learnt from",
        )
    return write_bundle(model, params, origin, clips, _calibration(origin, params, calibration, rate_hz), out)


def golden_clips(origin: ModelOrigin, params: ExportModelParams, rate_hz: int) -> list[SpokenClip]:
    """Clips of the run that the model lies in, with their texts where it has not learnt from them; [] without a run."""
    if not origin.selection:
        return []
    found = partial(clips_of_sets, origin.selection, origin.utterances, params.golden_clips, rate_hz)
    # Clips that the model has learnt from show what a runtime does with it, and no error rate.
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
