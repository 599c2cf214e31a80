"""The section about how a run was made: versions, commit, machine and recipe, from the artifacts' manifests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import yaml

from megahour.core.stage import Inputs
from megahour.core.store import Artifact
from megahour.report.markup import Markup, tag
from megahour.report.sections import panel, section
from megahour.report.tables import sortable, text

LONGEST = 200_000  # characters of a recipe


def provenance(inputs: Inputs) -> Markup:
    """Versions, by step if they differ, and the recipe."""
    note = (
        "Read from the artifacts themselves: parameters from their manifests, versions from their timings. "
        "Of a step that was interrupted these are the versions of its last session."
    )
    words = recipe(inputs)
    shown = tag("pre", words[:LONGEST], tabindex="0", role="region", aria_label="Recipe")
    return section(
        "made",
        "How it was made",
        note,
        panel(_versions(inputs), title="Versions"),
        panel(tag("details", tag("summary", "The recipe as it was run, with every parameter"), shown), title="Recipe"),
    )


def recipe(inputs: Inputs) -> str:
    """YAML of a recipe that reproduces these artifacts.

    Options that do not affect the bytes, such as `max_bad`, workers and threads, are omitted. Digests of files that a
    step read are comments; an input that is not among the artifacts is named by its digest.
    """
    names = _names(inputs)
    by_digest = {artifact.manifest.digest: names[role] for role, artifact in inputs.items()}
    lines = ["steps:\n"]
    for role, artifact in inputs.items():
        manifest = artifact.manifest
        read = {name: value for name, value in manifest.params.items() if _of_files(name)}
        step: dict[str, Any] = {"stage": manifest.stage}
        if manifest.inputs:
            step["inputs"] = {name: by_digest.get(digest, digest) for name, digest in sorted(manifest.inputs.items())}
        step |= {name: value for name, value in manifest.params.items() if name not in read}
        lines += [f"# {name}: {value}\n" for name, value in read.items()]
        lines.append(yaml.safe_dump({names[role]: step}, sort_keys=False, width=100, allow_unicode=True))
    return "".join([lines[0], *(_indented(line) for line in lines[1:])])


def _names(inputs: Inputs) -> dict[str, str]:
    """The step name of each role: the last part of its artifact's address if unique, else the role."""
    last = {role: artifact.url.rsplit("/", 1)[-1] for role, artifact in inputs.items()}
    many = Counter(last.values())
    return {role: name if many[name] == 1 else role.replace("_", "-") for role, name in last.items()}


def _of_files(name: str) -> bool:
    """Whether an entry of a manifest's parameters is a version of files that the step read, not a parameter."""
    return name in ("digests", "versions") or name.endswith("_sha256")


def _indented(words: str) -> str:
    return "".join(f"  {line}\n" for line in words.splitlines())


def _versions(inputs: Inputs) -> Markup:
    """A row per name; if steps differ, each version with its steps."""
    names = _names(inputs)
    made_with = {names[role]: _made_with(artifact) for role, artifact in inputs.items()}
    rows = []
    for name in dict.fromkeys(name for versions in made_with.values() for name in versions):
        by_value: dict[str, list[str]] = {}
        for step, versions in made_with.items():
            by_value.setdefault(versions.get(name, "not recorded"), []).append(step)
        several = len(by_value) > 1
        shown = [
            tag("div", value, tag("small", f" {', '.join(steps)}") if several else None)
            for value, steps in by_value.items()
        ]
        rows.append([text(name), text(shown)])
    if not rows:
        return tag("p", "Not recorded: the artifacts are older than megahour's record of versions.", class_="note")
    return sortable(["What", "Version"], rows)


def _made_with(artifact: Artifact) -> dict[str, str]:
    return {str(name): str(value) for name, value in artifact.wall().get("made_with", {}).items()}
