"""Hugging Face parquet: a column `audio` with {bytes, path}, and one for each field of the record.

The `huggingface` entry of the schema's metadata lists the features, so that `load_dataset` decodes the audio.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet

from megahour.core.errors import RECORD_FAULTS, BadRecord, bad_record
from megahour.core.unicode import plain_rows
from megahour.core.writer import ShardWriter
from megahour.corpus.interchange.record import SCHEMA, Row, checked
from megahour.corpus.interchange.untrusted import Audio, Entry, Root, string
from megahour.corpus.interchange.webdataset import Add

GROUP_ROWS = 100  # a reader holds one row group: about 20 minutes of speech
AUDIO = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def hf_schema() -> pa.Schema:
    """The schema: `audio` and the record's fields, with the features of `datasets` as metadata."""
    features: dict[str, Any] = {"audio": {"_type": "Audio"}}
    features |= {field.name: _feature(field.type) for field in SCHEMA}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema([pa.field("audio", AUDIO), *SCHEMA], metadata=metadata)


def _feature(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_list(kind):
        return {"feature": _feature(kind.value_type), "_type": "List"}
    return {"dtype": "float32" if pa.types.is_floating(kind) else str(kind), "_type": "Value"}


@contextmanager
def write_parquet(out: ShardWriter) -> Iterator[Add]:
    """Writer of `.hf.parquet`, in row groups of `GROUP_ROWS`."""
    schema = hf_schema()
    rows: list[Row] = []
    with pa.parquet.ParquetWriter(out.path(".hf.parquet"), schema, compression="zstd") as writer:

        def flush() -> None:
            writer.write_table(pa.Table.from_pylist(rows, schema))
            rows.clear()

        def add(record: Row, flac: bytes) -> None:
            rows.append({"audio": {"bytes": flac, "path": f"{record['key']}.flac"}, **record})
            if len(rows) == GROUP_ROWS:
                flush()

        yield add
        if rows:
            flush()


BATCH_ROWS = 16
TEXTS = ("raw", "text", "sentence", "transcription", "transcript", "normalized_text")


def read_parquet(file: BinaryIO, root: Root, folder: str, *, max_bytes: int) -> Iterator[Entry | BadRecord]:
    """Entries of a parquet file, `BATCH_ROWS` in memory at a time.

    Bad files give a BadRecord: ``corrupt-parquet`` at an unreadable page, ``too-large`` if a row group unpacks to
    more than `max_bytes`, ``no-audio-column``.
    """
    try:
        source = pa.parquet.ParquetFile(file)
        names = source.schema_arrow.names
        if "audio" not in names:
            raise BadRecord("no-audio-column", f"its columns are {names[:20]}")
        groups = [source.metadata.row_group(i).total_byte_size for i in range(source.num_row_groups)]
        if max(groups, default=0) > max_bytes:
            raise BadRecord("too-large", f"a row group has {max(groups)} bytes, the limit max_bytes is {max_bytes}")
        ours = set(SCHEMA.names) <= set(names)
        number = 0
        for batch in source.iter_batches(BATCH_ROWS):
            for row in plain_rows(batch):
                yield _guarded(row, f"row {number}", root, folder, ours)
                number += 1
    except BadRecord as bad:
        yield bad
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the file system, not of the format
            raise
        yield BadRecord("corrupt-parquet", str(error)[:300])


def _guarded(row: dict[str, Any], where: str, root: Root, folder: str, ours: bool) -> Entry | BadRecord:
    try:
        record = checked({name: _json_like(row[name]) for name in SCHEMA.names}) if ours else None
        audio, path = _audio(row["audio"], where, root, folder)
        name = string(row, "id", "key", "utt_id") or path or where
        return Entry(
            id=name,
            audio=audio,
            recording=name,
            text=next((text for column in TEXTS if (text := string(row, column))), ""),
            speaker=string(row, "speaker", "speaker_id", "client_id"),
            language=string(row, "language", "lang", "locale"),
            licence=string(row, "licence", "license"),
            attribution=string(row, "attribution"),
            source=string(row, "source"),
            record=record,
        )
    except RECORD_FAULTS as error:
        return bad_record(error, where)


def _json_like(value: Any) -> Any:
    """None for NaN, which JSON lacks."""
    if isinstance(value, list):
        return [_json_like(item) for item in value]
    return None if isinstance(value, float) and value != value else value


def _audio(value: Any, where: str, root: Root, folder: str) -> tuple[Audio, str]:
    if isinstance(value, bytes):
        value = {"bytes": value}
    if not isinstance(value, dict):
        raise BadRecord("bad-field", f"audio is a {type(value).__name__}, not bytes or {{bytes, path}}")
    path = string(value, "path")
    data = value.get("bytes")
    if not isinstance(data, bytes):
        return root.audio(path, folder), path
    return Audio(where, lambda: io.BytesIO(data)), path
