"""NeMo's JSON-lines manifests, of WebDataset tars (`audio_filepath` is the member's name) or of plain files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from megahour.core.errors import RECORD_FAULTS, BadRecord, bad_record
from megahour.core.records import canonical_json
from megahour.core.writer import ShardWriter
from megahour.corpus.interchange.record import CUSTOM, Row, json_ready
from megahour.corpus.interchange.untrusted import Audio, Entry, custom, duration, json_object, string
from megahour.corpus.interchange.webdataset import Add


def line(record: Row, audio: str) -> Row:
    """A manifest entry. `text` is normalised, `raw_text` is as written; the custom field has the whole record."""
    return {
        "audio_filepath": audio,
        "duration": record["samples"] / record["rate_hz"],
        "offset": 0.0,
        "text": record["text"],
        "raw_text": record["raw"],
        "lang": record["language"],
        "speaker": record["speaker"],
        "license": record["licence"],
        "attribution": record["attribution"],
        CUSTOM: json_ready(record),
    }


@contextmanager
def write_tarred(out: ShardWriter) -> Iterator[Add]:
    """Writer of `.nemo.jsonl`, which belongs to the `.tar` of the same number."""
    with out.open(".nemo.jsonl") as file:

        def add(record: Row, flac: bytes) -> None:
            entry = {**line(record, f"{record['key']}.flac"), "shard_id": out.shard}
            file.write(canonical_json(entry).encode() + b"\n")

        yield add


def read_nemo(lines: Iterator[str | BadRecord], find: Callable[[str], Audio]) -> Iterator[Entry | BadRecord]:
    """Entries of a manifest's lines, a BadRecord for a bad one. `find` returns the audio of an `audio_filepath`."""
    for number, line in enumerate(lines, start=1):
        try:
            value = json_object(line)
            yield _entry(value, find, f"line {number}")
        except RECORD_FAULTS as error:
            yield bad_record(error, f"line {number}")


def _entry(value: dict[str, Any], find: Callable[[str], Audio], where: str) -> Entry:
    path = string(value, "audio_filepath", "audio_file")
    if not path:
        raise BadRecord("bad-field", "the line has no audio_filepath", record=where)
    start_s = duration(value.get("offset") or 0.0, "offset")
    length_s = None if value.get("duration") is None else duration(value["duration"], "duration")
    return Entry(
        id=f"{path}@{start_s:.6f}",
        audio=find(path),
        recording=path,
        text=string(value, "raw_text", "text"),
        start_s=start_s,
        duration_s=length_s,
        speaker=string(value, "speaker", "speaker_id"),
        language=string(value, "lang", "language", "source_lang"),
        licence=string(value, "license", "licence"),
        attribution=string(value, "attribution"),
        source=string(value, "source"),
        record=custom(value),
    )
