"""Finds the artifacts in a folder, and links each to its inputs by the digests in their manifests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from megahour.core.errors import StoreError
from megahour.core.kinds import kind_of
from megahour.core.store import Artifact

LOG = logging.getLogger(__name__)
MOST_BESIDE = 1000  # folders to look at, at most
COUNTED = ("recordings", "utterances", "selection", "features", "targets", "partitions")
LABELLERS = ("targets", "pseudo_labels")
BACK = ("features", "selection", "utterances", "recordings")  # roles of ancestors, nearest first


@dataclass(frozen=True, eq=False)
class CountedArtifact:
    """An artifact of a run: its name in the run, its kind, and its inputs."""

    name: str
    kind: str
    artifact: Artifact
    made_of: dict[str, CountedArtifact] = field(default_factory=dict)  # by role

    def path(self) -> Iterator[CountedArtifact]:
        """This artifact, then its ancestors back to the recordings."""
        yield self
        before = next((self.made_of[role] for role in BACK if role in self.made_of), None)
        if before:
            yield from before.path()

    def back(self, kind: str) -> CountedArtifact | None:
        """The nearest artifact of `kind` in `path`; None if there is none."""
        return next((member for member in self.path() if member.kind == kind), None)


@dataclass(frozen=True)
class Family:
    """The artifacts to count, ancestors first, and all artifacts in the same folder."""

    title: str
    members: tuple[CountedArtifact, ...]
    beside: tuple[CountedArtifact, ...]
    asked: CountedArtifact | None = None  # the artifact that was given; None for a run

    def taught(self, member: CountedArtifact) -> tuple[str, ...]:
        """Sets of a selection or of features that a teacher labelled."""
        sets: set[str] = set()
        for other in self.beside:
            if other.kind in LABELLERS and member in other.path():
                sets |= set(other.artifact.summary.get("sets") or other.artifact.manifest.params.get("sets", []))
        return tuple(sorted(sets))


def family(url: str) -> Family:
    """The family of an artifact and its ancestors, or of all artifacts in a run's folder.

    Raises
    ------
    StoreError: `url` has no artifact that can be counted.
    """
    one = Artifact(url)
    alone = one.complete
    folder = (one.url.rpartition("/")[0] or ".") if alone else one.url
    beside = _linked(_beside(folder))
    title = one.url.rsplit("/", 1)[-1]
    if alone:
        asked = next((member for member in beside if member.artifact.url == one.url), None)
        asked = asked or CountedArtifact(title, kind_of(one), one)
        chosen = list(asked.path())
        chosen += [member.made_of["duplicates"] for member in chosen if "duplicates" in member.made_of]
    else:
        asked, chosen = None, beside
    members = [member for member in chosen if member.kind in COUNTED or member.kind == "duplicates"]
    if not any(member.kind in COUNTED for member in members):
        what = f"no {', '.join(COUNTED[:-1])} or {COUNTED[-1]}"
        raise StoreError(what, where=url, remedy="give an artifact with utterances, or the folder of a run")
    return Family(
        title,
        tuple(sorted(members, key=lambda m: (len([*m.path()]), m.kind != "duplicates", m.name))),
        tuple(beside),
        asked,
    )


def _beside(folder: str) -> list[Artifact]:
    """The finished artifacts in a folder, sorted by name; those with a damaged manifest are skipped, with a warning."""
    here = Artifact(folder)
    try:
        names = sorted({str(path).rstrip("/").rsplit("/", 1)[-1] for path in here.fs.ls(here.root, detail=False)})
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [Artifact(f"{here.url}/{name}" if here.url != "." else name) for name in names[:MOST_BESIDE]]
    return [artifact for artifact in found if artifact.complete and _whole(artifact)]


def _whole(artifact: Artifact) -> bool:
    try:
        return bool(artifact.manifest)
    except StoreError as error:
        LOG.warning("not counted: %s", error)
        return False


def _linked(artifacts: list[Artifact]) -> list[CountedArtifact]:
    by_digest = {artifact.manifest.digest: artifact for artifact in artifacts}
    made: dict[str, CountedArtifact] = {}

    def member(artifact: Artifact, above: tuple[str, ...] = ()) -> CountedArtifact:
        url = artifact.url
        if url not in made:
            inputs = artifact.manifest.inputs.items()
            known = {role: by_digest[digest] for role, digest in inputs if digest in by_digest}
            of = {role: member(each, (*above, url)) for role, each in known.items() if each.url not in (*above, url)}
            made[url] = CountedArtifact(url.rsplit("/", 1)[-1], kind_of(artifact), artifact, of)
        return made[url]

    return [member(artifact) for artifact in artifacts]
