"""The table of what a shard of `ingest` or `import` left out, with the reason for each name."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pyarrow as pa

from megahour.core.errors import BadRecord
from megahour.core.schemas import LEFT_OUT
from megahour.core.unicode import shown
from megahour.core.writer import ShardWriter
from megahour.corpus.ingest.licences import LicenceRefused
from megahour.corpus.ingest.sources import Item
from megahour.corpus.media.audio import Decoder
from megahour.corpus.transcripts.json_words import seconds

SUFFIX = ".left_out.parquet"


class LeftOut:
    """Rows of `LEFT_OUT`, in the order of the items."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

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

    def write(self, out: ShardWriter) -> None:
        """Write the shard's `.left_out.parquet`."""
        out.table(pa.Table.from_pylist(self._rows, LEFT_OUT), SUFFIX)


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
