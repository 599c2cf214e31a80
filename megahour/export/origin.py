"""Where a model comes from: the artifacts of its run, what it was trained on, and the licences of that."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from megahour.core.store import Artifact
from megahour.transcribe.parts import RECIPE, steps_of_run


@dataclass(frozen=True)
class ModelOrigin:
    """What a bundle says of its model. selection, utterances: addresses, "" where no run tells; sets: trained on."""

    provenance: dict[str, Any]
    selection: str = ""
    utterances: str = ""
    sets: tuple[str, ...] = ()
    licences: list[dict[str, Any]] = field(default_factory=list)


def origin_of(model: Artifact) -> ModelOrigin:
    """From the manifest, and from the recipe of the run whose folder the artifact lies in, where there is one."""
    manifest = model.manifest
    own = {name: getattr(manifest, name) for name in ("stage", "version", "digest", "fingerprint", "inputs", "params")}
    folder, _, name = model.url.rpartition("/")
    home = Artifact(folder)
    if not home.fs.exists(home.path(RECIPE)) or name not in (steps := steps_of_run(home)):
        return ModelOrigin({"model": own, "artifacts": {}})
    made: dict[str, Any] = {}
    _walk(name, home.url, steps, made)
    features = _made_of(steps[name]["inputs"].get("features", ""))
    selection, utterances = features.get("selection", ""), features.get("utterances", "")
    there = all(address and Artifact(address).complete for address in (selection, utterances))
    params = manifest.params
    sets = (*params.get("sets", ()), *(params.get("unlabelled_sets", ()) if "targets" in manifest.inputs else ()))
    return ModelOrigin(
        {"model": own, "artifacts": made},
        selection if there else "",
        utterances if there else "",
        sets,
        _licences(Artifact(selection), sets) if there else [],
    )


def _made_of(address: str) -> dict[str, str]:
    """Inputs of the step whose output is at `address`, by the recipe of its run; {} where no recipe tells."""
    folder, _, name = address.rpartition("/")
    home = Artifact(folder) if folder else None
    if home is None or not home.fs.exists(home.path(RECIPE)):
        return {}
    inputs: dict[str, str] = steps_of_run(home).get(name, {}).get("inputs", {})
    return inputs


def _walk(name: str, home: str, steps: dict[str, dict[str, Any]], made: dict[str, Any]) -> None:
    """Stage and digest of all that a step was made of, by the step's name."""
    for address in steps[name]["inputs"].values():
        other, artifact = address.rpartition("/")[2], Artifact(address)
        if other in made or not artifact.complete:
            continue
        made[other] = {"stage": artifact.manifest.stage, "digest": artifact.manifest.digest}
        if other in steps and address == f"{home}/{other}":
            _walk(other, home, steps, made)


def _licences(selection: Artifact, sets: tuple[str, ...]) -> list[dict[str, Any]]:
    """Licences and attributions of what was trained on, with utterances and hours."""
    utterances: Counter[tuple[str, str]] = Counter()
    seconds: Counter[tuple[str, str]] = Counter()
    columns = ["licence", "attribution", "samples", "rate_hz", "set"]
    for receipt in selection.receipts():
        for row in selection.read_table(receipt.shard, columns=columns).to_pylist():
            if row["set"] in sets:
                utterances[row["licence"], row["attribution"]] += 1
                seconds[row["licence"], row["attribution"]] += row["samples"] / row["rate_hz"]
    return [
        {"licence": each[0], "attribution": each[1], "utterances": count, "hours": round(seconds[each] / 3600, 4)}
        for each, count in sorted(utterances.items())
    ]
