"""Raw shards with the truth: the form of generated and composed corpora before ingest.

The tar holds `{name}.flac`, a transcript `{name}.srt`, `.vtt` or `.txt`, and `{name}.json` with side information. What
was really said, and when, is beside it in two tables that only scoring reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.core.records import canonical_json
from megahour.core.schemas import TRUTH
from megahour.core.writer import ShardWriter
from megahour.corpus.generate.transcript_errors import WrittenLine
from megahour.corpus.media.audio import encode_flac
from megahour.corpus.media.tar import tar_writer

TRUE_SENTENCES = pa.schema(
    [
        ("name", pa.string()),
        ("sentence", pa.int32()),
        ("spoken", pa.string()),
        ("raw", pa.string()),
        ("in_transcript", pa.bool_()),
        ("start_samples", pa.int64()),
        ("end_samples", pa.int64()),
    ]
)


class TrueWord(NamedTuple):
    """A spoken word, from `start_samples` up to `end_samples` of the recording; `sentence` counts from 0."""

    text: str
    start_samples: int
    end_samples: int
    sentence: int


class TrueSentence(NamedTuple):
    """A spoken sentence, and whether the transcript has it."""

    spoken: str
    raw: str
    in_transcript: bool
    start_samples: int
    end_samples: int


@dataclass(frozen=True)
class RawRecording:
    """A recording as it enters a raw shard: `samples` int16 (N,) at `rate_hz`, transcript, side information, truth."""

    name: str
    samples: NDArray[np.int16]
    rate_hz: int
    transcript: str
    form: str  # "srt", "vtt" or "txt"
    info: dict[str, str | int]
    words: list[TrueWord]
    sentences: list[TrueSentence] = field(default_factory=list)


def write_raw(recordings: Iterable[RawRecording], out: ShardWriter) -> int:
    """Write one shard: `.tar`, `.truth.parquet`, `.sentences.parquet`; audio of one recording at a time in memory.

    Returns the number of recordings.
    """
    written = 0
    words: list[tuple[Any, ...]] = []
    sentences: list[tuple[Any, ...]] = []
    with out.open(".tar") as file, tar_writer(file) as tar:
        for recording in recordings:
            name = recording.name
            tar.add(f"{name}.flac", encode_flac(recording.samples, recording.rate_hz))
            tar.add(f"{name}.{recording.form}", recording.transcript.encode())
            tar.add(f"{name}.json", canonical_json(recording.info).encode())
            words += [(name, i, *word) for i, word in enumerate(recording.words)]
            sentences += [(name, i, *sentence) for i, sentence in enumerate(recording.sentences)]
            written += 1
            out.stat("recordings", 1)
            out.stat("audio_samples", len(recording.samples))
            out.stat("audio_s", round(len(recording.samples) / recording.rate_hz, 3))
            out.stat("words", len(recording.words))
            out.stat("sentences", len(recording.sentences))
            out.stat("sentences_without_text", sum(not s.in_transcript for s in recording.sentences))
    out.table(_table(words, TRUTH), ".truth.parquet")
    out.table(_table(sentences, TRUE_SENTENCES), ".sentences.parquet")
    return written


LINES = pa.schema([("name", pa.string()), ("line", pa.int32()), ("text", pa.string()), ("sentence", pa.int32())])
"""Lines of each transcript in order; `sentence` is the number of the sentence, -1 when the line was not spoken."""

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


def write_composed(recordings: Iterable[ComposedRecording], out: ShardWriter) -> None:
    """Write one shard: the files of `write_raw`, `.lines.parquet` and `.passages.parquet`; audio as there."""
    lines: list[tuple[Any, ...]] = []
    passages: list[tuple[Any, ...]] = []

    def seen() -> Iterator[ComposedRecording]:
        for recording in recordings:
            name = recording.name
            lines.extend((name, i, *line) for i, line in enumerate(recording.lines))
            passages.extend((name, *passage) for passage in recording.passages)
            out.stat("lines", len(recording.lines))
            out.stat("lines_never_spoken", sum(line.sentence < 0 for line in recording.lines))
            out.stat("passages", len(recording.passages))
            yield recording

    write_raw(seen(), out)
    out.table(_table(lines, LINES), ".lines.parquet")
    out.table(_table(passages, PASSAGES), ".passages.parquet")


def _table(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """A table of rows whose values are in the order of the schema's columns."""
    return pa.table({name: [row[i] for row in rows] for i, name in enumerate(schema.names)}, schema=schema)
