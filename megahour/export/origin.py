"""Trace a model to its origin: the artifacts of its run, its training sets and their licences."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from megahour.core.kinds import sets_learnt
from megahour.core.store import RESOLVED, Artifact
from megahour.transcribe.parts import steps_of_run


@dataclass(frozen=True)
class ModelOrigin:
    """Provenance of a bundle's model. selection, utterances: addresses, "" if unknown; sets: the training sets;
    language: of most training utterances, "" if unknown.
    """

    provenance: dict[str, Any]
    selection: str = ""
    utterances: str = ""
    sets: tuple[str, ...] = ()
    licences: list[dict[str, Any]] = field(default_factory=list)
    language: str = ""


def origin_of(model: Artifact) -> ModelOrigin:
    """Read the origin from the model's manifest and, if the artifact lies in a run's folder, from the run's recipe."""
    manifest = model.manifest
    own = {name: getattr(manifest, name) for name in ("stage", "version", "digest", "fingerprint", "inputs", "params")}
    folder, _, name = model.url.rpartition("/")
    home = Artifact(folder)
    if not home.fs.exists(home.path(RESOLVED)) or name not in (steps := steps_of_run(home)):
        return ModelOrigin({"model": own, "artifacts": {}})
    made: dict[str, Any] = {}
    _walk(name, home.url, steps, made)
    features = _made_of(steps[name]["inputs"].get("features", ""))
    while "selection" not in features and "features" in features:  # those that `repartition` has shuffled
        features = _made_of(features["features"])
    selection, utterances = features.get("selection", ""), features.get("utterances", "")
    there = all(address and Artifact(address).complete for address in (selection, utterances))
    sets = sets_learnt(manifest.params, manifest.inputs)
    return ModelOrigin(
        {"model": own, "artifacts": made},
        selection if there else "",
        utterances if there else "",
        sets,
        *(_learnt(Artifact(selection), sets) if there else ()),
    )


def _made_of(address: str) -> dict[str, str]:
    """Inputs of the step whose output is at `address`, from its run's recipe; {} without a recipe."""
    folder, _, name = address.rpartition("/")
    home = Artifact(folder) if folder else None
    if home is None or not home.fs.exists(home.path(RESOLVED)):
        return {}
    inputs: dict[str, str] = steps_of_run(home).get(name, {}).get("inputs", {})
    return inputs


def _walk(name: str, home: str, steps: dict[str, dict[str, Any]], made: dict[str, Any]) -> None:
    """Collect into `made` the stage and digest of everything that step `name` depends on, by step name."""
    for address in steps[name]["inputs"].values():
        other, artifact = address.rpartition("/")[2], Artifact(address)
        if other in made or not artifact.complete:
            continue
        made[other] = {"stage": artifact.manifest.stage, "digest": artifact.manifest.digest}
        if other in steps and address == f"{home}/{other}":
            _walk(other, home, steps, made)


def _learnt(selection: Artifact, sets: tuple[str, ...]) -> tuple[list[dict[str, Any]], str]:
    """Licences and attributions of the training sets, with their utterances and hours; and the usual language."""
    utterances: Counter[tuple[str, str]] = Counter()
    seconds: Counter[tuple[str, str]] = Counter()
    languages: Counter[str] = Counter()
    columns = ["licence", "attribution", "samples", "rate_hz", "set", "language"]
    for receipt in selection.receipts():
        for row in selection.read_table(receipt.shard, columns=columns).to_pylist():
            if row["set"] in sets:
                utterances[row["licence"], row["attribution"]] += 1
                seconds[row["licence"], row["attribution"]] += row["samples"] / row["rate_hz"]
                languages[row.get("language") or ""] += 1
    licences = [
        {"licence": each[0], "attribution": each[1], "utterances": count, "hours": round(seconds[each] / 3600, 4)}
        for each, count in sorted(utterances.items())
    ]
    return licences, max(languages, key=lambda each: languages[each], default="")
