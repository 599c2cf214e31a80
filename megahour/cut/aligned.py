"""One recording's rows from `align` and `ingest`, as arrays: words, segments, cues and the second reading."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.core.schemas import ALIGNED_SEGMENTS, ALIGNED_WORDS, HEARD
from megahour.core.store import Artifact
from megahour.cut.second_reading import Reading

Row = dict[str, Any]
WORD_COLUMNS = ["key", "cue", "word", "text", "start_samples", "end_samples", "confidence"]  # not the tokens' times


@dataclass(frozen=True)
class AlignedRecording:
    """Aligned words (W,) of a recording in order of time, its segments, cues by number, and second reading."""

    cue: NDArray[np.int64]
    word: NDArray[np.int64]
    text: pa.ChunkedArray
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    confidence: NDArray[np.float32]
    segments: list[Row]
    cues: dict[int, Row]
    reading: Reading

    def speakers(self, first: int, last: int) -> set[str]:
        """Speakers of the cues of words first .. last-1; "" for an unknown one."""
        return {str(self.cues[int(cue)].get("speaker") or "") for cue in np.unique(self.cue[first:last])}

    def loss(self, first: int, last: int) -> float:
        """Mean loss of the cues of words first .. last-1, weighted by words, in nats per token."""
        return float(np.mean([self._losses.get(cue, np.nan) for cue in self.cue[first:last].tolist()]))

    @cached_property
    def _losses(self) -> dict[int, float]:
        return {s["cue"]: s["loss"] for s in self.segments if s["cue"] >= 0 and s["loss"] is not None}


@dataclass
class Tables:
    """The tables of one alignment shard, for access by recording."""

    words: pa.Table = field(default_factory=ALIGNED_WORDS.empty_table)
    segments: pa.Table = field(default_factory=ALIGNED_SEGMENTS.empty_table)
    heard: pa.Table = field(default_factory=HEARD.empty_table)

    def __post_init__(self) -> None:
        self._rows = [_ranges(table["key"].to_numpy()) for table in (self.words, self.segments, self.heard)]

    @classmethod
    def read(cls, alignment: Artifact, shard: int) -> Tables:
        tables = (
            alignment.read_table(shard, columns=WORD_COLUMNS),
            alignment.read_table(shard, ".segments.parquet"),
            alignment.read_table(shard, ".heard.parquet"),
        )
        return cls(*(table.take(np.argsort(table["key"].to_numpy(), kind="stable")) for table in tables))

    def of(self, key: int, cues: Iterable[Row]) -> AlignedRecording:
        """All rows of one recording; without words if `align` refused it."""
        words, segments, heard = (
            table.slice(*rows.get(key, (0, 0)))
            for table, rows in zip((self.words, self.segments, self.heard), self._rows, strict=True)
        )
        numbers: list[Any] = [words[name].to_numpy().astype(np.int64) for name in ("cue", "word", "start_samples")]
        return AlignedRecording(
            numbers[0],
            numbers[1],
            words["text"],
            numbers[2],
            words["end_samples"].to_numpy().astype(np.int64),
            words["confidence"].to_numpy(),
            segments.to_pylist(),
            {cue["cue"]: cue for cue in cues},
            Reading.of(heard),
        )


def _ranges(keys: NDArray[np.int64]) -> dict[int, tuple[int, int]]:
    """(first row, number of rows) of each key; equal keys are adjacent."""
    places = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)] if len(keys) else []
    return {int(keys[a]): (a, b - a) for a, b in pairwise(places)}
