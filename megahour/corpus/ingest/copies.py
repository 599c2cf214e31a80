"""Worker side of `copies`: find recordings with equal samples, and keep the one with the best transcript.

A FLAC header holds the MD5 of the samples (RFC 9639, 8.2), so nothing is decoded.
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

HEADER_BYTES = 42  # "fLaC", a block header, and STREAMINFO, which ends with the MD5
MD5_BYTES = 16
KIND = "recording"
COMPARED = pa.schema(
    [
        ("key", pa.int64()),
        ("md5", pa.binary(MD5_BYTES)),
        ("people", pa.int32()),  # words of a transcript that people wrote
        ("timed", pa.int32()),  # words in cues with times
        ("words", pa.int32()),  # words of people's or the recogniser's transcript
    ]
)


def split_shard(recordings: Artifact, shard: int, partitions: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(partition, rows of `COMPARED`) of one shard; recordings with equal samples go to the same partition."""
    index = recordings.read_table(shard, columns=["key", "offset"]).to_pylist()
    worth = _worth(recordings.read_table(shard, ".cues.parquet"))
    waiting: dict[int, list[dict[str, Any]]] = {}
    with recordings.open(shard, ".tar") as file:
        for row in index:
            file.seek(row["offset"])
            md5 = file.read(HEADER_BYTES)[-MD5_BYTES:]
            if not any(md5):  # not written by the encoder: treat the recording as unique
                md5 = row["key"].to_bytes(MD5_BYTES, "little")
            people, timed, words = worth.get(row["key"], (0, 0, 0))
            compared = {"key": row["key"], "md5": md5, "people": people, "timed": timed, "words": words}
            waiting.setdefault(int.from_bytes(md5[:8], "little") % partitions, []).append(compared)
    for partition in sorted(waiting):
        yield partition, pa.RecordBatch.from_pylist(waiting[partition], COMPARED)


def _worth(cues: pa.Table) -> dict[int, tuple[int, int, int]]:
    """(people, timed, words) of each recording's first transcript, as in `COMPARED`, by key."""
    words = pc.list_value_length(cues["offsets"]).fill_null(0)
    columns = (cues["key"], cues["transcript"].fill_null(0), words, cues["start_samples"])
    counts: dict[int, dict[int, tuple[int, int]]] = {}  # (words, timed words) by key and transcript
    for key, transcript, n, start in zip(*(column.to_pylist() for column in columns), strict=True):
        total, timed = counts.setdefault(key, {}).get(transcript, (0, 0))
        counts[key][transcript] = (total + n, timed + n * (start >= 0))
    worth = {}
    for key, transcripts in counts.items():
        first = min(transcripts.keys() - {BY_RECOGNISER}, default=BY_RECOGNISER)
        total, timed = transcripts[first]
        worth[key] = (total * (first != BY_RECOGNISER), timed, total)
    return worth


def merge_partition(batches: Iterable[pa.RecordBatch], out: ShardWriter) -> None:
    """Write the `DUPLICATES` of one partition: all recordings of a group but the one with the best transcript."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    rows.sort(key=lambda row: (row["md5"], not row["people"], not row["timed"], -row["words"], row["key"]))
    listed = []
    for _, group in groupby(rows, key=lambda row: row["md5"]):
        best, *others = group
        listed += [{"key": row["key"], "duplicate_of": best["key"], "kind": KIND, "similarity": 1.0} for row in others]
        out.stat("with_another_transcript", sum(row["words"] != best["words"] for row in others))
    out.came_in(len(rows))
    out.kept(len(rows) - len(listed))
    out.drop("same-audio", len(listed))
    out.table(pa.Table.from_pylist(sorted(listed, key=lambda row: row["key"]), DUPLICATES))
