"""Tables of what a shard of `ingest` or `import` left out, with the reason for each name, and of files not read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf, nan
from typing import Any

import pyarrow as pa

from megahour.core.errors import BadRecord
from megahour.core.schemas import LEFT_OUT, NOT_READ
from megahour.core.unicode import shown
from megahour.core.writer import ShardWriter
from megahour.corpus.ingest.licences import LicenceRefused
from megahour.corpus.ingest.sources import Item
from megahour.corpus.media.addresses import Blob
from megahour.corpus.media.audio import Decoder
from megahour.corpus.transcripts.json_words import seconds
from megahour.corpus.transcripts.pairing import split_suffix

SUFFIX = ".left_out.parquet"
NOT_READ_SUFFIX = ".not_read.parquet"
LONE = "transcript without audio"


class LeftOut:
    """Rows of `LEFT_OUT`, in the order of the items, and of `NOT_READ`, by path."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._files: dict[str, tuple[str, str]] = {}  # where each lies, and its kind, by path
        self._read: set[str] = set()

    def add(self, item: Item | None, bad: BadRecord, *, is_bad: bool) -> None:
        """Add an item of `ingest`; None if there was an error before it became an item."""
        name, source = (item.name, item.source) if item else (bad.record, bad.record)
        self.record(name, source, bad, is_bad=is_bad, length_s=seconds_of(item) if item else nan)

    def record(self, name: str, source: str, bad: BadRecord, *, is_bad: bool, length_s: float = nan) -> None:
        """Add anything that has a name. length_s: NaN if unknown."""
        texts = {"name": name, "source": source, "reason": bad.reason, "detail": bad.detail}
        row = {key: shown(value) for key, value in texts.items()}
        licence = bad.licence if isinstance(bad, LicenceRefused) else ""
        self._rows.append({**row, "bad": is_bad, "seconds": length_s, "licence": licence})

    def channel(self, item: Item, channel: int, reason: str, length_s: float) -> None:
        """Add one channel of a recording."""
        self.record(item.name, item.source, BadRecord(reason, f"channel {channel}"), is_bad=False, length_s=length_s)

    def files(self, paths: Iterable[str], kind: str = "") -> None:
        """Add files that belong to no recording. kind: "" for their suffixes."""
        self._files |= {path: (path, kind or _suffix(path)) for path in paths}

    def forms(self, item: Item) -> None:
        """Add the further forms of the transcripts of `item`, but for those that were read."""
        self._add_unread(item, item.others)
        self._read |= {info.path for info in item.infos}  # in any case

    def transcripts(self, item: Item, read: Iterable[str]) -> None:
        """Add the transcripts of `item` but for the paths in `read`: those of other languages."""
        self._read.update(read)
        self._add_unread(item, item.transcripts)

    def _add_unread(self, item: Item, blobs: Iterable[Blob]) -> None:
        archive = item.source.removesuffix(shown(item.media.path))
        self._files |= {blob.path: (archive + blob.path, _suffix(blob.path)) for blob in blobs}

    def unread_kinds(self) -> dict[str, int]:
        """Number of files that were not read, by kind."""
        return dict(Counter(row["kind"] for row in self._unread()))

    def _unread(self) -> list[dict[str, str]]:
        paths = sorted(path for path in self._files if path not in self._read)
        return [{"source": shown(where), "kind": kind} for where, kind in map(self._files.__getitem__, paths)]

    def write(self, out: ShardWriter) -> None:
        """Write the shard's `.left_out.parquet` and, if files were not read, its `.not_read.parquet`."""
        out.table(pa.Table.from_pylist(self._rows, LEFT_OUT), SUFFIX)
        if unread := self._unread():
            out.table(pa.Table.from_pylist(unread, NOT_READ), NOT_READ_SUFFIX)


def _suffix(path: str) -> str:
    return shown(split_suffix(path.rpartition("!")[2])[1]) or "no suffix"  # talks.tar!README has none


DURATIONS = ("duration", "duration_s", "seconds", "length_s")  # columns of tables


def seconds_of(item: Item) -> float:
    """Length of a recording in seconds, from its row of a table or its header; NaN if neither has it.

    The header of a remote medium is not read: a request for each would cost more than the length is worth.
    """
    for name in DURATIONS:
        if 0 <= (length_s := seconds(item.fields.get(name))) < inf:  # false for NaN
            return length_s
    if item.is_far:
        return nan
    try:
        with item.media.open() as file:
            return Decoder(file, 16_000).declared_s
    except Exception:  # the row already has the reason
        return nan
