"""All that a shard of `ingest` or `import` left out, as a table: who asks why it is not there finds it by name."""

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
        """An item of `ingest`, or none where something could not become one."""
        name, source = (item.name, item.source) if item else (bad.record, bad.record)
        self.record(name, source, bad, is_bad=is_bad, length_s=seconds_of(item) if item else nan)

    def record(self, name: str, source: str, bad: BadRecord, *, is_bad: bool, length_s: float = nan) -> None:
        """Anything by its name, with its length where that is known."""
        self._row(name, source, bad.reason, bad.detail, is_bad, length_s)
        self._rows[-1]["licence"] = bad.licence if isinstance(bad, LicenceRefused) else ""

    def channel(self, item: Item, channel: int, reason: str, length_s: float) -> None:
        """A channel of a recording of which others may stay."""
        self._row(item.name, item.source, reason, f"channel {channel}", False, length_s)

    def _row(self, name: str, source: str, reason: str, detail: str, is_bad: bool, length_s: float) -> None:
        texts = {"name": name, "source": source, "reason": reason, "detail": detail}
        row = {key: shown(value) for key, value in texts.items()}
        self._rows.append({**row, "bad": is_bad, "seconds": length_s, "licence": ""})

    def write(self, out: ShardWriter) -> None:
        """The shard's `.left_out.parquet`."""
        out.table(pa.Table.from_pylist(self._rows, LEFT_OUT), SUFFIX)


DURATIONS = ("duration", "duration_s", "seconds", "length_s")  # columns of tables


def seconds_of(item: Item) -> float:
    """Length of a recording, by its row of a table or by its header; NaN where neither says it.

    Of media elsewhere that a table names, the header is not asked for: a request for each that is not wanted would cost
    more than it tells.
    """
    for name in DURATIONS:
        if 0 <= (said := seconds(item.fields.get(name))) < inf:  # NaN is not
            return said
    if item.is_far:
        return nan
    try:
        with item.media.open() as file:
            return Decoder(file, 16_000).declared_s
    except Exception:  # whatever is wrong with it, it has been told
        return nan
