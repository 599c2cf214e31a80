"""What is known of a composed recording beyond its words: the lines of its transcript, and passages that have no text.

Only scoring reads these tables, `.lines.parquet` and `.passages.parquet` of a composed shard.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from megahour.corpus.raw import RawRecording, write_raw

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from megahour.core.writer import ShardWriter
    from megahour.corpus.mistakes import WrittenLine

LINES = pa.schema([("name", pa.string()), ("line", pa.int32()), ("text", pa.string()), ("sentence", pa.int32())])
"""Lines of each transcript in order; `sentence` is the number of the spoken sentence, -1 when nobody said the line."""

PASSAGES = pa.schema(
    [("name", pa.string()), ("language", pa.string()), ("start_samples", pa.int64()), ("end_samples", pa.int64())]
)
"""Stretches of a recording in other languages."""


class Passage(NamedTuple):
    """Speech in another language from `start_samples` up to `end_samples`."""

    language: str
    start_samples: int
    end_samples: int


@dataclass(frozen=True)
class ComposedRecording(RawRecording):
    """A recording with the lines of its transcript, as written, and its passages in other languages."""

    lines: list[WrittenLine] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)


def write_composed(recordings: Iterable[ComposedRecording], out: ShardWriter) -> int:
    """Write one shard: the files of `raw.write_raw`, `.lines.parquet` and `.passages.parquet`.

    Audio of one recording at a time is in memory. Returns the number of recordings.
    """
    lines: list[tuple[str, int, str, int]] = []
    passages: list[tuple[str, str, int, int]] = []

    def seen() -> Iterator[ComposedRecording]:
        for recording in recordings:
            name = recording.name
            lines.extend((name, i, line.text, line.sentence) for i, line in enumerate(recording.lines))
            passages.extend((name, *passage) for passage in recording.passages)
            out.stat("lines", len(recording.lines))
            out.stat("lines_never_spoken", sum(line.sentence < 0 for line in recording.lines))
            out.stat("passages", len(recording.passages))
            yield recording

    written = write_raw(seen(), out)
    out.table(_table(lines, LINES), ".lines.parquet")
    out.table(_table(passages, PASSAGES), ".passages.parquet")
    return written


def _table(rows: list[tuple[str, int, str, int]] | list[tuple[str, str, int, int]], schema: pa.Schema) -> pa.Table:
    return pa.table({name: [row[i] for row in rows] for i, name in enumerate(schema.names)}, schema=schema)
