"""Worker of `import-hypotheses`: one *hypotheses* shard from recognisers' JSON, in the order of a features shard."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, TypeVar

import fsspec
import pyarrow as pa

from megahour.core.errors import RECORD_FAULTS, BadRecord, bad_record
from megahour.core.schemas import CONFIDENCE, HYPOTHESES
from megahour.core.stage import Task
from megahour.core.store import Artifact
from megahour.core.unicode import load_json, shown
from megahour.core.writer import ShardWriter
from megahour.corpus.text.normalise import normalise
from megahour.corpus.transcripts.json_words import STARTS, time_of
from megahour.corpus.transcripts.recognised import Recognised, named, recognised, utterance_id
from megahour.features.sets import set_of
from megahour.foreign.named_records import (
    NamedRecord,
    ReadRecords,
    endings,
    hash_of,
    names_folders,
    names_of,
    paths_of,
    records_beside,
)
from megahour.foreign.params import ImportHypothesesParams
from megahour.units.texts import find_files

MAX_FILE_BYTES = 64 << 20  # largest JSON value over several lines
MAX_BYTES = 1 << 40  # largest file of lines, unpacked
R = TypeVar("R")
COLUMNS = ["path", "text", "reason", "detail", "confidence"]


def import_shard(p: ImportHypothesesParams, inputs: Mapping[str, Artifact], task: Task, out: ShardWriter) -> None:
    """Write a row for each utterance of a features shard that the source has; the first of several records is taken.

    Unreadable records name no utterance; they are quarantined with the first shard of the sets. The statistics
    `records` and `own` count the records of the source, and those that name an utterance; each in one shard only.
    """
    features, shard = inputs["features"], task["shard"]
    table = features.read_table(shard, ".arrow", columns=["key", "frames"])
    paths = paths_of(features, shard, ".arrow", inputs.get("selection"), task.spec.get("beside"))
    names = names_of(paths)
    records: dict[str, dict[str, Recognised | BadRecord]] = {}  # by name and path
    by_hash = {hash_of(path): path for path in paths.values()}
    alike, cut = dict[str, int](), set[str]()  # of recordings: see `MeetByName`; with several utterances, in any shard
    out.came_in(len(table))
    out.stat("records", inputs["records"].manifest.counts.kept)
    for row in records_beside(inputs, shard).to_pylist():
        name, record = row["name"], _record(row)
        if name in names:
            out.stat("own", int(row["once"]))
            records.setdefault(name, {}).setdefault(row["path"], record)
            path = by_hash[row["recording"]]
            alike[path] = max(alike.get(path, -1), row["alike"])
            cut |= {path} if row["utterances"] > 1 else set()
        elif not name and task["is_first"] and isinstance(record, BadRecord):
            out.came_in()
            out.quarantine(record.record, record.reason, record.detail)
    shared = {key for name in records for key in names[name] if paths[key] in cut and name != str(key)}
    own = {name: {key: paths[key] for key in names[name] if name == str(key) or key not in shared} for name in records}
    found = matched(own, records, alike, by_folder=names_folders(inputs))
    _write(p, table, found, shared, out)
    out.tags.update({"set": set_of(features, shard), "model": p.model_name})


def _write(
    p: ImportHypothesesParams,
    table: pa.Table,
    found: Mapping[int, Recognised | BadRecord | None],
    shared: Collection[int],
    out: ShardWriter,
) -> None:
    """found: None where several recordings may be meant. shared: utterances whose recording has several, while the
    source has one text for all of it.
    """
    rows: list[tuple[Any, ...]] = []
    for key, frames in zip(table["key"].to_pylist(), table["frames"].to_pylist(), strict=True):
        record = found.get(key)
        if record is None and key in found:
            out.drop("ambiguous-name")
        elif record is None:
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


def _record(row: Mapping[str, Any]) -> Recognised | BadRecord:
    """A record, or why it is unusable."""
    if row["reason"] is None:
        return Recognised(row["text"], row["confidence"])
    return BadRecord(row["reason"], row["detail"], record=row["text"])


def matched(
    own: Mapping[str, Mapping[int, str]],
    records: Mapping[str, Mapping[str, R]],
    alike: Mapping[str, int],
    *,
    by_folder: bool,
) -> dict[int, R | None]:
    """The record of each utterance, by names: the one whose path ends like the recording's for most folders.

    None if other recordings or records end like that, too, or other folders are named where the source names those of
    the recordings. own: paths of recordings by utterance, "" for one that is named by its key. records: by path. alike:
    by paths of recordings, see `MeetByName`. by_folder: whether the source names folders of recordings, in any shard.

    >>> own = {"1": {7: "ann/1.wav", 8: "bob/1.wav"}}
    >>> matched(own, {"1": {"x/bob/1": "Bob's", "x/ann/1": "Ann's"}}, {"ann/1.wav": 0, "bob/1.wav": 0},
    ...         by_folder=True)
    {7: "Ann's", 8: "Bob's"}
    """
    by_key: dict[int, R | None] = {}
    by_path: dict[int, R | None] = {}
    bare: list[int] = []  # utterances found by their names only, while both paths name folders
    for name, given in records.items():
        theirs = _by_ending(given)
        for key, path in own[name].items():
            if name == str(key):
                by_key[key] = next(iter(given.values()))
                continue
            (whole, *_) = endings(path)
            ending = next(each for each in endings(path) if each in theirs)
            (one, *more) = [whole] if whole in given else theirs[ending]
            folders, in_folder = ending.count("/"), "/" in path
            unclear = one != whole and (folders <= alike[path] or (in_folder and bool(more)))
            by_path[key] = None if unclear else given[one]
            if not folders and in_folder and "/" in one:
                bare.append(key)
    return by_path | dict.fromkeys(bare if by_folder else ()) | by_key


def _by_ending(paths: Iterable[str]) -> dict[str, list[str]]:
    """By each ending of the paths those that end like that."""
    found: dict[str, list[str]] = {}
    for path in dict.fromkeys(paths):
        for ending in endings(path):
            found.setdefault(ending, []).append(path)
    return found


class ReadHypotheses(ReadRecords[ImportHypothesesParams]):
    """Reads the records of recognisers' files. For an unusable record, `text` is its place in the source."""

    name = "read-hypotheses"
    version = 3
    params = ImportHypothesesParams

    def columns(self) -> pa.Schema:
        return pa.schema([(name, pa.string()) for name in COLUMNS[:-1]] + [(COLUMNS[-1], pa.float64())])

    def sources(self, p: ImportHypothesesParams) -> list[str]:
        return find_files(p.source)

    def records(self, p: ImportHypothesesParams, url: str) -> Iterator[NamedRecord]:
        """The records of a file. If its only value names no utterance, the file's name does."""
        values = _values(url)
        first = list(islice(values, 2))
        for number, value in enumerate(chain(first, values)):
            path = named(value) if isinstance(value, dict) else ""
            path = shown(next(endings(path or (url if len(first) == 1 else ""))))
            name = utterance_id(path)
            try:
                if isinstance(value, BadRecord):
                    raise value
                if not name:
                    raise BadRecord("no-id", "it does not name its utterance")
                found = recognised(value)
                row: dict[str, Any] = {"path": path, "text": found.text, "confidence": found.confidence}
            except RECORD_FAULTS as error:
                bad = bad_record(error)
                where = f"value {number + 1} of {shown(url)}"
                row = {"path": path, "reason": bad.reason, "detail": shown(bad.detail), "text": where}
            yield NamedRecord(name, row)


def _values(url: str) -> Iterator[dict[str, Any] | BadRecord]:
    """JSON objects of a file: one per line, one over several lines, or a list, also of an utterance's segments."""
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


def _are_segments(items: list[Any]) -> bool:
    """Whether a list is of the segments or words of one utterance, as faster-whisper's are: they have times, and no
    names but numbers that count them."""
    if not items or not all(isinstance(item, dict) and not math.isnan(time_of(item, STARTS)) for item in items):
        return False
    numbers = [item.get("id") for item in items]
    counts = ([None] * len(items), list(range(len(items))), list(range(1, len(items) + 1)))
    return numbers in counts and not any(named({**item, "id": None}) for item in items)


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
    if isinstance(value, list) and _are_segments(value):
        value = {"segments": value}
    for item in value if isinstance(value, list) else [value]:
        yield (
            item
            if isinstance(item, dict)
            else BadRecord("bad-json", f"the value is a {type(item).__name__}, not an object")
        )
