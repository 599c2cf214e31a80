"""Which artifacts lie beside each other, and which was made of which: by the digests in their manifests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from megahour.core.errors import StoreError
from megahour.core.kinds import kind_of
from megahour.core.store import Artifact

MOST_BESIDE = 1000  # folders that are looked at
COUNTED = ("recordings", "utterances", "selection", "features", "targets", "partitions")
LABELLERS = ("targets", "pseudo_labels")
BACK = ("features", "selection", "utterances", "recordings")  # roles of what utterances come from, the nearest first


@dataclass(frozen=True, eq=False)
class CountedArtifact:
    """An artifact of a run: its name there, what it is, and what it was made of."""

    name: str
    kind: str
    artifact: Artifact
    made_of: dict[str, CountedArtifact] = field(default_factory=dict)  # by role

    def path(self) -> Iterator[CountedArtifact]:
        """Itself, then what its utterances came from, back to the recordings."""
        yield self
        before = next((self.made_of[role] for role in BACK if role in self.made_of), None)
        if before:
            yield from before.path()

    def back(self, kind: str) -> CountedArtifact | None:
        """The artifact of a kind that its utterances came from."""
        return next((member for member in self.path() if member.kind == kind), None)


@dataclass(frozen=True)
class Family:
    """The artifacts to count, what comes first first, and all that lie beside them."""

    title: str
    members: tuple[CountedArtifact, ...]
    beside: tuple[CountedArtifact, ...]
    asked: CountedArtifact | None = None  # the artifact that was given; None of a run

    def taught(self, member: CountedArtifact) -> tuple[str, ...]:
        """Sets of a selection or of features that have labels of a teacher."""
        sets: set[str] = set()
        for other in self.beside:
            if other.kind in LABELLERS and member in other.path():
                sets |= set(other.artifact.summary.get("sets") or other.artifact.manifest.params.get("sets", []))
        return tuple(sorted(sets))


def family(url: str) -> Family:
    """Of an artifact and what it was made of, or of all artifacts of a run's folder.

    Raises
    ------
    StoreError: it is neither.
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
    """The finished artifacts in a folder, by their names. A damaged manifest counts as none."""
    here = Artifact(folder)
    try:
        names = sorted({str(path).rstrip("/").rsplit("/", 1)[-1] for path in here.fs.ls(here.root, detail=False)})
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [Artifact(f"{here.url}/{name}" if here.url != "." else name) for name in names[:MOST_BESIDE]]
    return [artifact for artifact in found if artifact.made]


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
