"""Hugging Face parquet: `audio` as {bytes, path} beside every field of the record, typed for `datasets`.

The `huggingface` entry of the schema's metadata names the features, so that `load_dataset` decodes the audio.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet

from megahour.corpus.interchange.record import SCHEMA, Row
from megahour.corpus.interchange.webdataset import Add

if TYPE_CHECKING:
    from megahour.core.writer import ShardWriter

GROUP_ROWS = 100  # a reader holds one row group: about 20 minutes of speech
AUDIO = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def hf_schema() -> pa.Schema:
    """`audio`, then the record's fields, with the features of `datasets` as metadata."""
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
