"""Worker side of `duplicates`, second half: compares the utterances of a partition, bucket by bucket."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from megahour.core.schemas import DUPLICATES
from megahour.core.writer import ShardWriter
from megahour.select.fingerprints import HOP_S, Fingerprint, common_share
from megahour.select.params import DuplicatesParams
from megahour.select.prints import jaccard, shingles

Row = dict[str, Any]
Similar = Callable[[Row, Row, int], float]  # similarity of two rows in the same bucket; 0 if they are not duplicates


@dataclass
class Duplicate:
    """The utterance that a duplicate resembles most, of those compared so far."""

    of: int
    similarity: float


def merge_partition(p: DuplicatesParams, batches: Iterable[pa.RecordBatch], out: ShardWriter, *, alone: bool) -> None:
    """Write the `DUPLICATES` of one partition, sorted by key and kind.

    alone: this is the only partition, so listed keys count as dropped. Otherwise other partitions may list them too.
    """
    rows: list[Row] = []
    came_in = 0
    for batch in batches:
        for row in batch.to_pylist():
            came_in += int(row["home"])
            if row["audio_buckets"] or row["text_buckets"]:
                rows.append(_ready(row))
    # A row can only be a duplicate of an earlier one, so the first of several similar utterances always stays.
    rows.sort(key=lambda row: (_loss(row) if p.keep == "best" else 0.0, row["key"]))
    once: dict[int, Row] = {}  # a list of keys cannot tell copies with one key apart; `select` takes one of them
    for row in rows:
        once.setdefault(row["key"], row)
    rows = list(once.values())
    listed: list[Row] = []
    for kind, similar in (("audio", _sound(p)), ("text", _text(p))):
        duplicates = _compared(p, rows, f"{kind}_buckets", similar, out)
        out.stat(f"listed_{kind}", len(duplicates))
        listed += [
            {"key": key, "duplicate_of": duplicates[key].of, "kind": kind, "similarity": duplicates[key].similarity}
            for key in sorted(duplicates)
        ]
    listed.sort(key=lambda row: (row["key"], row["kind"]))
    reasons = {row["key"]: f"same-{row['kind']}" for row in reversed(listed)} if alone else {}
    for reason, count in sorted(Counter(reasons.values()).items()):
        out.drop(reason, count)
    out.came_in(came_in)
    out.kept(came_in - len(reasons))
    out.table(pa.Table.from_pylist(listed, DUPLICATES))


def _loss(row: Row) -> float:
    """The loss as a sort key; unknown losses come last."""
    return float(row["loss"]) if row["loss"] is not None and row["loss"] == row["loss"] else float("inf")


def _ready(row: Row) -> Row:
    bits, sounding = np.frombuffer(row.pop("bits"), "<u4"), np.frombuffer(row.pop("sounding"), np.bool_)
    return {
        **row,
        "fingerprint": Fingerprint(bits.astype(np.uint32), sounding),
        "shingles": shingles(row["text"]) if row["text"] else None,
    }


def _compared(
    p: DuplicatesParams, rows: list[Row], column: str, similar: Similar, out: ShardWriter
) -> dict[int, Duplicate]:
    """Duplicates by key. `rows` are in order of preference, and are compared bucket by bucket.

    Within a bucket, a row is compared with the earlier rows that are no duplicates in it.
    """
    met: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        for bucket in row[column]:
            met[bucket].append(row)
    duplicates: dict[int, Duplicate] = {}
    for bucket in sorted(bucket for bucket, members in met.items() if len(members) > 1):
        leaders: list[Row] = []
        for row in met[bucket]:
            best = max(((similar(leader, row, bucket), -leader["key"]) for leader in leaders), default=(0.0, 0))
            if best[0] > 0:
                known = duplicates.get(row["key"])
                if known is None or best > (known.similarity, -known.of):
                    duplicates[row["key"]] = Duplicate(-best[1], best[0])
            elif len(leaders) < p.most_compared:
                leaders.append(row)
            else:
                out.stat("not_compared", 1)
    return duplicates


def _sound(p: DuplicatesParams) -> Similar:
    least = max(1, round(p.min_common_s / HOP_S))

    def similar(one: Row, other: Row, value: int) -> float:
        first, second = one["fingerprint"], other["fingerprint"]
        shorter = min(int(first.sounding.sum()), int(second.sounding.sum()))
        wanted = max(least, round(p.min_common_share * shorter))
        share, _ = common_share(first, second, value, least=wanted)
        return share if share >= p.audio_similarity else 0.0

    return similar


def _text(p: DuplicatesParams) -> Similar:
    def similar(one: Row, other: Row, _: int) -> float:
        share = jaccard(one["shingles"], other["shingles"])
        return share if share >= p.text_similarity else 0.0

    return similar
