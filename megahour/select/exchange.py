"""Worker side of `select`: sends metadata rows to their partitions, and sorts each partition by speaker and time.

With many shards and partitions, rows first go to groups of partitions (`grouped`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.core.schemas import LEFT_OUT_S, SELECTION, UTTERANCES
from megahour.core.stage import Batches, Inputs
from megahour.core.writer import ShardWriter
from megahour.runner.beside import by_place
from megahour.select.draw import UsableRows, first_carry, rows_of, taken, taken_of_speakers
from megahour.select.filters import REASONS, USABLE, listed, reasons, usable
from megahour.select.grouped import parts_of, together
from megahour.select.params import SelectParams
from megahour.select.sample import Layout
from megahour.select.voices import names_of, voices

LISTED, PARTITION = "listed as a duplicate", "partition"
SHARD = SELECTION.field("shard")
SENT = pa.schema([*UTTERANCES, SHARD, pa.field(LISTED, pa.bool_()), pa.field(PARTITION, pa.int32())])
SHARED = "recording-of-another-set"
SAME_KEY = "same-key"
# Keeps the recordings of a speaker together, in order of time. The key breaks ties, so that the order does not depend
# on how the utterances are sharded.
ORDER = ("speaker", "created_s", "recording", "start_samples", "key")


def drawn_from(p: SelectParams, layout: Layout, inputs: Inputs) -> Iterator[UsableRows]:
    """The usable utterances of the sets in `draw_hours`, read shard by shard."""
    utterances = inputs["utterances"]
    for shard in range(utterances.manifest.shards):
        table = usable(p, inputs, shard)
        names, places = voices(table)
        sets = _sets(layout, names)
        for name in sorted(p.draw_hours):
            own = (sets == name) & _uncontested(layout, name, places)
            if own.any():
                yield rows_of(name, table.filter(pa.array(own)), p.seed, p.period_s)


def _sets(layout: Layout, names: NDArray[np.object_]) -> NDArray[np.object_]:
    """(rows,) the set of each voice; "" if no set takes it."""
    shard_of = {voice: layout.shard_of(voice) for voice in set(names)}
    set_of = {voice: "" if shard is None else layout.shards[shard].set for voice, shard in shard_of.items()}
    return np.array([set_of[voice] for voice in names], object)


def split_shards(
    layout: Layout, inputs: Inputs, shards: Iterable[int], group: int = 1
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(partition, rows) of these utterances shards; with `group` above 1, (group, rows) for groups of that size.

    Unusable rows are sent too, so that their partition counts them.
    """
    for table in together(_sent(layout, inputs, shard) for shard in shards):
        yield from by_place(table, table[PARTITION].to_numpy() // group)


def split_group(inputs: Inputs, group: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(partition, rows) from a group's file."""
    for table in parts_of(inputs["grouped"], group):
        yield from by_place(table, table[PARTITION].to_numpy())


def _sent(layout: Layout, inputs: Inputs, shard: int) -> pa.Table:
    """The rows of an utterances shard that belong to a set, with their partitions, as `SENT`."""
    table = inputs["utterances"].read_table(shard)
    names = names_of(table)
    partition_of = {voice: layout.shard_of(voice) for voice in set(names)}
    numbers = np.array([-1 if partition_of[voice] is None else partition_of[voice] for voice in names], np.int32)
    columns = [*(table[field.name] for field in UTTERANCES), pa.array(np.full(len(numbers), shard, np.int32))]
    sent = pa.table([*columns, pa.array(listed(inputs, shard, table)), pa.array(numbers)], schema=SENT)
    return _only(sent, numbers >= 0)


def merge_shard(
    p: SelectParams,
    layout: Layout,
    partition: int,
    batches: Batches,
    out: ShardWriter,
) -> None:
    """Write one partition: the usable rows, sorted by `ORDER`, each speaker under one spelling."""
    name = layout.shards[partition].set
    sent = pa.Table.from_batches(list(batches), SENT)
    table = sent.select(UTTERANCES.names).append_column("set", pa.array([name] * sent.num_rows, pa.string()))
    table = table.append_column(SHARD, sent["shard"]).combine_chunks()
    out.came_in(table.num_rows)
    reason_of = reasons(p, table, sent[LISTED].to_numpy())
    for number, reason in enumerate(REASONS):
        if number != USABLE:
            _leave_out(out, reason, table, reason_of == number)
    table = _only(table, reason_of == USABLE)
    table = _once(table, out)
    table, names = _in_this_set(layout, name, table, out)
    if name in p.draw_hours:
        drawn = _drawn(p, layout, partition, table, names)
        _leave_out(out, "not-drawn", table, ~drawn)
        table, names = _only(table, drawn), names[drawn]
    table = _spelled(layout, names, table)
    table = table.sort_by([(column, "ascending") for column in ORDER])
    if p.speaker_hours and table.num_rows:
        within = _within_cap(table, p.speaker_hours * 3600)
        _leave_out(out, "over-speaker-hours", table, ~within)
        table = _only(table, within)
    out.kept(table.num_rows)
    out.stat("audio_s", round(float(_seconds(table).sum()), 4))
    out.stat("speakers", len(set(names_of(table))))
    out.tags["set"] = name
    out.table(table)


def _drawn(
    p: SelectParams, layout: Layout, partition: int, table: pa.Table, names: NDArray[np.object_]
) -> NDArray[np.bool_]:
    """(rows,) which rows `draw_hours` takes."""
    own = layout.shards[partition]
    rows = rows_of(own.set, table, p.seed, p.period_s)
    if own.set not in layout.levels:
        return taken(rows, layout.limits)
    beside = layout.shards[max(0, partition - 1) : partition + 2]  # a set's shards stand side by side
    is_alone = sum(shard.set == own.set for shard in beside) == 1
    carried = 0 if is_alone else first_carry(rows, own.first_hash, p.seed)
    return taken_of_speakers(rows, names, layout.levels[own.set], carried)


def _only(table: pa.Table, rows: NDArray[np.bool_]) -> pa.Table:
    return table if rows.all() else table.filter(pa.array(rows))


def _seconds(table: pa.Table) -> NDArray[np.float64]:
    seconds: NDArray[np.float64] = table["samples"].to_numpy() / np.maximum(table["rate_hz"].to_numpy(), 1)
    return seconds


def _leave_out(out: ShardWriter, reason: str, table: pa.Table, rows: NDArray[np.bool_]) -> None:
    """Drop these rows, and add up their seconds for `coverage`."""
    if rows.any():
        out.drop(reason, int(rows.sum()))
        out.stat(LEFT_OUT_S + reason, round(float(_seconds(table)[rows].sum()), 4))


def _once(table: pa.Table, out: ShardWriter) -> pa.Table:
    """The rows without repeated keys, as `combine` makes them of artifacts that overlap. The first copy stays."""
    order = np.lexsort((table[SHARD.name].to_numpy(), table["key"].to_numpy()))
    keys = table["key"].to_numpy()[order]
    again = np.zeros(len(order), np.bool_)
    again[order[1:]] = keys[1:] == keys[:-1]
    _leave_out(out, SAME_KEY, table, again)
    return _only(table, ~again)


def _in_this_set(layout: Layout, name: str, table: pa.Table, out: ShardWriter) -> tuple[pa.Table, NDArray[np.object_]]:
    """The rows, and their voices, whose places do not belong to another set. Drops the others."""
    if not layout.contested:
        return table, names_of(table)
    names, places = voices(table)
    ours = _uncontested(layout, name, places)
    _leave_out(out, SHARED, table, ~ours)
    return _only(table, ours), names[ours]


def _spelled(layout: Layout, names: NDArray[np.object_], table: pa.Table) -> pa.Table:
    """The table with each speaker under the name that covers most of their speech."""
    if not layout.spellings:
        return table
    spelled = [layout.spellings.get(voice, own) for voice, own in zip(names, table["speaker"].to_pylist(), strict=True)]
    return table.set_column(SELECTION.get_field_index("speaker"), "speaker", pa.array(spelled, pa.string()))


def _uncontested(layout: Layout, name: str, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(rows,) whether no place of the row belongs to another set."""
    contested = layout.contested
    return np.array([all(contested.get(place, name) == name for place in row) for row in places.tolist()], np.bool_)


def _within_cap(table: pa.Table, limit_s: float) -> NDArray[np.bool_]:
    used: dict[str, float] = defaultdict(float)
    keep = np.zeros(table.num_rows, np.bool_)
    names = names_of(table)
    rows = zip(names, table["samples"].to_pylist(), table["rate_hz"].to_pylist(), strict=True)
    for at, (voice, samples, rate_hz) in enumerate(rows):
        used[voice] += samples / rate_hz
        keep[at] = used[voice] <= limit_s
    return keep
