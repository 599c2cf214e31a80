"""Interpolation and pruning on an engine: runs the stages `lm-union` … `lm-join` one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from megahour.core.store import Artifact
from megahour.engine.base import Engine
from megahour.lm.params import InterpolateParams, PruneParams
from megahour.lm.scale.on_engine import Cost, Steps
from megahour.lm.sharded import mix_stage, prune_stage
from megahour.lm.sharded.params import RangesParams

if TYPE_CHECKING:
    from rich.table import Table

Models = Sequence[Artifact | str]


def mix_on(
    engine: Engine, folder: str, models: Models, p: InterpolateParams, ranges: RangesParams, *, work: Path | None = None
) -> tuple[Artifact, list[Cost]]:
    """Interpolate models by stages in `folder`; return the artifact with `.arpa`, `folder`/arpa, and the stages' costs.

    models: artifacts of lines or of ARPA files, then files. Finished stages do not run again. Raises MegahourError as
    the stages do.
    """
    job = Steps(engine, folder, work)
    given = _given(models)
    _open(job, given, models, ranges, p.unknown)
    job.run("gathered", prune_stage.Gather(), {**job.made("union", "ranges"), **given})
    inputs = ["gathered", "union", "ranges"]
    if p.heldout:
        job.run("weights", mix_stage.TuneWeights(), job.made(*inputs), weights=p.weights, heldout=p.heldout)
    tuned = {"tuned": Artifact(f"{folder}/weights")} if p.heldout else {}
    job.run("lines", mix_stage.Mix(), {**job.made(*inputs), **tuned}, weights=[] if p.heldout else p.weights)
    job.run("arpa", mix_stage.JoinLines(), job.made("lines", "union"))
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
    """Prune a model by stages, as `mix_on`. Contexts have the model's probabilities, or counts in `p.history_text`."""
    job = Steps(engine, folder, work)
    given = _given([model])
    _open(job, given, [model], ranges, "zero")
    shared = ("union", "ranges")
    job.run("sorted_ngrams", prune_stage.SortNgrams(), {**job.made(*shared), **given})
    job.run("gathered", prune_stage.Gather(), job.made(*shared, "sorted_ngrams"))
    inputs = ["gathered", *shared, "sorted_ngrams"]
    if p.history_text:
        job.run("history_counts", prune_stage.CountHistories(), job.made(*shared), source=p.history_text)
        inputs.append("history_counts")
    job.run("losses", prune_stage.ComputeLosses(), job.made(*inputs), shortest=p.shortest)
    judged = job.made("losses", *shared)
    job.run("threshold", prune_stage.ChooseThreshold(), judged, threshold=p.threshold, ngrams=p.ngrams)
    job.run("kept", prune_stage.Gather(), job.made(*shared, "sorted_ngrams", "losses", "threshold"))
    left = {"gathered": Artifact(f"{folder}/kept"), **job.made(*shared, "threshold")}
    job.run("lines", prune_stage.Renormalise(), left)
    job.run("arpa", mix_stage.JoinLines(), job.made("lines", "union"))
    return Artifact(f"{folder}/arpa"), job.costs


def model_table(folder: str) -> Table:
    """A row for each model of a mixture in `folder`, and for the mixture: n-grams, weight, perplexity of held-out text.

    Perplexities are over the tokens that all models allow, so they can be compared.
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
    job.run("union", mix_stage.MakeUnion(), given, files=files, unknown=unknown)
    job.run("ranges", mix_stage.CutRanges(), {**job.made("union"), **given}, ranges)
