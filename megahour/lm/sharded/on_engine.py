"""Models mixed and pruned on an engine from beginning to end: the stages `lm-union` … `lm-join`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from megahour.core.store import Artifact
from megahour.engine.base import Engine
from megahour.lm.params import InterpolateParams, PruneParams
from megahour.lm.scale.on_engine import Cost, Steps
from megahour.lm.sharded import mix_stage, prune_stage
from megahour.lm.sharded.params import (
    GatherParams,
    HistoryCountsParams,
    JoinParams,
    LossesParams,
    MixParams,
    RangesParams,
    RenormaliseParams,
    SortParams,
    ThresholdParams,
    UnionParams,
    WeightsParams,
)

Models = Sequence[Artifact | str]


def mix_on(
    engine: Engine, folder: str, models: Models, p: InterpolateParams, ranges: RangesParams, *, work: Path | None = None
) -> tuple[Artifact, list[Cost]]:
    """The artifact with `.arpa` of models mixed, in `folder`/arpa, and what each stage took; models: artifacts of
    lines or of ARPA files, then files. What is finished is not made again.

    Raises MegahourError as the stages do.
    """
    job = Steps(engine, folder, work)
    given = _given(models)
    _open(job, given, models, ranges, p.unknown)
    job.run("gathered", prune_stage.Gather(), GatherParams.model_validate({}), {**job.made("union", "ranges"), **given})
    inputs = ["gathered", "union", "ranges"]
    weights = list(p.weights)
    if p.heldout:
        judged = WeightsParams.model_validate({"weights": weights, "heldout": p.heldout})
        job.run("weights", mix_stage.Weigh(), judged, job.made(*inputs))
        inputs.append("weights")
        weights = []
    job.run("lines", mix_stage.Mix(), MixParams.model_validate({"weights": weights}), job.made(*inputs))
    job.run("arpa", mix_stage.JoinLines(), JoinParams.model_validate({}), job.made("lines", "union"))
    return Artifact(f"{folder}/arpa"), job.costs


def prune_on(
    engine: Engine,
    folder: str,
    model: Artifact | str,
    p: PruneParams,
    ranges: RangesParams,
    *,
    work: Path | None = None,
) -> tuple[Artifact, list[Cost]]:
    """The artifact with `.arpa` of a model pruned, as `mix_on`; contexts by the model, or counted in
    `p.history_text`."""
    job = Steps(engine, folder, work)
    given = _given([model])
    _open(job, given, [model], ranges, "zero")
    shared = ("union", "ranges")
    job.run("sorted_ngrams", prune_stage.SortNgrams(), SortParams.model_validate({}), {**job.made(*shared), **given})
    job.run("gathered", prune_stage.Gather(), GatherParams.model_validate({}), job.made(*shared, "sorted_ngrams"))
    inputs = ["gathered", *shared, "sorted_ngrams"]
    if p.history_text:
        counted = HistoryCountsParams.model_validate({"source": p.history_text})
        job.run("history_counts", prune_stage.CountHistories(), counted, job.made(*shared))
        inputs.append("history_counts")
    job.run("losses", prune_stage.Lose(), LossesParams.model_validate({"shortest": p.shortest}), job.made(*inputs))
    size = ThresholdParams.model_validate({"threshold": p.threshold, "ngrams": p.ngrams})
    job.run("threshold", prune_stage.Choose(), size, job.made("losses", *shared))
    chosen = (*shared, "sorted_ngrams", "losses", "threshold")
    job.run("kept", prune_stage.Gather(), GatherParams.model_validate({}), job.made(*chosen))
    left = {"gathered": Artifact(f"{folder}/kept"), **job.made(*shared, "threshold")}
    job.run("lines", prune_stage.Renormalise(), RenormaliseParams.model_validate({}), left)
    job.run("arpa", mix_stage.JoinLines(), JoinParams.model_validate({}), job.made("lines", "union"))
    return Artifact(f"{folder}/arpa"), job.costs


def _given(models: Models) -> dict[str, Artifact]:
    artifacts = [model for model in models if isinstance(model, Artifact)]
    return {f"lm{number}": artifact for number, artifact in enumerate(artifacts, 1)}


def _open(job: Steps, given: dict[str, Artifact], models: Models, ranges: RangesParams, unknown: str) -> None:
    files = [model for model in models if isinstance(model, str)]
    union = UnionParams.model_validate({"files": files, "unknown": unknown})
    job.run("union", mix_stage.MakeUnion(), union, given)
    job.run("ranges", mix_stage.CutRanges(), ranges, {**job.made("union"), **given})
