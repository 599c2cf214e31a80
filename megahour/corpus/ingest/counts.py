"""What a shard of `ingest` counts by name: licences, languages, formats, and examples of dropped recordings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from megahour.core.receipts import Receipt, add_to, summed

if TYPE_CHECKING:
    from megahour.core.writer import ShardWriter
    from megahour.corpus.ingest.side_information import SideInfo

MAX_NAMES = 50  # refused licences that a shard lists; it counts further ones as `other`
MAX_EXAMPLES = 5
WHY_WHOLE = "it takes names of both channels, or two named speakers, with times, who are louder on different channels"
OTHER = "other"
DIVIDED, WHOLE = "transcripts_divided", "transcripts_on_every_channel"  # of recordings whose channels are split
PREFERRED = "transcripts_preferred_for_their_speakers"  # the same, to others that come first with `channels: mix`


class IngestCounts:
    """Collects counts, and writes them as `licences`, `languages`, `formats`, `not_read` and `examples`."""

    def __init__(self) -> None:
        self._licences: dict[str, dict[str, float]] = {}
        self._languages: dict[str, dict[str, float]] = {}
        self._formats: Counter[str] = Counter()
        self._not_read: Counter[str] = Counter()
        self._examples: dict[str, list[dict[str, str]]] = {}

    def refused(self, licence: str) -> None:
        """Count a recording that was dropped for its licence."""
        name = licence if licence in self._licences or len(self._licences) < MAX_NAMES else OTHER
        add_to(self._licences.setdefault(name, {}), {"dropped": 1})

    def kept(self, info: SideInfo, seconds: float) -> None:
        """Count a recording that was kept."""
        numbers = {"kept": 1, "audio_s": seconds}
        add_to(self._languages.setdefault(info.language, {}), numbers)
        add_to(
            self._licences.setdefault(info.licence, {}),
            numbers | ({} if info.attribution else {"without_attribution": 1}),
        )

    def media(self, container: str, codec: str) -> None:
        """Count the format of a decoded file."""
        self._formats[f"{container} {codec}"] += 1

    def not_read(self, counts: Mapping[str, int]) -> None:
        """Count files that belong to no recording, by kind."""
        self._not_read.update(counts)

    def sides(self, name: str, counts: Mapping[str, int]) -> None:
        """Remember a recording with transcripts that were not divided between its channels."""
        if n := counts.get(WHOLE):
            self.example("not-divided", name, f"{n} of {n + counts.get(DIVIDED, 0)} transcripts: {WHY_WHOLE}")

    def example(self, reason: str, name: str, detail: str) -> None:
        """Remember an example of a dropped recording, or of one with a decoder message."""
        examples = self._examples.setdefault(reason, [])
        if len(examples) < MAX_EXAMPLES:
            examples.append({"name": name, "detail": detail})

    def write(self, out: ShardWriter) -> None:
        """Add the counts to the shard's statistics."""
        tables = {"licences": _rounded(self._licences), "languages": _rounded(self._languages)}
        parts = {**tables, "formats": self._formats, "not_read": self._not_read, "examples": self._examples}
        out.stats.update({name: value for name, value in parts.items() if value})


def _rounded(table: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {name: summed([numbers], 3) for name, numbers in table.items()}


def replaced_remark(receipts: Iterable[Receipt]) -> dict[str, Any]:
    """Summary entries for replaced characters, from the shards' ``replaced_characters``; {} if there are none."""
    n = sum(receipt.stats.get("replaced_characters", 0) for receipt in receipts)
    remark = f"{n:,} characters in texts were not valid Unicode and were replaced by U+FFFD"
    return {"replaced_characters": n, "remark": remark} if n else {}
