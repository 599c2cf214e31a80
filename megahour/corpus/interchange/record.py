"""The record: one utterance as a row of plain values, from which every format is written.

A record has the columns of the *utterances* table except `offset` and `size`, and `set`, the selection's set ("" if
none). As JSON it is the custom field `megahour` of the formats: unknown numbers (NaN) are null, 64-bit keys are JSON
integers, and 32-bit floats survive the round trip.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from megahour.core.errors import BadRecord
from megahour.core.records import canonical_json
from megahour.core.schemas import UTTERANCES
from megahour.core.store import Artifact

Row = dict[str, Any]
CUSTOM = "megahour"  # name of the custom field
PLACE = ("offset", "size")
SCHEMA = pa.schema([*(field for field in UTTERANCES if field.name not in PLACE), pa.field("set", pa.string())])
WORD_LISTS = ("word_start_samples", "word_end_samples", "word_confidence")


def default_of(kind: pa.DataType) -> Any:
    """The value that means "unknown": "", an empty list, NaN or 0."""
    if pa.types.is_list(kind):
        return []
    if pa.types.is_string(kind):
        return ""
    return math.nan if pa.types.is_floating(kind) else 0


def filled(row: Mapping[str, Any]) -> Row:
    """A row of the *utterances* table as a record: nulls become the unknown value of their type."""
    return {field.name: default_of(field.type) if row.get(field.name) is None else row[field.name] for field in SCHEMA}


def json_ready(record: Mapping[str, Any]) -> Row:
    """The record with None for NaN and infinity, which JSON lacks."""
    return {name: _without_nan(value) for name, value in record.items()}


def _without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def record_json(record: Mapping[str, Any]) -> str:
    """The record as one line of canonical JSON."""
    return canonical_json(json_ready(record))


def checked(value: Any) -> Row:
    """The record in the custom field of an imported file. Missing fields get the unknown value, others are ignored.

    Raises
    ------
    BadRecord: ``bad-custom-field`` if it is not a mapping, has a value of a wrong type or beyond its type's range, or
    lists of words that differ in length.
    """
    if not isinstance(value, Mapping):
        raise BadRecord("bad-custom-field", f"{CUSTOM} is a {type(value).__name__}, not a mapping")
    record = {field.name: _typed(field, value.get(field.name)) for field in SCHEMA}
    words = len(record["words"])
    for name in WORD_LISTS:
        if len(record[name]) != words:
            raise BadRecord("bad-custom-field", f"{name} has {len(record[name])} values for {words} words")
    return record


def _typed(field: pa.Field, value: Any) -> Any:
    if value is None:
        return default_of(field.type)
    if not pa.types.is_list(field.type):
        return _scalar(field.name, field.type, value)
    if not isinstance(value, list):
        raise BadRecord("bad-custom-field", f"{field.name} is a {type(value).__name__}, not a list")
    return [_scalar(field.name, field.type.value_type, item) for item in value]


def _scalar(name: str, kind: pa.DataType, value: Any) -> Any:
    if pa.types.is_string(kind):
        good = isinstance(value, str)
    elif pa.types.is_floating(kind):
        if value is None:
            return math.nan
        good = isinstance(value, int | float) and not isinstance(value, bool)
        # A number beyond float32 would become infinite.
        good = good and abs(value) <= float(np.finfo(np.float32).max)
        value = float(value) if good else value
    else:
        good = isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63
        good = good and (kind == pa.int64() or -(1 << 31) <= value < 1 << 31)
    if not good:
        raise BadRecord("bad-custom-field", f"{name} = {str(value)[:80]!r} is not a valid {kind}")
    return value


def recording_id(record: Mapping[str, Any]) -> str:
    """The recording's name, or its key, percent-encoded for formats that allow no spaces or slashes; unique."""
    name = quote(record["name"] or str(record["recording"]), safe="")
    return f"{name}.{record['channel']}" if record["channel"] else name


def timed_words(record: Mapping[str, Any]) -> Iterator[tuple[str, int, int, float]]:
    """(word, start, end, confidence) of words with known times, in samples from the start of the utterance."""
    times = zip(record["words"], *(record[name] for name in WORD_LISTS), strict=True)
    return ((word, start, end, confidence) for word, start, end, confidence in times if 0 <= start < end)


def table_rows(utterances: Artifact, shard: int) -> Iterator[Row]:
    """Rows of one shard in order; only a thousand at a time become Python objects."""
    for batch in utterances.read_table(shard).to_batches(max_chunksize=1000):
        yield from batch.to_pylist()
