"""One pass over a data set's tables: hours by name, distributions, and which rows the page shows.

Memory does not grow with the corpus: the number of counters is bounded, histogram edges and sample sizes are fixed, and
only one shard's columns are loaded at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from numpy.typing import NDArray

from megahour.core.store import Artifact
from megahour.report.counters import Heaviest, Sample
from megahour.report.dimensions import DIMENSIONS, with_names
from megahour.report.gather import Histogram

Advance = Callable[[int, int], None]  # shards done, shards in all
# What hours are counted by; attributions are kept with their licence.
GROUPS = (*DIMENSIONS, "source", "attribution")
EDGES = {
    "seconds": np.arange(0, 30.5, 0.5),
    "cer": np.linspace(0, 1, 51),
    "edge_cer": np.linspace(0, 1, 51),
    "confidence": np.linspace(0, 1, 41),
    "snr_db": np.arange(-10.0, 62.0, 2.0),
    "minutes": np.arange(0, 181.0, 3.0),
    "words_per_s": np.arange(0, 8.25, 0.25),
    "wildcard_share": np.linspace(0, 1, 51),
}
MEASURED = ("cer", "edge_cer", "confidence", "snr_db", "wildcard_share")  # as the table has them
MOST_SERIES = 4
UNKNOWN = "unknown"


@dataclass
class Survey:
    """Statistics of a table that has `samples` and `rate_hz`."""

    columns: list[str]
    hours: dict[str, Heaviest] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    records: int = 0
    seconds: float = 0.0
    rows: Sample = field(default_factory=lambda: Sample(0, 0))


def columns_of(artifact: Artifact) -> list[str]:
    """Column names of the first shard's `.parquet`; empty if it has none."""
    for receipt in artifact.each_receipt():
        if ".parquet" in receipt.files:
            with artifact.open(receipt.shard, ".parquet") as file:
                return list(pa.parquet.read_schema(file).names)
        break
    return []


def survey(artifact: Artifact, *, rows: int, seed: int, advance: Advance) -> Survey:
    """Read the artifact's tables once.

    Parameters
    ----------
    rows: number of rows to sample, by the hashes of their keys.

    Raises
    ------
    StoreError: a table is missing or damaged.
    """
    result = Survey(columns_of(artifact), rows=Sample(rows, seed))
    wanted = {"key", "samples", "rate_hz", "words", "created_s", "text", "transcript", *GROUPS, *MEASURED}
    columns = [name for name in result.columns if name in wanted]
    receipts = artifact.receipts()
    long = "words" not in result.columns  # recordings, not utterances
    for done, receipt in enumerate(receipts, start=1):
        table = artifact.read_table(receipt.shard, columns=columns)
        _count(result, with_names(table), long)
        result.rows.add(receipt.shard, table["key"].to_numpy())
        advance(done, len(receipts))
    return result


def _count(found: Survey, table: pa.Table, long: bool) -> None:
    seconds = table["samples"].to_numpy() / np.maximum(table["rate_hz"].to_numpy(), 1)
    found.records += len(seconds)
    found.seconds += float(seconds.sum())
    for name in GROUPS:
        if name in table.column_names:
            found.hours.setdefault(name, Heaviest()).add(_grouped(table, name, seconds))
    tiers = table["tier"].to_pylist() if "tier" in table.column_names else None
    values: dict[str, NDArray[Any]] = {"minutes": seconds / 60} if long else {"seconds": seconds}
    values |= {name: _floats(table[name]) for name in MEASURED if name in table.column_names}
    if "words" in table.column_names:
        spoken = _floats(pc.list_value_length(table["words"]))
        values["words_per_s"] = np.divide(spoken, seconds, out=np.full(len(seconds), np.nan), where=seconds > 0)
    for name, column in values.items():
        _spread(found, name, column, tiers, "recordings" if long else "utterances")


def _spread(found: Survey, name: str, values: NDArray[Any], tiers: list[str | None] | None, many: str) -> None:
    """Count `values` into the histogram of their name, a series for each tier; without tiers `many` names them."""
    histogram = found.histograms.setdefault(name, Histogram(EDGES[name]))
    known = np.isfinite(values)
    found.unknown[name] = found.unknown.get(name, 0) + int((~known).sum())
    if tiers is None or not any(tiers):
        histogram.add(many, values[known])
        return
    labels = np.array([tier or UNKNOWN for tier in tiers], dtype=object)
    for tier in sorted(set(labels)):
        series = tier if tier in histogram.series or len(histogram.series) < MOST_SERIES else "other"
        histogram.add(series, values[known & (labels == tier)])


def _grouped(table: pa.Table, name: str, seconds: NDArray[Any]) -> Iterator[tuple[str, float, float, str]]:
    """(name, records, seconds, first attribution) of each value in a shard, in the order of the values."""
    by = ["licence", "attribution"] if name == "attribution" and "licence" in table.column_names else [name]
    credit = "attribution" in table.column_names
    columns = {column: table[column] for column in by} | {"seconds": pa.array(seconds)}
    if credit and name != "attribution":
        columns["credit"] = table["attribution"]
        by = [*by, "credit"]
    grouped = pa.table(columns).group_by(by, use_threads=False).aggregate([("seconds", "sum"), ("seconds", "count")])
    rows = sorted(
        (tuple(row[column] or "" for column in by), row["seconds_count"], row["seconds_sum"])
        for row in grouped.to_pylist()
    )
    for names, records, total in rows:
        if name == "attribution":
            yield "\n".join(names), records, total, names[-1]
        else:
            yield names[0], records, total, names[-1] if credit else ""


def _floats(column: Any) -> NDArray[Any]:
    values: NDArray[Any] = column.cast(pa.float64()).to_numpy()
    return values


def median(histogram: Histogram, share: float = 0.5) -> float | None:
    """The quantile `share` (0.5: the median), interpolated within a bin; None for an empty histogram."""
    counts = np.sum([np.zeros(len(histogram.edges) - 1, np.int64), *histogram.series.values()], axis=0)
    total = int(counts.sum())
    if not total:
        return None
    below = np.cumsum(counts)
    bin_number = int(np.searchsorted(below, share * total))
    before = int(below[bin_number - 1]) if bin_number else 0
    part = (share * total - before) / max(int(counts[bin_number]), 1)
    low, high = float(histogram.edges[bin_number]), float(histogram.edges[bin_number + 1])
    return float(low + part * (high - low))
