"""Tables of recordings: CSV, TSV, JSON Lines and Parquet with the addresses of media and their metadata.

A task reads only its own rows: the plan notes byte offsets of text files in one pass, and rows of Parquet files.
Addresses are URLs, absolute paths, or paths relative to `root`, by default the table's folder.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from megahour.core.errors import RECORD_FAULTS, BadRecord, ConfigError, bad_record
from megahour.core.filesystems import file_system
from megahour.core.records import key_of
from megahour.core.unicode import load_json, plain_rows
from megahour.corpus.ingest.sources import Item
from megahour.corpus.ingest.tsv import tsv_rows
from megahour.corpus.media.addresses import masked, open_at, reaching
from megahour.corpus.media.listed import Listing
from megahour.corpus.transcripts.encodings import marked_encoding
from megahour.corpus.transcripts.pairing import MEDIA, split_suffix
from megahour.corpus.transcripts.read import SUFFIXES as TRANSCRIPTS

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
AUDIO_COLUMNS = (
    "audio", "audio_filepath", "audio_path", "audio_url", "media", "url", "path", "file", "file_name", "filename",
    "wav", "wav_filename",
)  # fmt: skip
TRANSCRIPT_COLUMNS = ("transcripts", "transcript", "subtitles", "srt", "vtt", "transcript_url", "transcript_path")
TEXT_COLUMNS = ("text", "sentence", "transcription", "raw_text", "raw_transcription")
NAME_COLUMNS = ("name", "id", "utt_id")
SIZE_COLUMNS = ("bytes", "size", "wav_filesize")
STRETCH = {"offset", "duration"}  # columns of a NeMo manifest
SEPARATOR = "|"  # between several addresses in one field of a CSV; URLs must escape it
_ADDRESS = re.compile(rf"://|(?:{'|'.join(map(re.escape, TRANSCRIPTS))})$", re.IGNORECASE)
_PROBLEM = "\0"  # the column of a row that cannot be read
MAX_LINE = 16 << 20
MAX_SIZE = 1 << 60  # bytes of a medium

csv.field_size_limit(MAX_LINE)


def is_table(source: str) -> bool:
    """Whether a source is a table, by its suffix."""
    return split_suffix(source)[1] in TABLES


def plan_table(source: str, shard_bytes: int, shard_rows: int) -> list[dict[str, Any]]:
    """Task specs of about `shard_bytes` of media if the table has a column `bytes`, else of `shard_rows` rows.

    `repeated` lists the task's rows that have the name or the address of an earlier row of any task.

    Raises
    ------
    ConfigError: no column of addresses, no rows, or text that is not UTF-8.
    """
    specs: list[dict[str, Any]] = []
    filled, named = 0.0, False
    addresses, names = array("q"), array("q")  # hashes of all rows: 16 bytes a row
    for row, (offset, fields) in enumerate(_rows(source)):
        if row == 0 or filled >= 1:
            specs.append({"table": [offset, 0], "row": row})
            filled = 0.0
        address = str(first_of(fields, AUDIO_COLUMNS)).strip()
        named = named or bool(address)
        # A row without an address repeats no other.
        addresses.append(key_of("address", address) if address else -1 - row)
        names.append(key_of("name", _name(fields, address)) if address else -1 - row)
        size = _size(first_of(fields, SIZE_COLUMNS))
        filled += 1 / shard_rows if size is None else size / shard_bytes
        specs[-1]["table"][1] += 1
    if not named:
        raise ConfigError(
            f"no addresses of media in {source}",
            where="source",
            remedy=f"name the column of addresses {' or '.join(AUDIO_COLUMNS)}",
        )
    _mark_repeated(specs, addresses, names)
    return specs


def _size(value: Any) -> float | None:
    """A size in bytes; None if it is none. Tables with missing values have floats."""
    try:
        size = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return size if 0 <= size < MAX_SIZE else None  # false for NaN


def _mark_repeated(specs: list[dict[str, Any]], *columns: array[int]) -> None:
    import numpy as np

    repeated = np.zeros(len(columns[0]), bool)
    for column in columns:
        hashes = np.frombuffer(column, np.int64)
        repeated[np.setdiff1d(np.arange(len(hashes)), np.unique(hashes, return_index=True)[1])] = True
    rows = np.flatnonzero(repeated)
    for spec in specs:
        low, high = np.searchsorted(rows, (spec["row"], spec["row"] + spec["table"][1]))
        if low < high:
            spec["repeated"] = rows[low:high].tolist()


def table_items(
    source: str,
    offset: int,
    count: int,
    row: int,
    repeated: Collection[int] = (),
    allow_private: Sequence[str] = (),
    root: str = "",
) -> Iterator[Item | BadRecord]:
    """Items of `count` rows from `offset`, in bytes, or in rows for Parquet; `row` is the number of the first.

    A row that cannot be used comes as a BadRecord: ``unreadable-row``, ``no-audio-address``, ``duplicate-id`` for those
    in `repeated`, and the reasons of `listed.Listing` for addresses that a table may not name.
    """
    repeated, listing = frozenset(repeated), Listing(source, tuple(allow_private), root)
    for number, (_, fields) in zip(range(row, row + count), _rows(source, offset), strict=False):
        try:
            item = _item(fields, listing)
            if number in repeated:
                detail = f"an earlier row has the same name ({item.name}) or address ({item.source})"
                detail += "; use `import` for segments of files" if fields.keys() >= STRETCH else ""
                raise BadRecord("duplicate-id", detail)
            yield item
        except RECORD_FAULTS as error:
            error = bad_record(error)
            error.record = f"{source.rpartition('/')[2]} row {number + 1}"
            yield error


def _item(fields: dict[str, Any], listing: Listing) -> Item:
    if problem := fields.get(_PROBLEM):
        raise BadRecord("unreadable-row", str(problem)[:200])
    address = str(first_of(fields, AUDIO_COLUMNS)).strip()
    if not address:
        raise BadRecord("no-audio-address", f"the columns are {', '.join(str(name) for name in fields)[:200]}")
    given = [each.strip() for each in _addresses(first_of(fields, TRANSCRIPT_COLUMNS))]
    is_text = len(given) == 1 and " " in given[0] and not _ADDRESS.search(given[0])
    transcripts = [] if is_text else given
    return Item(
        name=_name(fields, address),
        source=masked(address),
        media=listing.blob(address),
        transcripts=tuple(listing.blob(each) for each in transcripts if each),
        infos=(),
        fields=fields,
        text=str(first_of(fields, TEXT_COLUMNS)) or (given[0] if is_text else ""),
        is_far=not listing.is_here(address),
    )


def _name(fields: dict[str, Any], address: str) -> str:
    """The row's name, else its address without the suffix; addresses such as "/download?id=3" keep the query."""
    if (given := first_of(fields, NAME_COLUMNS)) != "":
        return str(given)
    shown = masked(address)
    stem, suffix = split_suffix(re.sub(r"[?#].*$", "", shown))
    return stem if suffix in MEDIA else shown


def _addresses(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else str(value).split(SEPARATOR)


def first_of(fields: dict[str, Any], names: Iterable[str]) -> Any:
    """The value of the first of these columns that has one; "" if none has."""
    return next((fields[name] for name in names if fields.get(name) not in (None, "", [])), "")


def _rows(source: str, offset: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(offset, fields) of each row from an offset, with column names in lower case."""
    fs, path = file_system(source)
    suffix = split_suffix(source)[1]
    with reaching(source), open_at(fs, path) as file:
        if suffix == ".parquet":
            yield from _parquet_rows(source, file, offset or 0)
            return
        _check_utf8(source, file)
        if suffix in (".jsonl", ".ndjson"):
            yield from _json_rows(file, offset or 0)
        else:
            yield from csv_rows(file, suffix, offset)


def _parquet_rows(source: str, file: BinaryIO, first: int) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file)
        start = 0
        for group in range(table.num_row_groups):
            rows = table.metadata.row_group(group).num_rows
            if start + rows > first:
                number = start
                for batch in table.iter_batches(1024, row_groups=[group]):
                    for fields in plain_rows(batch):
                        if number >= first:
                            yield number, {str(name).lower(): value for name, value in fields.items()}
                        number += 1
            start += rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the file system, not of the format
            raise
        raise ConfigError(
            f"{source} is not a complete Parquet file: {str(error)[:300]}",
            where="source",
            remedy="copy or write it again; give a table of another format its own suffix",
        ) from None


def _check_utf8(source: str, file: BinaryIO) -> None:
    """Raise ConfigError for UTF-16 and UTF-32, the "Unicode text" of spreadsheets: tasks start at byte offsets."""
    encoding = marked_encoding(file.read(4096)) or "utf-8"
    if not encoding.startswith("utf-8"):
        raise ConfigError(
            f"{masked(source)} is {encoding.upper()[:6]}, but tables must be UTF-8",
            where="source",
            remedy="save it as UTF-8 (in a spreadsheet: CSV UTF-8)",
        )


class _Lines:
    """Lines of a UTF-8 file from `offset`; `position` is the offset of the next one."""

    def __init__(self, file: BinaryIO, offset: int) -> None:
        file.seek(offset)
        self._file, self.position = file, offset

    def __iter__(self) -> Iterator[str]:
        while line := self.next_line():
            yield line

    def next_line(self) -> str:
        line = self._file.readline(MAX_LINE)
        start, self.position = self.position, self.position + len(line)
        return line.decode("utf-8-sig" if start == 0 else "utf-8", "replace")

    def seek(self, position: int) -> None:
        self._file.seek(position)
        self.position = position


def _json_rows(file: BinaryIO, offset: int) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = _Lines(file, offset)
    start = offset
    for line in lines:
        if line.strip():
            try:
                value = load_json(line)
            except (ValueError, RecursionError) as error:
                value = {_PROBLEM: f"not JSON: {error}"}
            fields = value if isinstance(value, dict) else {_PROBLEM: f"a JSON {type(value).__name__}, not an object"}
            yield start, {name.lower(): each for name, each in fields.items()}
        start = lines.position


def csv_rows(file: BinaryIO, suffix: str, offset: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(offset, fields by lower-case column) of each row of a CSV or TSV after its header, or from an offset."""
    header = _Lines(file, 0)
    first = next(iter(header), "")
    delimiter = "\t" if suffix == ".tsv" else ";" if first.count(";") > first.count(",") else ","
    start = 0
    try:
        names = [name.strip().lower() for name in next(csv.reader([first], delimiter=delimiter), [])]
        lines = _Lines(file, header.position if offset is None else offset)
        start = lines.position
        for values in tsv_rows(lines, len(names)) if suffix == ".tsv" else csv.reader(lines, delimiter=delimiter):
            if values:
                fields = dict(zip(names, values, strict=False))
                if len(values) > len(names):
                    fields[_PROBLEM] = f"{len(values)} fields, the header has {len(names)}"
                yield start, fields
            start = lines.position
    except csv.Error as error:
        raise ConfigError(
            f"{str(error).partition(' - ')[0]} near byte {start}",
            where="source",
            remedy="the table must be CSV in UTF-8, with line ends of Unix or Windows",
        ) from None
