"""Joins the rows of one artifact to the shards of another by key, in two exchanges.

A list of keys, such as `duplicates`, has shards of its own. If each task of a stage searched all of them for its keys,
S shards would read S² tables. Instead, the first exchange joins keys and rows by the hash of the key, and the second
sends the matching rows to the shard that owns the key; `rows_beside` reads those of one shard. The tasks and shards of
both exchanges are limited (`BesideParams.most`): S by S blocks would hold less than a row each.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from megahour.core.stage import Artifact, Batches, Context, Input, Inputs, LaidOut, Receipt, ShardWriter, Stage, Task
from megahour.runner.params import BesideParams

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


LOG = logging.getLogger(__name__)
OWNER = "owner_shard"


def laid_beside(role: str, owners: str, rows: str, meet: MeetByKey | None = None, **params: Any) -> dict[str, LaidOut]:
    """For `Stage.layouts`: joins the rows of input `rows` to the keys of input `owners`, as role `role`.

    params: fields of `BesideParams`. meet: a first exchange that knows more of the owners.
    """
    p = BesideParams(**params)
    return {
        f"{role}_met": LaidOut(meet or MeetByKey(), p, {"owners": owners, "rows": rows}),
        role: LaidOut(GatherByShard(), p, {"met": f"{role}_met", "owners": owners}),
    }


def rows_beside(beside: Artifact, shard: int) -> pa.Table:
    """The joined rows (key and the configured columns) whose keys belong to this shard of the owners, sorted by key."""
    import pyarrow.compute as pc

    table = beside.read_table(shard // int(beside.summary["run"]))
    return table.filter(pc.equal(table[OWNER], shard)).drop_columns([OWNER])


def warn_of_other_duplicates(inputs: Inputs, *, where: str) -> None:
    """Log if `duplicates` lists utterances, and none of them is among the owners of `listed`: it would do nothing."""
    if "listed" in inputs and not inputs["listed"].manifest.counts.kept:
        summary = inputs["duplicates"].summary
        if count := summary.get("listed_audio", 0) + summary.get("listed_text", 0):
            what = "%s: none of the %s utterances that %s lists is among these: give the list that was made of them"
            LOG.warning(what, where, f"{count:,}", inputs["duplicates"].url)


class MeetByKey(Stage[BesideParams]):
    """First exchange: joins the keys of `owners` and the `rows` by the hash of the key."""

    name = "meet-by-key"
    params = BesideParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("owners"), Input("rows"))
    exchange = True
    sent: ClassVar[tuple[str, ...]] = ()
    """Whole numbers of the owners that are sent beside their keys."""

    def all_owners(self, owners: pa.Table) -> pa.Table:
        """A row for each join: the owner, the key, and more columns that joined rows get.

        owners: all of the keys of a partition, with the columns `sent`.
        """
        return owners.select([OWNER, "key"])

    def plan(self, p: BesideParams, inputs: Inputs) -> list[Task]:
        return [
            Task({"role": role, "first": first, "stop": stop})
            for role in ("owners", "rows")
            for first, stop in runs(inputs[role].manifest.shards, p.most)
        ]

    def partitions(self, p: BesideParams, inputs: Inputs) -> int:
        return min(p.most, inputs["owners"].manifest.counts.kept // p.keys + 1)

    def split(self, p: BesideParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        import numpy as np

        table = _sent(p, inputs, task, self.sent)
        count = self.partitions(p, inputs)
        # Knuth's multiplicative hash: keys need not be uniform.
        mixed = (table["key"].to_numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
        places = (mixed % np.uint64(count)).astype(np.int64)
        yield from by_place(table, places)

    def merge(
        self, p: BesideParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        table = pa.Table.from_batches(list(batches), _schema(p, inputs["rows"], self.sent))
        owners = self.all_owners(table.filter(pc.greater_equal(table[OWNER], 0))).sort_by("key")
        rows = table.filter(pc.less(table[OWNER], 0)).drop_columns([OWNER, *self.sent])
        keys, wanted = owners["key"].to_numpy(), rows["key"].to_numpy()
        first, last = (np.searchsorted(keys, wanted, side) for side in ("left", "right"))
        times = last - first  # a key may be in several shards
        row = np.repeat(np.arange(len(wanted)), times)
        at = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times) + np.repeat(first, times)
        joined = rows.take(row).add_column(0, OWNER, owners[OWNER].take(at))
        for name in owners.column_names[2:]:
            joined = joined.append_column(name, owners[name].take(at))
        _write_sorted(joined, out)


class GatherByShard(Stage[BesideParams]):
    """Second exchange: collects the joined rows by runs of the owners' shards."""

    name = "gather-by-shard"
    params = BesideParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("met"), Input("owners"))
    exchange = True

    def partitions(self, p: BesideParams, inputs: Inputs) -> int:
        return max(1, len(runs(inputs["owners"].manifest.shards, p.most)))

    def split(self, p: BesideParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        table = inputs["met"].read_table(task["shard"])
        yield from by_place(table, table[OWNER].to_numpy() // _run(inputs["owners"].manifest.shards, p.most))

    def merge(
        self, p: BesideParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        with inputs["met"].open(0, ".parquet", block_bytes=0) as file:  # only the schema: the table may be large
            schema = pyarrow.parquet.read_schema(file)
        _write_sorted(pa.Table.from_batches(list(batches), schema), out)

    def finish(self, p: BesideParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        return {"run": _run(inputs["owners"].manifest.shards, p.most)}


def by_place(table: pa.Table, places: NDArray[np.int64]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split rows by `places` (rows,), their partitions; yields (partition, its rows in order)."""
    import numpy as np

    order = np.argsort(places, kind="stable")
    rising = places[order]
    sorted_ = table.take(order).combine_chunks()
    first = 0
    for end in (np.flatnonzero(np.diff(rising, append=-1)) + 1).tolist():
        for batch in sorted_.slice(first, end - first).to_batches():
            yield int(rising[first]), batch
        first = end


def _write_sorted(table: pa.Table, out: ShardWriter) -> None:
    out.kept_all(table.num_rows)
    out.table(table.sort_by([(OWNER, "ascending"), ("key", "ascending")]))


def _run(shards: int, most: int) -> int:
    return max(1, -(-shards // max(1, most)))


def runs(shards: int, most: int) -> list[tuple[int, int]]:
    """At most `most` runs (first, stop) of consecutive shards, of equal length but for the last."""
    size = _run(shards, most)
    return [(first, min(first + size, shards)) for first in range(0, shards, size)]


def _schema(p: BesideParams, rows: Artifact, of_owners: tuple[str, ...]) -> pa.Schema:
    """The schema of exchanged rows: the shard that owns the key (−1 for a row of `rows`), the key and the columns."""
    import pyarrow as pa

    first = [(OWNER, pa.int32()), ("key", pa.int64()), *((name, pa.int64()) for name in of_owners)]
    if not rows.manifest.shards:
        return pa.schema([*first, *((name, pa.null()) for name in p.columns)])
    own = rows.read_table(0, p.rows_suffix, columns=["key", *p.columns]).schema
    return pa.schema([*first, *(own.field(name) for name in p.columns)])


def _sent(p: BesideParams, inputs: Inputs, task: Task, of_owners: tuple[str, ...]) -> pa.Table:
    """What a task sends: the keys of a run of the owners' shards, or the rows of a run of the rows' shards."""
    import pyarrow as pa

    schema, artifact = _schema(p, inputs["rows"], of_owners), inputs[task["role"]]
    is_owner = task["role"] == "owners"
    given = [*of_owners] if is_owner else p.columns
    tables = []
    for shard in range(task["first"], task["stop"]):
        table = artifact.read_table(shard, p.owners_suffix if is_owner else p.rows_suffix, columns=["key", *given])
        count = table.num_rows
        owner = pa.array([shard if is_owner else -1] * count, pa.int32())
        others = [table[f.name] if f.name in given else pa.nulls(count, f.type) for f in list(schema)[2:]]
        tables.append(pa.table([owner, table["key"], *others], schema=schema))
    return pa.concat_tables(tables)
