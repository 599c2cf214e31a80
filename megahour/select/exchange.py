"""Worker side of `select`: metadata rows to their partitions, and a partition sorted by speaker and time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from numpy.typing import NDArray

from megahour.core.schemas import LEFT_OUT_S, SELECTION, UTTERANCES
from megahour.core.stage import Batches, Inputs
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.text.language_id import canonical
from megahour.runner.beside import rows_beside
from megahour.select.draw import UsableRows, rows_of, taken, taken_of_speakers
from megahour.select.params import SelectParams
from megahour.select.sample import Layout
from megahour.select.voices import COUNTED, WHO, Census, voices

BATCH_ROWS = 4096
LISTED = "listed as a duplicate"
SENT = SELECTION.append(pa.field(LISTED, pa.bool_()))
REASONS = (
    "usable",
    "duplicate",
    "other-split",
    "other-tier",
    "low-confidence",
    "before-from",
    "after-until",
    "other-language",
)
USABLE = 0
SHARED = "recording-of-another-set"
FILTERED = ["key", *WHO, "samples", "rate_hz", "confidence", "created_s", "split", "tier", "language"]
# Recordings of one speaker one after the other, each in order of time; the key completes the order, so that it does
# not depend on how the utterances are sharded.
ORDER = ("speaker", "created_s", "recording", "start_samples", "key")


def census(p: SelectParams, inputs: Inputs) -> Census:
    """The voices of the usable utterances: as workers have counted them (`CountVoices`), else read shard by shard."""
    if "counted" not in inputs:
        return count_voices(p, inputs, range(inputs["utterances"].manifest.shards))
    found, counted = Census(), inputs["counted"]
    for part in range(counted.manifest.shards):
        found.merge({suffix: counted.read_table(part, suffix) for suffix in COUNTED})
    return found


def count_voices(p: SelectParams, inputs: Inputs, shards: Iterable[int]) -> Census:
    """The voices of the usable utterances of these shards."""
    found = Census()
    for shard in shards:
        found.add(_usable(p, inputs, shard))
    return found


def drawn_from(p: SelectParams, layout: Layout, inputs: Inputs) -> Iterator[UsableRows]:
    """The usable utterances of the sets that are drawn, read shard by shard."""
    utterances = inputs["utterances"]
    for shard in range(utterances.manifest.shards):
        table = _usable(p, inputs, shard)
        names, places = voices(table)
        sets = _sets(layout, names)
        for name in sorted(p.draw_hours):
            own = (sets == name) & _uncontested(layout, name, places)
            if own.any():
                yield rows_of(name, table.filter(pa.array(own)), p.seed, p.period_s)


def _sets(layout: Layout, names: NDArray[np.object_]) -> NDArray[np.object_]:
    """(rows,) the set of each voice, "" of those that no set takes."""
    shard_of = {voice: layout.shard_of(voice) for voice in set(names)}
    set_of = {voice: "" if shard is None else layout.shards[shard].set for voice, shard in shard_of.items()}
    return np.array([set_of[voice] for voice in names], object)


def _usable(p: SelectParams, inputs: Inputs, shard: int) -> pa.Table:
    """The rows of an utterances shard that pass all filters."""
    if _of_other_times(p, inputs["utterances"], shard):
        return UTTERANCES.empty_table().select(FILTERED)
    table = inputs["utterances"].read_table(shard, columns=FILTERED)
    return table.filter(pa.array(_reasons(p, table, _listed(inputs, shard, table)) == USABLE))


def _of_other_times(p: SelectParams, utterances: Artifact, shard: int) -> bool:
    """Whether the Parquet statistics of a shard tell that none of it is of the wanted times.

    Of metadata that are partitioned by time the others are not read for nothing.
    """
    if not (p.from_s or p.until_s):
        return False
    with utterances.open(shard, ".parquet") as file:
        about = pyarrow.parquet.read_metadata(file)
    column = [about.schema.column(i).path for i in range(about.num_columns)].index("created_s")
    known = [about.row_group(group).column(column).statistics for group in range(about.num_row_groups)]
    return all(
        each is not None and each.has_min_max and (each.max < p.from_s or (bool(p.until_s) and each.min > p.until_s))
        for each in known
    )


def _listed(inputs: Inputs, shard: int, table: pa.Table) -> NDArray[np.bool_]:
    """(rows,) which rows of an utterances shard are listed as duplicates, see `Select.layouts`."""
    if "listed" not in inputs:
        return np.zeros(table.num_rows, np.bool_)
    keys = rows_beside(inputs["listed"], shard)["key"].combine_chunks()
    listed: NDArray[np.bool_] = pc.is_in(table["key"], value_set=keys).to_numpy()
    return listed


def _reasons(p: SelectParams, table: pa.Table, twice: NDArray[np.bool_]) -> NDArray[np.int8]:
    """(rows,) places in `REASONS`. twice: (rows,) which are duplicates."""
    split, tier = (_outside(table[name], wanted) for name, wanted in (("split", p.splits), ("tier", p.tiers)))
    confidence, created_s = table["confidence"].to_numpy(), table["created_s"].to_numpy()
    late = created_s > p.until_s if p.until_s else np.zeros(created_s.size, np.bool_)
    language = _in_other_languages(table["language"], p.languages)
    wrong = [twice, split, tier, confidence < p.min_confidence, created_s < p.from_s, late, language]
    return np.select(wrong, range(1, len(REASONS)), default=USABLE).astype(np.int8)


def _outside(column: pa.ChunkedArray, wanted: list[str]) -> NDArray[np.bool_]:
    """(rows,) which values are not among those `wanted`; none are if all are wanted."""
    return _other_than(column, wanted) if wanted else np.zeros(len(column), np.bool_)


def _other_than(column: pa.ChunkedArray, values: list[str]) -> NDArray[np.bool_]:
    other: NDArray[np.bool_] = ~pc.is_in(column, value_set=pa.array(values, pa.string())).to_numpy()
    return other


def _in_other_languages(column: pa.ChunkedArray, wanted: list[str]) -> NDArray[np.bool_]:
    """(rows,) which are in none of these languages; a language without a region takes all its regions."""
    if not wanted:
        return np.zeros(len(column), np.bool_)
    starts = tuple(f"{canonical(tag)}-" for tag in wanted)
    known = [tag for tag in pc.unique(column).to_pylist() if f"{canonical(tag)}-".startswith(starts)]
    return _other_than(column, known)


def split_shard(p: SelectParams, layout: Layout, inputs: Inputs, shard: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(partition, rows) of one utterances shard. Unusable rows go along, so that they are counted where they end."""
    table = inputs["utterances"].read_table(shard)
    listed = _listed(inputs, shard, table)
    names, _ = voices(table)
    shard_of_voice = {voice: layout.shard_of(voice) for voice in set(names)}
    numbers = np.array([-1 if shard_of_voice[voice] is None else shard_of_voice[voice] for voice in names], np.int64)
    for partition in np.unique(numbers[numbers >= 0]).tolist():
        rows = table.take(np.flatnonzero(numbers == partition))
        name = layout.shards[partition].set
        rows = rows.append_column("set", pa.array([name] * rows.num_rows, pa.string()))
        rows = rows.append_column("shard", pa.array([shard] * rows.num_rows, pa.int32()))
        rows = rows.append_column(LISTED, pa.array(listed[numbers == partition])).cast(SENT)
        for batch in rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
            yield partition, batch


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
    table = sent.drop_columns([LISTED])
    out.came_in(table.num_rows)
    reasons = _reasons(p, table, sent[LISTED].to_numpy())
    for number, reason in enumerate(REASONS):
        if number != USABLE:
            _leave_out(out, reason, table, reasons == number)
    table = table.filter(pa.array(reasons == USABLE))
    table, names = _in_this_set(layout, name, table, out)
    if name in p.draw_hours:
        rows = rows_of(name, table, p.seed, p.period_s)
        evenly = name in layout.levels
        drawn = taken_of_speakers(rows, names, layout.levels[name]) if evenly else taken(rows, layout.limits)
        _leave_out(out, "not-drawn", table, ~drawn)
        table, names = table.filter(pa.array(drawn)), names[drawn]
    spelled = [layout.spellings.get(voice, own) for voice, own in zip(names, table["speaker"].to_pylist(), strict=True)]
    table = table.set_column(SELECTION.get_field_index("speaker"), "speaker", pa.array(spelled, pa.string()))
    table = table.sort_by([(column, "ascending") for column in ORDER])
    if p.speaker_hours and table.num_rows:
        within = _within_cap(table, p.speaker_hours * 3600)
        _leave_out(out, "over-speaker-hours", table, ~within)
        table = table.filter(pa.array(within))
    out.kept(table.num_rows)
    out.stat("audio_s", round(float(_seconds(table).sum()), 4))
    out.stat("speakers", len(pc.unique(table["speaker"])))
    out.tags["set"] = name
    out.table(table)


def _seconds(table: pa.Table) -> NDArray[np.float64]:
    seconds: NDArray[np.float64] = table["samples"].to_numpy() / np.maximum(table["rate_hz"].to_numpy(), 1)
    return seconds


def _leave_out(out: ShardWriter, reason: str, table: pa.Table, rows: NDArray[np.bool_]) -> None:
    """Drops these rows, and adds up their seconds for `coverage`."""
    if rows.any():
        out.drop(reason, int(rows.sum()))
        out.stat(LEFT_OUT_S + reason, round(float(_seconds(table)[rows].sum()), 4))


def _in_this_set(layout: Layout, name: str, table: pa.Table, out: ShardWriter) -> tuple[pa.Table, NDArray[np.object_]]:
    """The rows whose recording is no other set's, and their voices; the others are dropped."""
    names, places = voices(table)
    ours = _uncontested(layout, name, places)
    _leave_out(out, SHARED, table, ~ours)
    return table.filter(pa.array(ours)), names[ours]


def _uncontested(layout: Layout, name: str, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(rows,) which are heard in no recording of another set."""
    contested = layout.contested
    return np.array([all(contested.get(place, name) == name for place in row) for row in places.tolist()], np.bool_)


def _within_cap(table: pa.Table, limit_s: float) -> NDArray[np.bool_]:
    used: dict[str, float] = defaultdict(float)
    keep = np.zeros(table.num_rows, np.bool_)
    names, _ = voices(table)
    rows = zip(names, table["samples"].to_pylist(), table["rate_hz"].to_pylist(), strict=True)
    for at, (voice, samples, rate_hz) in enumerate(rows):
        used[voice] += samples / rate_hz
        keep[at] = used[voice] <= limit_s
    return keep
