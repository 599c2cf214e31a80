"""Models mixed and pruned on an engine from beginning to end: the stages `lm-union` … `lm-join`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from rich.table import Table

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
        weights = []
    tuned = {"tuned": Artifact(f"{folder}/weights")} if p.heldout else {}
    job.run("lines", mix_stage.Mix(), MixParams.model_validate({"weights": weights}), {**job.made(*inputs), **tuned})
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


def model_table(folder: str) -> Table:
    """A line for each model of a mixture in `folder`: its n-grams by order, weight, perplexity of the held-out text.

    Perplexities are over the tokens that all models allow, so that they compare; the last line is the mixture's.
    """
    from rich.table import Table

    union, ranges = Artifact(f"{folder}/union"), Artifact(f"{folder}/ranges")
    judged = Artifact(f"{folder}/weights")
    found = judged.summary if judged.complete else {}
    names, sizes = union.summary["models"], ranges.summary["ngrams"]
    weights = found.get("weights") or Artifact(f"{folder}/lines").manifest.params["weights"]
    perplexities = found.get("shared_perplexities", [None] * len(names))
    table = Table()
    for heading in ("model", "n-grams", "by order", "weight", "perplexity"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    mixed = Artifact(f"{folder}/lines").summary["ngrams"]
    rows = [*zip(names, sizes, weights, perplexities, strict=True)]
    for name, size, weight, perplexity in [*rows, ("mixture", mixed, sum(weights), found.get("shared_perplexity"))]:
        shown = f"{perplexity:.3f}" if perplexity is not None else ""
        table.add_row(name, f"{sum(size):,}", " ".join(f"{n:,}" for n in size), f"{weight:.6f}", shown)
    return table


def _given(models: Models) -> dict[str, Artifact]:
    artifacts = [model for model in models if isinstance(model, Artifact)]
    return {f"lm{number}": artifact for number, artifact in enumerate(artifacts, 1)}


def _open(job: Steps, given: dict[str, Artifact], models: Models, ranges: RangesParams, unknown: str) -> None:
    files = [model for model in models if isinstance(model, str)]
    union = UnionParams.model_validate({"files": files, "unknown": unknown})
    job.run("union", mix_stage.MakeUnion(), union, given)
    job.run("ranges", mix_stage.CutRanges(), ranges, {**job.made("union"), **given})
