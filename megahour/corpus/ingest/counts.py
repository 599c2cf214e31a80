"""What a shard of `ingest` counts by name: licences, languages, formats, and examples of what was left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from megahour.core.counts import add_to

if TYPE_CHECKING:
    from megahour.core.receipts import Receipt
    from megahour.core.writer import ShardWriter
    from megahour.corpus.ingest.side_information import SideInfo

MAX_NAMES = 50  # unknown licence names that a shard keeps at most; the rest count as `other`
MAX_EXAMPLES = 5
OTHER = "other"


class IngestCounts:
    """Collects counts, and writes them as `licences`, `languages`, `formats`, `not_read` and `examples`."""

    def __init__(self) -> None:
        self._licences: dict[str, dict[str, float]] = {}
        self._languages: dict[str, dict[str, float]] = {}
        self._formats: dict[str, int] = {}
        self._not_read: dict[str, int] = {}
        self._examples: dict[str, list[dict[str, str]]] = {}

    def refused(self, licence: str) -> None:
        """A recording that its licence keeps out."""
        name = licence if licence in self._licences or len(self._licences) < MAX_NAMES else OTHER
        _add(self._licences, name, {"dropped": 1})

    def kept(self, info: SideInfo, seconds: float) -> None:
        """A recording that is kept."""
        numbers = {"kept": 1, "audio_s": seconds}
        _add(self._licences, info.licence, numbers if info.attribution else {**numbers, "without_attribution": 1})
        _add(self._languages, info.language, numbers)

    def media(self, container: str, codec: str) -> None:
        """The format of a file that was decoded."""
        name = f"{container} {codec}"
        self._formats[name] = self._formats.get(name, 0) + 1

    def not_read(self, counts: dict[str, int]) -> None:
        """Files that nothing was made of, by suffix."""
        for suffix, n in counts.items():
            self._not_read[suffix] = self._not_read.get(suffix, 0) + n

    def example(self, reason: str, name: str, detail: str) -> None:
        """A good recording that was left out; the bad ones are in quarantine."""
        examples = self._examples.setdefault(reason, [])
        if len(examples) < MAX_EXAMPLES:
            examples.append({"name": name, "detail": detail})

    def write(self, out: ShardWriter) -> None:
        """Put the counts among the shard's statistics."""
        parts = {"licences": _rounded(self._licences), "languages": _rounded(self._languages),
                 "formats": self._formats, "not_read": self._not_read, "examples": self._examples}  # fmt: skip
        out.stats.update({name: value for name, value in parts.items() if value})


def _add(table: dict[str, dict[str, float]], name: str, numbers: dict[str, float]) -> None:
    add_to(table.setdefault(name, {}), numbers)


def _rounded(table: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {name: {key: round(number, 3) for key, number in numbers.items()} for name, numbers in table.items()}


def replaced_remark(receipts: Iterable[Receipt]) -> dict[str, Any]:
    """What a summary says of `replaced` characters, which shards count as ``replaced_characters``; nothing of none."""
    n = sum(receipt.stats.get("replaced_characters", 0) for receipt in receipts)
    remark = f"{n:,} characters in texts are U+FFFD, in place of what is no Unicode"
    return {"replaced_characters": n, "remark": remark} if n else {}
