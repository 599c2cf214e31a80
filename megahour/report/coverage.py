"""Counts hours by name (language, speaker, …) in a run's artifacts, and what its stages left out, over all shards.

One task counts each shard. The driver keeps only bounded counters (`Heaviest`), whatever the size of the corpus. What
`select` left out is the difference between its input and its output, without comparing keys; its receipts have the
reasons. Keys of duplicates are compared with those of the utterances, `MOST_KEYS` at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from megahour.core.receipts import Receipt
from megahour.core.schemas import LEFT_OUT_S
from megahour.core.store import Artifact
from megahour.engine.base import Engine, in_order
from megahour.features.sets import frame_seconds_of
from megahour.report.counters import Heaviest
from megahour.report.coverage_counts import ALL, REASON, ShardCount, count_shard, wanted_columns
from megahour.report.coverage_family import CountedArtifact, Family, family
from megahour.report.dimensions import TRANSCRIPT, Sums
from megahour.report.survey import Advance, columns_of

MOST_KEYS = 2**24  # 128 MB: keys of duplicates that a task holds in memory
KEPT, LEFT_OUT = "kept", "left out"
CAPACITY = 4096


@dataclass
class Column:
    """Hours in an artifact, or that its stage left out, by dimension and name. `reasons`: records per reason."""

    artifact: str
    stage: str
    part: str
    kind: str
    hours: dict[str, Heaviest] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, sums: Sums) -> None:
        for dimension, rows in sums.items():
            counted = self.hours.setdefault(dimension, Heaviest(CAPACITY))
            counted.add((name, records, seconds, "") for name, records, seconds in rows)

    @property
    def seconds(self) -> float:
        return self.hours[ALL].seconds if ALL in self.hours else 0.0

    @property
    def records(self) -> float:
        return self.hours[ALL].records if ALL in self.hours else 0.0


@dataclass(frozen=True)
class Coverage:
    """All columns of a run, or of an artifact and its ancestors; `main` is the column of most interest."""

    title: str
    columns: tuple[Column, ...]
    main: Column


def cover(url: str, engine: Engine | None = None, advance: Advance = lambda done, shards: None) -> Coverage:
    """Count an artifact and those of its ancestors in the same folder, or all artifacts in a run's folder.

    The result does not depend on the engine; without one, this process counts everything.

    Raises
    ------
    StoreError: there is nothing to count, or a table is missing or damaged.
    """
    found = family(url)
    planned = [each for member in found.members for each in _planned(found, member)]
    columns = [column for column, _ in planned]
    total = sum(many for _, (many, _) in planned)
    tasks = (task for number, (_, (_, make)) in enumerate(planned) for task in make(number))
    for done, (number, sums) in enumerate(_counted(tasks, engine), start=1):
        columns[number].add(sums)
        advance(done, total)
    _subtract(found, columns)
    kept = [column for column in columns if column.part == KEPT]
    by_kind = {column.kind: column for column in reversed(kept)}
    named = [column for column in kept if found.asked and column.artifact == found.asked.name]
    main = (named or [by_kind[kind] for kind in ("selection", "utterances") if kind in by_kind] or kept[-1:])[0]
    shown = [column for column in columns if column.part == KEPT or column.records or column.reasons]
    return Coverage(found.title, tuple(shown), main)


def _counted(tasks: Iterable[ShardCount], engine: Engine | None) -> Iterator[tuple[int, Sums]]:
    if engine is None:
        return map(count_shard, tasks)
    return in_order(engine.map(count_shard, tasks))


Tasks = tuple[
    int, Callable[[int], Iterator[ShardCount]]
]  # number of tasks, and a function from a column's number to its tasks


def _planned(found: Family, member: CountedArtifact) -> list[tuple[Column, Tasks]]:
    """The columns of an artifact and their tasks: first what its stage left out, then what it kept."""
    manifest = member.artifact.manifest
    left_out = Column(member.name, manifest.stage, LEFT_OUT, member.kind, reasons=dict(manifest.counts.dropped))
    kept = Column(member.name, manifest.stage, KEPT, member.kind)
    if member.kind == "duplicates":
        if "utterances" not in member.made_of:
            return []
        left_out.reasons = {}  # a stage that is given the list leaves them out, not this one
        many = _parts(member) * member.made_of["utterances"].artifact.manifest.shards
        return [(left_out, (many, lambda number: _duplicates(member, number)))]
    if member.kind in ("recordings", "utterances"):
        # Which files a shard has is unknown until its receipt is read; count one table per shard at most.
        return [
            (left_out, (manifest.shards, lambda number: _lost(member, number))),
            (kept, (manifest.shards, lambda number: _tables(found, member, number))),
        ]
    make = {"selection": _tables, "features": _features, "partitions": _features, "targets": _targets}[member.kind]
    own = (kept, (manifest.shards, lambda number: make(found, member, number)))
    return [(left_out, (0, lambda number: iter(()))), own] if member.kind == "selection" else [own]


def _tables(found: Family, member: CountedArtifact, number: int) -> Iterator[ShardCount]:
    columns, taught = wanted_columns(columns_of(member.artifact)), found.taught(member)
    for receipt in member.artifact.each_receipt():
        yield ShardCount(number, "table", member.artifact.url, receipt.shard, columns, taught=taught)


def _lost(member: CountedArtifact, number: int) -> Iterator[ShardCount]:
    recordings = member.back("recordings")
    columns = wanted_columns(columns_of(recordings.artifact)) if recordings else ()
    for receipt in member.artifact.each_receipt():
        if ".left_out.parquet" in receipt.files and member.kind == "recordings":
            yield ShardCount(number, "left-out", member.artifact.url, receipt.shard)
        if ".dropped.parquet" in receipt.files and recordings:
            # `align` and `cut` make one shard per shard of recordings.
            beside = (recordings.artifact.url, (receipt.shard,))
            yield ShardCount(number, "dropped", member.artifact.url, receipt.shard, columns, *beside)


def _features(found: Family, member: CountedArtifact, number: int) -> Iterator[ShardCount]:
    selection = member.back("selection") if member.kind == "features" else None
    beside = _pairs(member, selection) if selection else {}
    columns = wanted_columns(columns_of(selection.artifact)) if selection else ()
    url, taught = selection.artifact.url if selection else "", found.taught(member)
    frame_s = frame_seconds_of(member.artifact)
    for receipt in member.artifact.each_receipt():
        own = (receipt.tags.get("set", ""),) if ".targets.arrow" in receipt.files else taught
        shards = (beside[receipt.shard],) if receipt.shard in beside else ()
        beside_it = (columns, url, shards, own)
        yield ShardCount(number, "features", member.artifact.url, receipt.shard, *beside_it, frame_s=frame_s)


def _targets(found: Family, member: CountedArtifact, number: int) -> Iterator[ShardCount]:
    features, selection = member.back("features"), member.back("selection")
    if not features or not selection:
        return
    beside, columns = _pairs(features, selection), wanted_columns(columns_of(selection.artifact))
    for receipt in member.artifact.each_receipt():
        shard = beside.get(int(receipt.tags["features_shard"]))
        if shard is not None:
            url = selection.artifact.url
            yield ShardCount(number, "targets", member.artifact.url, receipt.shard, columns, url, (shard,))


def _pairs(features: CountedArtifact, selection: CountedArtifact) -> dict[int, int]:
    """Shard of the features → shard of the selection; stages keep the order of shards within each set."""
    mine, theirs = _by_set(features.artifact.each_receipt()), _by_set(selection.artifact.each_receipt())
    sets = [name for name in mine if len(mine[name]) == len(theirs.get(name, []))]
    return {a: b for name in sets for a, b in zip(mine[name], theirs[name], strict=True)}


def _by_set(receipts: Iterable[Receipt]) -> dict[str, list[int]]:
    shards: dict[str, list[int]] = {}
    for receipt in receipts:
        shards.setdefault(receipt.tags.get("set", ""), []).append(receipt.shard)
    return shards


def _parts(member: CountedArtifact) -> int:
    """Number of parts, of at most about `MOST_KEYS` keys each, into which to split a list of duplicates."""
    listed = sum(member.artifact.summary.get(f"listed_{kind}", 0) for kind in ("audio", "text"))
    return 1 + int(listed) // MOST_KEYS


def _duplicates(member: CountedArtifact, number: int) -> Iterator[ShardCount]:
    utterances, parts = member.made_of["utterances"].artifact, _parts(member)
    columns, url = wanted_columns(columns_of(utterances)), member.artifact.url
    for part in range(parts):
        for receipt in utterances.each_receipt():
            part_of = (part, parts)
            yield ShardCount(number, "duplicates", utterances.url, receipt.shard, columns, url, part=part_of)


def _subtract(found: Family, columns: list[Column]) -> None:
    """Compute what each `select` left out besides duplicates: its input minus its output."""
    place = {(column.artifact, column.part): column for column in columns}
    for member in found.members:
        if member.kind != "selection" or "utterances" not in member.made_of:
            continue
        before = place.get((member.made_of["utterances"].name, KEPT))
        if before:
            listed = (
                place.get((member.made_of["duplicates"].name, LEFT_OUT)) if "duplicates" in member.made_of else None
            )
            after = [place[member.name, KEPT], *([listed] if listed else [])]
            left_out = place[member.name, LEFT_OUT]
            left_out.hours = difference(before, after)
            if reasons := reasons_of(member.artifact, {"duplicate"} if listed else set(), left_out):
                left_out.hours[REASON] = reasons


def reasons_of(selection: Artifact, beside: Collection[str], left_out: Column) -> Heaviest | None:
    """Records and seconds that `select` left out by reason; None if its receipts lack them. `no-set`: in no set.

    beside: reasons that are counted in another column.
    """
    seconds: dict[str, float] = {}
    for receipt in selection.each_receipt():
        for name, value in receipt.stats.items():
            if name.startswith(LEFT_OUT_S):
                reason = name.removeprefix(LEFT_OUT_S)
                seconds[reason] = seconds.get(reason, 0.0) + float(value)
    dropped = selection.manifest.counts.dropped
    if seconds.keys() != dropped.keys():
        return None
    rows = [(reason, float(dropped[reason]), seconds[reason], "") for reason in sorted(set(seconds) - set(beside))]
    records = left_out.records - sum(row[1] for row in rows)
    if records > 0:
        rows.append(("no-set", records, max(0.0, left_out.seconds - sum(row[2] for row in rows)), ""))
    found = Heaviest(CAPACITY)
    found.add(rows)
    return found


def difference(before: Column, after: list[Column]) -> dict[str, Heaviest]:
    """`before` minus `after`, in dimensions with exact counts. Labels are those of the transcripts, not a teacher's."""
    found: dict[str, Heaviest] = {}
    for dimension, of in before.hours.items():
        dimension_after = TRANSCRIPT if dimension == "label" else dimension
        parts = [column.hours.get(dimension_after, Heaviest(CAPACITY)) for column in after]
        if not all(each.exact for each in (of, *parts)):
            continue
        left: Any = {name: [tally.records, tally.seconds] for name, tally in of.tallies.items()}
        for part in parts:
            for name, tally in part.tallies.items():
                here = left.setdefault(name, [0.0, 0.0])
                here[0] -= tally.records
                here[1] -= tally.seconds
        rows = [(name, n, max(0.0, seconds), "") for name, (n, seconds) in sorted(left.items()) if n > 0]
        found[dimension] = Heaviest(CAPACITY)
        found[dimension].add(rows)
    return found
