"""Re-reading an artifact against its own books: every file, every receipt, the manifest's totals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from megahour.core.errors import StoreError
from megahour.core.receipts import (
    Counts,
    FileInfo,
    Manifest,
    PackedReceipts,
    Receipt,
    ReceiptsByShard,
    packed,
    unpacked,
)
from megahour.core.store import UNREADABLE, Artifact, content_digest
from megahour.core.transfer import file_digest, is_local, side_by_side

PART = 64  # shards that one task of an engine verifies


class Mapper(Protocol):
    """What verifying needs of an engine, see `engine.base.Engine`."""

    def map(self, call: Callable[..., Any], items: Iterable[Any]) -> Iterator[tuple[int, Any]]: ...


def verify(artifact: Artifact, engine: Mapper | None = None) -> list[str]:
    """Re-read every file of a complete artifact; the list of problems found, empty when it is whole.

    engine: its tasks read the files; without one this process does.
    """
    receipts = PackedReceipts()
    try:
        manifest = artifact.manifest
        for receipt in artifact.each_receipt():
            receipts.append(packed(receipt))
    except StoreError as error:
        return [f"{error.where}: {error.message}"]
    problems = []
    if len(receipts) != manifest.shards:
        problems.append(
            f"{artifact.url}: the manifest names {manifest.shards} shards, receipts.jsonl has {len(receipts)}"
        )
    if content_digest(receipts, manifest.summary) != manifest.digest:
        problems.append(f"{artifact.url}: receipts do not have the manifest's digest")
    url = artifact.root if is_local(artifact.fs) else artifact.url
    parts = receipts.parts(PART)
    each = partial(_verify_part, url)
    found = dict(engine.map(each, parts) if engine else enumerate(map(each, parts)))
    problems += [problem for part in range(len(parts)) for problem in found[part]]
    if sum_counts(receipts) != manifest.counts:
        problems.append(f"{artifact.url}: the receipts' counts do not add up to the manifest's")
    return problems + _strays(artifact, receipts)


def _verify_part(url: str, receipts: list[bytes]) -> list[str]:
    """Problems of some shards, given by their packed receipts, in order."""
    artifact = Artifact(url)

    def problems(data: bytes) -> list[str]:
        receipt = unpacked(data)
        return verify_book(artifact, receipt) + verify_shard(artifact, receipt)

    return [problem for found in side_by_side(artifact.fs, problems, receipts) for problem in found]


def verify_shards(artifact: Artifact, receipts: Iterable[Receipt]) -> list[int]:
    """The shards whose files are not what their receipts say."""

    def damaged(receipt: Receipt) -> int | None:
        return receipt.shard if verify_shard(artifact, receipt) else None

    return [shard for shard in side_by_side(artifact.fs, damaged, receipts) if shard is not None]


def verify_book(artifact: Artifact, receipt: Receipt) -> list[str]:
    """Whether a shard's own receipt is that of receipts.jsonl."""
    if artifact.receipt(receipt.shard) == receipt:
        return []
    path = artifact.path(f"receipts/{receipt.shard:05d}.json")
    return [f"{path}: missing, or not the receipt of receipts.jsonl"]


def verify_shard(artifact: Artifact, receipt: Receipt) -> list[str]:
    """Re-read the files of one shard, its quarantine included."""
    problems = []
    for suffix, info in receipt.files.items():
        problems += _verify_file(artifact, artifact.shard_path(receipt.shard, suffix), info)
    if receipt.counts.bad:
        problems += _verify_quarantine(artifact, receipt)
    return problems


def known_receipts(artifact: Artifact, fingerprint: str, shards: int) -> ReceiptsByShard:
    """What is known of the shards of a job from whichever books can be read: receipts.jsonl and the single receipts.

    A shard is left out when neither of them has it, or when they contradict each other.
    """
    known, contradicted = ReceiptsByShard(), set[int]()
    for receipt in chain(_readable_lines(artifact), artifact.receipts_of(range(shards))):
        if receipt is None or receipt.fingerprint != fingerprint or receipt.shard not in range(shards):
            continue
        if known.setdefault(receipt.shard, receipt) != receipt:
            contradicted.add(receipt.shard)
    for shard in contradicted:
        del known[shard]
    return known


def agrees(manifest: Manifest, receipts: Mapping[int, Receipt]) -> bool:
    """Whether these are the receipts of all shards that the manifest was made of."""
    if sorted(receipts) != list(range(manifest.shards)):
        return False
    digest = content_digest((receipts[shard] for shard in range(manifest.shards)), manifest.summary)
    return digest == manifest.digest and sum_counts(receipts.values()) == manifest.counts


def sum_counts(receipts: Iterable[Receipt]) -> Counts:
    counts = Counts()
    for receipt in receipts:
        counts.add(receipt.counts)
    return counts


def _readable_lines(artifact: Artifact) -> Iterator[Receipt]:
    try:
        with artifact.fs.open(artifact.path("receipts.jsonl"), "rb") as file:
            for line in file:
                with suppress(ValueError):
                    yield Receipt.from_json(line)
    except UNREADABLE:
        return


def _verify_file(artifact: Artifact, path: str, info: FileInfo) -> list[str]:
    try:
        size, digest = file_digest(artifact.fs, path)
    except FileNotFoundError:
        return [f"{path}: missing"]
    except UNREADABLE as error:
        return [f"{path}: it cannot be read: {error.strerror or error}"]
    if size != info.bytes:
        return [f"{path}: {size} bytes, the receipt says {info.bytes}"]
    if digest != info.sha256:
        return [f"{path}: its SHA-256 differs from the receipt's"]
    return []


def _verify_quarantine(artifact: Artifact, receipt: Receipt) -> list[str]:
    path = artifact.path(f"quarantine/{receipt.shard:05d}.jsonl")
    try:
        lines = artifact.fs.cat_file(path).count(b"\n")
    except UNREADABLE as error:
        return [f"{path}: {'missing' if isinstance(error, FileNotFoundError) else error}"]
    if lines != receipt.counts.bad:
        return [f"{path}: {lines} bad records, the receipt says {receipt.counts.bad}"]
    return []


def _strays(artifact: Artifact, receipts: Iterable[Receipt]) -> list[str]:
    folder = artifact.path("shards")
    named = (artifact.shard_path(r.shard, suffix).removeprefix(f"{folder}/") for r in receipts for suffix in r.files)
    expected = {path.partition("/")[0] for path in named}  # a suffix may lie in a folder of the shard
    names = {Path(path).name for path in artifact.matching("shards/*")}
    return [f"{folder}/{name}: not named by any receipt" for name in sorted(names - expected)]
