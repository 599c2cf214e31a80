"""Pools several scores into one table: the folds of a corpus, each with its own test speakers."""

from __future__ import annotations

from collections.abc import Sequence

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.score.references import Reference
from megahour.score.table import Scored

ABOUT = ["key", "condition", "speaker", "reference"]


def pooled(scores: Sequence[Artifact]) -> Scored:
    """The utterances of all *scores* in one table, so that the bootstrap draws among all their speakers.

    Speakers without a name, of whom the folds may share some, are drawn as one.

    Raises
    ------
    ConfigError: an artifact is not of stage `score` or has other systems than the first, or two of them share an
        utterance or a speaker.
    """
    references: list[Reference] = []
    texts: dict[str, dict[int, str]] = {}
    tested: dict[int | str, int] = {}
    for number, score in enumerate(scores):
        if score.manifest.stage != "score":
            raise ConfigError(f"made by `{score.manifest.stage}`", where=score.url, remedy="give artifacts of `score`")
        table = score.read_table(0)
        systems = [name.removeprefix("errors_") for name in table.column_names if name.startswith("errors_")]
        if texts and list(texts) != systems:
            raise ConfigError(f"systems {systems}, the first has {list(texts)}", where=score.url)
        own = [
            Reference(r["key"], r["reference"], r["condition"], r["speaker"]) for r in table.select(ABOUT).to_pylist()
        ]
        for one in own:
            for name in (one.key, one.speaker):
                if name != "" and (other := tested.setdefault(name, number)) != number:
                    what = f"utterance {name}" if name == one.key else f"speaker {name!r}"
                    raise ConfigError(
                        f"{what} is tested in {scores[other].url}, too",
                        where=score.url,
                        remedy="pool folds that share no speaker and no utterance",
                    )
        references += own
        for system in systems:
            texts.setdefault(system, {}).update(zip((one.key for one in own), table[system].to_pylist(), strict=True))
    return Scored(references, texts)
