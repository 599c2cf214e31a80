"""lhotse: cuts with their recordings, supervisions and word alignments; Shar, and plain manifests of FLAC files.

Layout as lhotse 1.3x writes it: a cut a line in `cuts.jsonl.gz`; in Shar's `recording.tar` each FLAC is followed by
the JSON of its recording, in the order of the cuts.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from megahour.core.records import canonical_json
from megahour.corpus.interchange.record import CUSTOM, Row, json_ready, timed_words
from megahour.corpus.interchange.webdataset import Add
from megahour.corpus.tar import tar_writer

if TYPE_CHECKING:
    from megahour.core.writer import ShardWriter


def recording(record: Row, source: dict[str, Any]) -> Row:
    """A lhotse Recording of one channel: the utterance's own audio, from its first sample to its last."""
    return {
        "id": str(record["key"]),
        "sources": [{**source, "channels": [0]}],
        "sampling_rate": record["rate_hz"],
        "num_samples": record["samples"],
        "duration": record["samples"] / record["rate_hz"],
        "channel_ids": [0],
    }


def cut(record: Row, source: dict[str, Any]) -> Row:
    """A MonoCut with one supervision; the whole record is the custom field of both."""
    key, rate_hz = str(record["key"]), record["rate_hz"]
    length = record["samples"] / rate_hz
    words = [
        [word, start / rate_hz, (end - start) / rate_hz, json_ready({"": confidence})[""]]
        for word, start, end, confidence in timed_words(record)
    ]
    supervision = {
        "id": key,
        "recording_id": key,
        "start": 0.0,
        "duration": length,
        "channel": 0,
        "text": record["text"],
        "language": record["language"],
        "speaker": record["speaker"],
        **({"alignment": {"word": words}} if words else {}),
    }
    return {
        "id": key,
        "start": 0.0,
        "duration": length,
        "channel": 0,
        "supervisions": [supervision],
        "recording": recording(record, source),
        "custom": {CUSTOM: json_ready(record)},
        "type": "MonoCut",
    }


@contextmanager
def jsonl_gz(out: ShardWriter, suffix: str) -> Iterator[Callable[[Row], None]]:
    """A writer of JSON lines into gzip without a date or a name, so that equal lines give equal bytes."""
    with out.open(suffix) as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        yield lambda value: void(file.write(canonical_json(value).encode() + b"\n"))


def void(_: object) -> None:
    """Drop a value that a callback must not return."""


@contextmanager
def write_shar(out: ShardWriter) -> Iterator[Add]:
    """Writer of `.shar.cuts.jsonl.gz` and `.shar.recording.tar`."""
    with (
        jsonl_gz(out, ".shar.cuts.jsonl.gz") as line,
        out.open(".shar.recording.tar") as file,
        tar_writer(file) as tar,
    ):

        def add(record: Row, flac: bytes) -> None:
            made = cut(record, {"type": "shar", "source": ""})
            line(made)
            tar.add(f"{record['key']}.flac", flac)
            tar.add(f"{record['key']}.json", canonical_json(made["recording"]).encode())

        yield add
