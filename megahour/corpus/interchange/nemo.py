"""NeMo's JSON-lines manifests: of the WebDataset tars (`audio_filepath` is the member's name), and of plain files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from megahour.core.records import canonical_json
from megahour.corpus.interchange.record import CUSTOM, Row, json_ready
from megahour.corpus.interchange.webdataset import Add

if TYPE_CHECKING:
    from megahour.core.writer import ShardWriter


def line(record: Row, audio: str) -> Row:
    """One entry. `text` is normalised, `raw_text` as it was written; the rest of the record is the custom field."""
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
