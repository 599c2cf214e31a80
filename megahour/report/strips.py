"""Recordings as strips that show which parts were kept or left out, and where the shown utterances are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.store import Artifact
from megahour.report.survey import columns_of

CELLS = 200  # cells per strip, whatever the recording's length
NOTHING, LEFT_OUT, KEPT = range(3)
Row = Mapping[str, Any]


def strips(artifact: Artifact, rows: Sequence[Row], recordings: Artifact | None) -> dict[str, Any]:
    """Strips for the page. `of`: seconds and CELLS digits per recording; `at`: index into `of` for each of `rows`.

    Digits: 0 unknown, 1 left out, 2 kept. Empty if the rows have no times in recordings. Without `recordings`, a strip
    ends with the last known span.
    """
    if not rows or not {"recording", "start_samples"} <= set(rows[0]):
        return {}
    keys = sorted({row["recording"] for row in rows})
    number = {key: place for place, key in enumerate(keys)}
    wanted = np.array(keys, np.int64)
    found: list[list[tuple[int, int, int]]] = [[] for _ in keys]
    for receipt in artifact.each_receipt():
        for suffix, kind in ((".dropped.parquet", LEFT_OUT), (".parquet", KEPT)):
            if suffix in receipt.files:
                names = ["recording", "start_samples", "end_samples"]
                table = artifact.read_table(receipt.shard, suffix, columns=names)
                table = table.filter(np.isin(table["recording"].to_numpy(), wanted))
                for row in table.to_pylist():
                    if 0 <= row["start_samples"] < row["end_samples"]:
                        found[number[row["recording"]]].append((kind, row["start_samples"], row["end_samples"]))
    lengths = _lengths(recordings, wanted) if recordings else {}
    rates = {row["recording"]: max(row["rate_hz"], 1) for row in rows}
    of = []
    for key, spans in zip(keys, found, strict=True):
        length = max(lengths.get(key, 0), *(end for _, _, end in spans), 1) if spans else max(lengths.get(key, 0), 1)
        of.append([round(length / rates[key], 2), "".join(map(str, _cells(spans, length).tolist()))])
    return {"strips": {"of": of, "at": [number[row["recording"]] for row in rows]}}


def _cells(spans: Sequence[tuple[int, int, int]], length: int) -> NDArray[np.int8]:
    """(CELLS,): the largest kind among the spans that touch each cell."""
    cells = np.zeros(CELLS, np.int8)
    for kind, start, end in spans:
        part = cells[start * CELLS // length : max(-(-end * CELLS // length), start * CELLS // length + 1)]
        np.maximum(part, kind, out=part)
    return cells


def _lengths(recordings: Artifact, wanted: NDArray[np.int64]) -> dict[int, int]:
    lengths: dict[int, int] = {}
    if not {"key", "samples"} <= set(columns_of(recordings)):
        return lengths
    for receipt in recordings.each_receipt():
        index = recordings.read_table(receipt.shard, columns=["key", "samples"])
        here = np.isin(index["key"].to_numpy(), wanted)
        lengths |= {row["key"]: row["samples"] for row in index.filter(here).to_pylist()}
    return lengths
