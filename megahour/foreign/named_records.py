"""Sends other recognisers' records to the features shards that hold their utterances, reading each source once.

A source is not in the order of the features. If each task searched all of it for its own utterances, S tasks would read
it S times. Instead, records are joined with the utterances' names by hash, and each task gets its own records
(`runner.beside`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from megahour.core.config import P
from megahour.core.receipts import Receipt, summed
from megahour.core.records import key_of
from megahour.core.stage import Artifact, Batches, Context, Input, Inputs, LaidOut, ShardWriter, Stage, Task
from megahour.foreign.params import NamesParams
from megahour.runner.beside import OWNER, MeetByKey, laid_beside, rows_beside
from megahour.runner.params import BesideParams

if TYPE_CHECKING:
    import pyarrow as pa


BATCH_ROWS = 4096
BATCH_BYTES = 64 << 20
Names = dict[str, list[int]]
Paths = dict[int, str]
PLACE = ("file", "at")  # a record's position; the first of several records wins


class NamedRecord(NamedTuple):
    """name: of its utterance, "" where nothing says which. row: the columns of its stage."""

    name: str
    row: Mapping[str, Any]
    bytes: int = 0  # about what the row takes


def laid_by_name(
    reader: Stage[Any], p: Any, inputs: Inputs, columns: list[str], *, recordings: bool = False, **limits: int
) -> dict[str, LaidOut]:
    """Of `Stage.layouts`: the records of `reader`, with `columns`, for `records_beside`.

    p: of the stage, with `sets`. recordings: records may name recordings, too, and have the columns of `MeetByName`;
    those that name nothing go to the first shard of the sets. limits: of `BesideParams`, for large rows.
    """
    roles = {role: role for role in ("features", "selection") if role in inputs}
    named = NamesParams.model_validate({"sets": p.sets, "recordings": recordings})
    meet = MeetByName() if recordings else None
    met = laid_beside("found", "names", "records", meet, columns=["name", *PLACE, *columns], **limits)
    return {
        "names": LaidOut(NamesOfUtterances(), named, roles),
        "records": LaidOut(reader, p, {"features": "features"}),
        **met,
    }


def records_beside(inputs: Inputs, shard: int) -> pa.Table:
    """The records that may be of the utterances of a features shard, in the order of the source."""
    return rows_beside(inputs["found"], shard).sort_by([(name, "ascending") for name in PLACE])


def names_folders(inputs: Inputs) -> bool:
    """Whether any record names a folder of a recording, in any shard of the sets."""
    return bool(inputs["found_met"].summary["by_folder"])


def paths_of(features: Artifact, shard: int, suffix: str, selection: Artifact | None, beside: int | None) -> Paths:
    """The utterances of a features shard and the names of their recordings, "" without a selection."""
    paths: Paths = dict.fromkeys(features.read_table(shard, suffix, columns=["key"])["key"].to_pylist(), "")
    if selection is not None and beside is not None:
        table = selection.read_table(beside, columns=["key", "name"])
        named = zip(table["key"].to_pylist(), table["name"].to_pylist(), strict=True)
        paths |= {key: name for key, name in named if key in paths}
    return paths


def names_of(paths: Paths) -> Names:
    """Utterances by what they may be called: their keys, and their recordings' names without folders."""
    from megahour.corpus.transcripts.recognised import utterance_id

    names: Names = {}
    for key, path in paths.items():
        if path:
            names.setdefault(utterance_id(path), []).append(key)
    return names | {str(key): [key] for key in paths}


class NamesOfUtterances(Stage[NamesParams]):
    """A task per features shard: the hashes of the names of its utterances; of shards of other sets none."""

    name = "names-of-utterances"
    params = NamesParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("features"), Input("selection", optional=True))

    def plan(self, p: NamesParams, inputs: Inputs) -> list[Task]:
        from megahour.features.sets import tasks_of_sets

        own = tasks_of_sets(inputs["features"], p.sets, where=self.name, beside=inputs.get("selection"))
        specs = {task["shard"]: {**task.spec, "nameless": p.recordings and task is own[0]} for task in own}
        return [Task(specs.get(shard, {})) for shard in range(inputs["features"].manifest.shards)]

    def run(self, p: NamesParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        import pyarrow as pa

        found = Counter[tuple[int, ...]]()
        if task.spec:
            features, selection = inputs["features"], inputs.get("selection")
            paths = paths_of(features, task["shard"], ".arrow", selection, task.spec.get("beside"))
            for name, keys in names_of(paths).items():
                found.update(row for key in keys for row in _rows_of_name(p, name, paths[key]))
        if task.spec.get("nameless"):
            found.update(_rows_of_name(p, "", ""))
        columns = ("key", *MeetByName.sent) if p.recordings else ("key",)
        rows = [(*row, found[row]) for row in sorted(found)]
        out.kept_all(len(rows))
        out.table(pa.table({name: pa.array([row[n] for row in rows], pa.int64()) for n, name in enumerate(columns)}))


def _rows_of_name(p: NamesParams, name: str, path: str) -> list[tuple[int, ...]]:
    """The hash of a name; with `recordings`, beside those of its recording's path and of each ending of that."""
    if not p.recordings:
        return [(hash_of(name),)]
    of_recording = (hash_of(name), hash_of(path))
    return [(*of_recording, hash_of(end), end.count("/")) for end in endings(path)]


def endings(path: str) -> Iterator[str]:
    """A path without its suffix, and with ever fewer folders.

    >>> list(endings("a/b/1.wav"))
    ['a/b/1', 'b/1', '1']
    """
    from megahour.corpus.transcripts.recognised import utterance_id

    name, folders = utterance_id(path), path.split("/")[:-1]
    yield from ("/".join([*folders[n:], name]) for n in range(len(folders) + 1))


class MeetByName(MeetByKey):
    """Joins records to names with what the name may mean in all shards.

    Columns: `recording`, the hash of the path of one that the shard has; `alike`, the folders with which the path of
    another recording ends like this one's (0: only the name is shared, -1: not even that); `utterances` of this
    recording; and `once`, true for one of the rows of each record. `by_folder` of the summary: the partitions with
    records that name a folder of a recording.
    """

    name = "meet-by-name"
    version = 2
    sent = ("recording", "ending", "depth", "utterances")

    def all_owners(self, owners: pa.Table) -> pa.Table:
        import numpy as np
        import pyarrow as pa

        owner, key, recording, ending, depth, here = (owners[name].to_numpy() for name in (OWNER, "key", *self.sent))
        each, place = np.unique(np.stack([key, ending, recording]), axis=1, return_inverse=True)
        _, of_ending, recordings = np.unique(each[:2], axis=1, return_inverse=True, return_counts=True)
        shared = recordings[of_ending.ravel()][place.ravel()] > 1
        _, place = np.unique(np.stack([key, recording]), axis=1, return_inverse=True)
        alike = np.full(len(key), -1)
        np.maximum.at(alike, place.ravel(), np.where(shared, depth, -1))
        utterances = np.bincount(place.ravel(), here * (depth == 0)).astype(np.int64)
        by_owner = np.lexsort((depth, recording, owner, key))
        once = np.zeros(len(key), bool)
        once[by_owner[np.unique(key[by_owner], return_index=True)[1]]] = True
        table = owners.select([OWNER, "key", "recording"])
        for name, column in (
            ("alike", alike[place.ravel()]),
            ("utterances", utterances[place.ravel()]),
            ("once", once),
        ):
            table = table.append_column(name, pa.array(column))
        return table.filter(pa.array(depth == 0))

    def merge(
        self, p: BesideParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        kept = list(batches)
        out.stat("by_folder", int(_any_by_folder(kept)))
        super().merge(p, inputs, partition, iter(kept), out, ctx)

    def finish(self, p: BesideParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        return {"by_folder": int(summed(receipt.stats for receipt in receipts).get("by_folder", 0))}


def _any_by_folder(batches: Sequence[pa.RecordBatch]) -> bool:
    """Whether the path of any record ends like a recording's of the same name, and for a folder at least."""
    import pyarrow.compute as pc

    folders = set[tuple[int, int]]()
    for batch in batches:
        own = batch.filter(pc.greater(batch["depth"], 0))  # a record's is null
        folders.update(zip(own["key"].to_pylist(), own["ending"].to_pylist(), strict=True))
    for batch in batches if folders else ():
        given = batch.filter(pc.less(batch[OWNER], 0))
        for key, path in zip(given["key"].to_pylist(), given["path"].to_pylist(), strict=True):
            if any((key, hash_of(end)) in folders for end in endings(path)):
                return True
    return False


class ReadRecords(Stage[P]):
    """An exchange by name: runs of source files to records, with their hashes and places. Subclasses read the files."""

    exchange = True
    inputs: ClassVar[tuple[Input, ...]] = (Input("features"),)
    most: ClassVar[int] = 1024  # tasks, and partitions

    def columns(self) -> pa.Schema:
        """The columns of a record's row."""
        raise TypeError(f"stage {self.name} has no columns")

    def sources(self, p: P) -> list[str]:
        """The source files, in order."""
        raise TypeError(f"stage {self.name} has no sources")

    def records(self, p: P, url: str) -> Iterator[NamedRecord]:
        """The records of a file, in order."""
        raise TypeError(f"stage {self.name} reads nothing")

    def plan(self, p: P, inputs: Inputs) -> list[Task]:
        from megahour.runner.beside import runs

        files = self.sources(p)
        return [Task({"first": first, "files": files[first:stop]}) for first, stop in runs(len(files), self.most)]

    def partitions(self, p: P, inputs: Inputs) -> int:
        return max(1, min(self.most, inputs["features"].manifest.shards))

    def split(self, p: P, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        count = self.partitions(p, inputs)
        waiting: list[dict[str, Any]] = []
        size = 0
        for file, url in enumerate(task["files"], task["first"]):
            for at, record in enumerate(self.records(p, url)):
                key = hash_of(record.name)
                waiting.append({**record.row, "key": key, "name": record.name, "file": file, "at": at})
                size += record.bytes
                if len(waiting) == BATCH_ROWS or size > BATCH_BYTES:
                    yield from _by_hash(waiting, self._schema(), count)
                    waiting, size = [], 0
        yield from _by_hash(waiting, self._schema(), count)

    def merge(self, p: P, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches(list(batches), self._schema())
        out.kept_all(table.num_rows)
        out.table(table)

    def _schema(self) -> pa.Schema:
        import pyarrow as pa

        own = [("key", pa.int64()), ("name", pa.string()), ("file", pa.int32()), ("at", pa.int64())]
        return pa.schema([*own, *self.columns()])


def hash_of(name: str) -> int:
    return key_of("utterance's name", name)


def _by_hash(rows: list[dict[str, Any]], schema: pa.Schema, count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    import pyarrow as pa

    parts: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        parts.setdefault(row["key"] % count, []).append(row)
    for partition, own in sorted(parts.items()):
        yield partition, pa.RecordBatch.from_pylist(own, schema)
