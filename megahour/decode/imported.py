"""Worker of `import-hypotheses`: one *hypotheses* shard from recognisers' JSON, in the order of a features shard."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any

import fsspec
import pyarrow as pa

from megahour.core.errors import RECORD_FAULTS, BadRecord, bad_record
from megahour.core.schemas import CONFIDENCE, HYPOTHESES
from megahour.core.stage import Task
from megahour.core.store import Artifact
from megahour.core.unicode import load_json, shown
from megahour.core.writer import ShardWriter
from megahour.corpus.text.normalise import normalise
from megahour.corpus.transcripts.recognised import Recognised, named, recognised, utterance_id
from megahour.decode.named_records import NamedRecord, ReadRecords, names_of, records_beside
from megahour.decode.params import ImportHypothesesParams
from megahour.features.sets import set_of
from megahour.units.texts import find_files

MAX_FILE_BYTES = 64 << 20  # largest JSON value over several lines
MAX_BYTES = 1 << 40  # largest file of lines, unpacked
COLUMNS = ["text", "reason", "detail", "confidence"]


def import_shard(p: ImportHypothesesParams, inputs: Mapping[str, Artifact], task: Task, out: ShardWriter) -> None:
    """Write a row for each utterance of a features shard that the source has; the first of several records is taken.

    Unreadable records name no utterance; they are quarantined with the first shard of the sets. The statistics
    `records` and `own` count the records of the source, and those that name an utterance of this shard.
    """
    features, shard = inputs["features"], task["shard"]
    table = features.read_table(shard, ".arrow", columns=["key", "frames"])
    names = names_of(features, shard, ".arrow", inputs.get("selection"), task.spec.get("beside"))
    found: dict[int, Recognised | BadRecord] = {}
    shared: set[int] = set()
    out.came_in(len(table))
    out.stat("records", inputs["records"].manifest.counts.kept)
    for name, record in _records(records_beside(inputs, shard)):
        own = names.get(name, [])
        out.stat("own", 1 if own else 0)
        if len(own) == 1:
            found.setdefault(own[0], record)
        elif not name and task["is_first"] and isinstance(record, BadRecord):
            out.came_in()
            out.quarantine(record.record, record.reason, record.detail)
        shared.update(own)
    _write(p, table, found, shared, out)
    out.tags.update({"set": set_of(features, shard), "model": p.model_name})


def _write(
    p: ImportHypothesesParams,
    table: pa.Table,
    found: Mapping[int, Recognised | BadRecord],
    shared: Collection[int],
    out: ShardWriter,
) -> None:
    """shared: utterances whose recording has several, while the source has one text for all of it."""
    rows: list[tuple[Any, ...]] = []
    for key, frames in zip(table["key"].to_pylist(), table["frames"].to_pylist(), strict=True):
        record = found.get(key)
        if record is None:
            out.drop("several-utterances" if key in shared else "not-recognised")
        elif isinstance(record, BadRecord):
            out.quarantine(key, record.reason, record.detail)
        else:
            text = normalise(record.text, p.language).text if p.language else " ".join(record.text.split())
            rows.append((key, p.model_name, text, 0.0, frames, record.confidence))
            out.kept()
    schema = HYPOTHESES.append(CONFIDENCE)
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema.names)
    out.table(pa.table([pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)], schema=schema))


def _records(table: pa.Table) -> Iterator[tuple[str, Recognised | BadRecord]]:
    """Names and their records, or why a record is unusable."""
    for row in table.to_pylist():
        if row["reason"] is None:
            yield row["name"], Recognised(row["text"], row["confidence"])
        else:
            yield row["name"], BadRecord(row["reason"], row["detail"], record=row["text"])


class ReadHypotheses(ReadRecords[ImportHypothesesParams]):
    """Reads the records of recognisers' files. For an unusable record, `text` is its place in the source."""

    name = "read-hypotheses"
    params = ImportHypothesesParams

    def columns(self) -> pa.Schema:
        return pa.schema([(name, pa.string()) for name in COLUMNS[:-1]] + [(COLUMNS[-1], pa.float64())])

    def sources(self, p: ImportHypothesesParams) -> list[str]:
        return find_files(p.source)

    def records(self, p: ImportHypothesesParams, url: str) -> Iterator[NamedRecord]:
        """The records of a file. If the first value names no utterance, the file's name does."""
        for number, value in enumerate(_values(url)):
            name = named(value) if isinstance(value, dict) else ""
            name = name or ("" if number else utterance_id(url))
            try:
                if isinstance(value, BadRecord):
                    raise value
                if not name:
                    raise BadRecord("no-id", "it does not name its utterance")
                found = recognised(value)
                row: dict[str, Any] = {"text": found.text, "confidence": found.confidence}
            except RECORD_FAULTS as error:
                bad = bad_record(error)
                row = {"reason": bad.reason, "detail": shown(bad.detail), "text": f"value {number + 1} of {shown(url)}"}
            yield NamedRecord(shown(name), row)


def _values(url: str) -> Iterator[dict[str, Any] | BadRecord]:
    """JSON objects of a file: one per line, one over several lines, or a list."""
    from megahour.corpus.interchange.untrusted import (
        text_lines,  # with the libraries of audio, which decoding needs not
    )

    with fsspec.open(url, "rb") as file:
        lines = text_lines(file, max_bytes=MAX_BYTES)
        first = next(lines, "")
        if isinstance(first, str) and (first.strip() in ("{", "[") or first.startswith("[")):
            yield from _whole(first, lines)
            return
        yield from map(_object, chain([first] if first else [], lines))


def _object(line: str | BadRecord) -> dict[str, Any] | BadRecord:
    from megahour.corpus.interchange.untrusted import json_object

    try:
        return json_object(line)
    except BadRecord as bad:
        return bad


def _whole(first: str, lines: Iterator[str | BadRecord]) -> Iterator[dict[str, Any] | BadRecord]:
    parts, size = [first], len(first)
    for line in lines:
        if isinstance(line, BadRecord):
            yield line
            return
        size += len(line)
        if size > MAX_FILE_BYTES:
            yield BadRecord("too-large", f"a JSON value has more than {MAX_FILE_BYTES} bytes")
            return
        parts.append(line)
    try:
        value = load_json("\n".join(parts))
    except (ValueError, RecursionError) as error:
        yield BadRecord("bad-json", str(error)[:200])
        return
    for item in value if isinstance(value, list) else [value]:
        yield (
            item
            if isinstance(item, dict)
            else BadRecord("bad-json", f"the value is a {type(item).__name__}, not an object")
        )
