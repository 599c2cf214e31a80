"""Worker side of `copies`: recordings of equal sound, and which of them has the best transcript.

A FLAC's header has the MD5 of its samples (RFC 9639, 8.2), so equal sound is found without decoding anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from megahour.core.schemas import BY_RECOGNISER, DUPLICATES
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter

HEADER_BYTES = 42  # "fLaC", the header of a block, and STREAMINFO, which ends with the MD5
MD5_BYTES = 16
KIND = "recording"
SENT = pa.schema(
    [
        ("key", pa.int64()),
        ("md5", pa.binary(MD5_BYTES)),
        ("people", pa.int32()),  # words that people wrote
        ("timed", pa.int32()),  # words of their cues that have times
        ("words", pa.int32()),  # anyone's
    ]
)


def split_shard(recordings: Artifact, shard: int, partitions: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(partition, rows) of one shard, by the sound."""
    index = recordings.read_table(shard, columns=["key", "offset"]).to_pylist()
    worth = _worth(recordings.read_table(shard, ".cues.parquet"))
    waiting: dict[int, list[dict[str, Any]]] = {}
    with recordings.open(shard, ".tar") as file:
        for row in index:
            file.seek(row["offset"])
            md5 = file.read(HEADER_BYTES)[-MD5_BYTES:]
            if not any(md5):  # an encoder need not write it: then the recording is like no other
                md5 = row["key"].to_bytes(MD5_BYTES, "little")
            people, timed, words = worth.get(row["key"], (0, 0, 0))
            sent = {"key": row["key"], "md5": md5, "people": people, "timed": timed, "words": words}
            waiting.setdefault(int.from_bytes(md5[:8], "little") % partitions, []).append(sent)
    for partition in sorted(waiting):
        yield partition, pa.RecordBatch.from_pylist(waiting[partition], SENT)


def _worth(cues: pa.Table) -> dict[int, tuple[int, int, int]]:
    """Words of each recording's first transcript: if people's, those of cues with times, and in any case."""
    words = pc.list_value_length(cues["offsets"]).fill_null(0).to_pylist()
    numbers = cues["transcript"].fill_null(0).to_pylist()
    written: dict[int, dict[int, tuple[int, int]]] = {}
    for key, number, n, start in zip(
        cues["key"].to_pylist(), numbers, words, cues["start_samples"].to_pylist(), strict=True
    ):
        own = written.setdefault(key, {})
        total, timed = own.get(number, (0, 0))
        own[number] = (total + n, timed + n * (start >= 0))
    found = {}
    for key, own in written.items():
        first = min(own.keys() - {BY_RECOGNISER}, default=BY_RECOGNISER)
        total, timed = own[first]
        found[key] = (total * (first != BY_RECOGNISER), timed, total)
    return found


def merge_partition(batches: Iterable[pa.RecordBatch], out: ShardWriter) -> None:
    """Write one partition's DUPLICATES: of each group of equal sound all but the one with the best transcript."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    rows.sort(key=lambda row: (row["md5"], not row["people"], not row["timed"], -row["words"], row["key"]))
    listed = []
    for _, group in groupby(rows, key=lambda row: row["md5"]):
        stays, *others = group
        listed += [{"key": row["key"], "duplicate_of": stays["key"], "kind": KIND, "similarity": 1.0} for row in others]
        out.stat("with_another_transcript", sum(row["words"] != stays["words"] for row in others))
    out.came_in(len(rows))
    out.kept(len(rows) - len(listed))
    out.drop("same-audio", len(listed))
    out.table(pa.Table.from_pylist(sorted(listed, key=lambda row: row["key"]), DUPLICATES))
