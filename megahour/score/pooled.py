"""Pools several scores into one table: the folds of a corpus, each with its own test speakers, or several seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.score.references import Reference
from megahour.score.table import Scored

ABOUT = ["key", "condition", "speaker", "reference"]


def pooled(scores: Sequence[Artifact], seeds: int = 1) -> Scored:
    """The utterances of all *scores* in one table, so that the bootstrap draws among all their speakers.

    Speakers without a name, of whom the folds may share some, are drawn as one. seeds: times that each utterance is
    tested; the bootstrap draws a speaker with all of them, and error rates are means over the seeds.

    Raises
    ------
    ConfigError: an artifact is not of stage `score` or has other systems than the first, two of them share an utterance
        or a speaker, or, of several seeds, an utterance is not tested as often.
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
        if seeds > 1 and score.url in (other.url for other in scores[:number]):
            raise ConfigError("given twice", where=score.url, remedy="give the scores of each seed once")
        for one in own if seeds == 1 else ():
            for name in (one.key, one.speaker):
                if name != "" and (other := tested.setdefault(name, number)) != number:
                    what = f"utterance {name}" if name == one.key else f"speaker {name!r}"
                    raise ConfigError(
                        f"{what} is tested in {scores[other].url}, too",
                        where=score.url,
                        remedy="pool folds that share no speaker and no utterance",
                    )
        rows = range(len(references), len(references) + len(own))  # a key may come again with another seed
        for system in systems:
            texts.setdefault(system, {}).update(zip(rows, table[system].to_pylist(), strict=True))
        references += own
    times = Counter(one.key for one in references)
    if odd := sum(n != seeds for n in times.values()):
        what = f"{odd:,} of {len(times):,} utterances are not tested {seeds} times"
        raise ConfigError(what, where=scores[0].url, remedy="give all folds of each seed, or another number of seeds")
    return Scored([one._replace(key=row) for row, one in enumerate(references)], texts)
