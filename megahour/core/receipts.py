"""Shard receipts and the artifact manifest, as JSON."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from megahour.core.errors import StoreError
from megahour.core.expect import Kinds, expect, parse_json
from megahour.core.records import canonical_json

FORMAT = 1
NEWER = "use the version that wrote it, or a newer one"
COUNTS: Kinds = {"came_in": int, "kept": int, "bad": int, "dropped": dict}
FILE: Kinds = {"bytes": int, "sha256": str}
RECEIPT: Kinds = {"shard": int, "fingerprint": str, "counts": dict, "files": dict, "stats": dict, "tags": dict}
MANIFEST: Kinds = {
    **{"format": int, "stage": str, "version": int, "fingerprint": str, "digest": str, "params": dict},
    **{"inputs": dict, "shards": int, "counts": dict, "summary": dict},
}


@dataclass
class Counts:
    """Numbers of records read, kept and dropped, by reason. `bad` of the dropped ones are in quarantine."""

    came_in: int = 0
    kept: int = 0
    bad: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        self.came_in += other.came_in
        self.kept += other.kept
        self.bad += other.bad
        for reason, n in other.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + n


@dataclass(frozen=True)
class FileInfo:
    """Size in bytes and SHA-256 of one file of a shard."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Receipt:
    """The contents of one committed shard, and the job that made it."""

    shard: int
    fingerprint: str
    counts: Counts
    files: dict[str, FileInfo]
    stats: dict[str, Any]
    tags: dict[str, str]

    def to_json(self) -> str:
        return canonical_json(
            {
                "shard": self.shard,
                "fingerprint": self.fingerprint,
                "counts": vars(self.counts),
                "files": {suffix: vars(info) for suffix, info in self.files.items()},
                "stats": self.stats,
                "tags": self.tags,
            }
        )

    @staticmethod
    def from_json(text: str | bytes) -> Receipt:
        """Raises ValueError if the text is not a receipt."""
        data = expect(parse_json(text), RECEIPT, "the receipt")
        files = {suffix: FileInfo(**expect(info, FILE, f"file {suffix}")) for suffix, info in data["files"].items()}
        return Receipt(**{**data, "counts": _counts(data["counts"]), "files": files})


@dataclass(frozen=True)
class Manifest:
    """The whole artifact: the job that made it, its totals, and the digest of its contents."""

    stage: str
    version: int
    fingerprint: str
    digest: str
    params: dict[str, Any]
    inputs: dict[str, str]
    shards: int
    counts: Counts
    summary: dict[str, Any]

    def to_json(self) -> str:
        return (
            json.dumps({"format": FORMAT, **vars(self), "counts": vars(self.counts)}, sort_keys=True, indent=1) + "\n"
        )

    @staticmethod
    def from_json(text: str | bytes) -> Manifest:
        """Raises ValueError if the text is not a manifest, StoreError if its format is newer than this version."""
        data = parse_json(text)
        written = data.get("format") if isinstance(data, dict) else None
        if isinstance(written, int) and written > FORMAT:
            raise StoreError(f"the manifest has format {written}, this version reads {FORMAT}", remedy=NEWER)
        expect(data, MANIFEST, "it")
        if written != FORMAT:
            raise ValueError(f"unknown format {written}")
        counts = _counts(data["counts"])
        return Manifest(**{key: value for key, value in data.items() if key != "format"} | {"counts": counts})


def _counts(data: dict[str, Any]) -> Counts:
    counts = Counts(**expect(data, COUNTS, "counts"))
    expect(counts.dropped, dict.fromkeys(counts.dropped, int), "dropped")
    return counts


class PackedReceipts(Sequence[Receipt]):
    """Compressed receipts of shards 0, 1, 2 …: those of 200,000 shards take about 300 MB in the driver.

    Each access unpacks a new copy, so changes to a receipt are lost.
    """

    def __init__(self) -> None:
        self._packed: list[bytes] = []

    def append(self, packed: bytes) -> None:
        self._packed.append(packed)

    def parts(self, size: int) -> list[list[bytes]]:
        """The packed receipts in lists of `size`, for tasks that unpack them."""
        return [self._packed[start : start + size] for start in range(0, len(self._packed), size)]

    @overload
    def __getitem__(self, at: int) -> Receipt: ...

    @overload
    def __getitem__(self, at: slice) -> list[Receipt]: ...

    def __getitem__(self, at: int | slice) -> Receipt | list[Receipt]:
        if isinstance(at, slice):
            return [unpacked(each) for each in self._packed[at]]
        return unpacked(self._packed[at])

    def __len__(self) -> int:
        return len(self._packed)


def packed(receipt: Receipt) -> bytes:
    """A receipt, compressed to a third or half of its JSON."""
    return zlib.compress(receipt.to_json().encode("utf-8", "surrogatepass"), 1)


def unpacked(data: bytes) -> Receipt:
    return Receipt.from_json(zlib.decompress(data).decode("utf-8", "surrogatepass"))


class ReceiptsByShard(MutableMapping[int, Receipt]):
    """Compressed receipts by shard number; unlike in `PackedReceipts`, shards may be absent."""

    def __init__(self, receipts: Iterable[Receipt] = ()) -> None:
        self._packed = {receipt.shard: packed(receipt) for receipt in receipts}

    def __getitem__(self, shard: int) -> Receipt:
        return unpacked(self._packed[shard])

    def __setitem__(self, shard: int, receipt: Receipt) -> None:
        self._packed[shard] = packed(receipt)

    def __delitem__(self, shard: int) -> None:
        del self._packed[shard]

    def __contains__(self, shard: object) -> bool:
        return shard in self._packed

    def __iter__(self) -> Iterator[int]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)

    def in_order(self) -> PackedReceipts:
        """All receipts, by shard number."""
        receipts = PackedReceipts()
        for shard in sorted(self._packed):
            receipts.append(self._packed[shard])
        return receipts


def add_to(totals: dict[str, float], numbers: Mapping[str, float]) -> None:
    """Add `numbers` to `totals`, name by name.

    >>> totals = {"a": 1}
    >>> add_to(totals, {"a": 2, "b": 3}); totals
    {'a': 3, 'b': 3}
    """
    for name, number in numbers.items():
        totals[name] = totals.get(name, 0) + number


def summed(parts: Iterable[Mapping[str, float]], digits: int = 4) -> dict[str, float]:
    """The sum of each name over all parts, in order of first appearance, rounded to `digits` at the end.

    >>> summed([{"audio_s": 1.25, "words": 2}, {"words": 3}])
    {'audio_s': 1.25, 'words': 5}
    """
    totals: dict[str, float] = {}
    for part in parts:
        add_to(totals, part)
    return {name: round(total, digits) for name, total in totals.items()}
