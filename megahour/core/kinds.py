"""What an artifact is, told from its files: one that is given for another is refused before anything reads it."""

from __future__ import annotations

from collections.abc import Mapping

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact

# What only this kind has, and who makes it. Utterances have no file of their own: a `.tar` and a `.parquet` are left.
_OWN_FILES = {".cues.parquet": "recordings", ".segments.parquet": "alignment", ".truth.parquet": "raw"}
_MAKERS = {
    "recordings": "ingest, or of import with kind=recordings",
    "alignment": "align",
    "utterances": "cut, or of import",
}


def kind_of(artifact: Artifact) -> str:
    """ "recordings", "alignment", "utterances" or "raw"; "" for all else, and for an artifact without shards."""
    first = artifact.receipt(0) if artifact.manifest.shards else None
    files = first.files if first else {}
    own = next((kind for suffix, kind in _OWN_FILES.items() if suffix in files), "")
    return own or ("utterances" if {".tar", ".parquet"} <= set(files) else "")


def check_kinds(stage: str, inputs: Mapping[str, Artifact]) -> None:
    """Raise ConfigError for an artifact that plainly is another thing than the role that it is to play."""
    for role, artifact in inputs.items():
        kind = kind_of(artifact) if role in _MAKERS else role
        if kind and kind != role:
            raise ConfigError(
                f"{artifact.url} is an artifact of {artifact.manifest.stage} ({kind}), no {role}",
                where=f"stage {stage}, input {role}",
                remedy=f"give one of {_MAKERS[role]}",
            )
