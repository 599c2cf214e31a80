"""Re-reading an artifact against its own books: every file, every receipt, the manifest's totals."""

from __future__ import annotations

from pathlib import Path

from megahour.core.errors import StoreError
from megahour.core.store import Artifact, Counts, FileInfo, Receipt, content_digest
from megahour.core.transfer import file_digest


def verify(artifact: Artifact) -> list[str]:
    """Re-read every file of a complete artifact; the list of problems found, empty when it is whole."""
    try:
        manifest, receipts = artifact.manifest, artifact.receipts()
    except StoreError as error:
        return [f"{error.where}: {error.message}"]
    problems = []
    if len(receipts) != manifest.shards:
        problems.append(
            f"{artifact.url}: the manifest names {manifest.shards} shards, receipts.jsonl has {len(receipts)}"
        )
    if content_digest(receipts, manifest.summary) != manifest.digest:
        problems.append(f"{artifact.url}: receipts do not have the manifest's digest")
    counts = Counts()
    for receipt in receipts:
        counts.add(receipt.counts)
        problems += _verify_receipt(artifact, receipt)
    if counts != manifest.counts:
        problems.append(f"{artifact.url}: the receipts' counts do not add up to the manifest's")
    return problems + _strays(artifact, receipts)


def _verify_receipt(artifact: Artifact, receipt: Receipt) -> list[str]:
    problems = []
    if artifact.receipt(receipt.shard) != receipt:
        path = artifact.path(f"receipts/{receipt.shard:05d}.json")
        problems.append(f"{path}: missing, or not the receipt of receipts.jsonl")
    for suffix, info in receipt.files.items():
        problems += _verify_file(artifact, artifact.shard_path(receipt.shard, suffix), info)
    if receipt.counts.bad:
        problems += _verify_quarantine(artifact, receipt)
    return problems


def _verify_file(artifact: Artifact, path: str, info: FileInfo) -> list[str]:
    try:
        size, digest = file_digest(artifact.fs, path)
    except FileNotFoundError:
        return [f"{path}: missing"]
    if size != info.bytes:
        return [f"{path}: {size} bytes, the receipt says {info.bytes}"]
    if digest != info.sha256:
        return [f"{path}: its SHA-256 differs from the receipt's"]
    return []


def _verify_quarantine(artifact: Artifact, receipt: Receipt) -> list[str]:
    path = artifact.path(f"quarantine/{receipt.shard:05d}.jsonl")
    try:
        lines = artifact.fs.cat_file(path).count(b"\n")
    except FileNotFoundError:
        return [f"{path}: missing"]
    if lines != receipt.counts.bad:
        return [f"{path}: {lines} bad records, the receipt says {receipt.counts.bad}"]
    return []


def _strays(artifact: Artifact, receipts: list[Receipt]) -> list[str]:
    folder = artifact.path("shards")
    named = (artifact.shard_path(r.shard, suffix).removeprefix(f"{folder}/") for r in receipts for suffix in r.files)
    expected = {path.partition("/")[0] for path in named}  # a suffix may lie in a folder of the shard
    found = {Path(path).name for path in artifact.fs.glob(f"{folder}/*")}
    return [f"{folder}/{name}: not named by any receipt" for name in sorted(found - expected)]
