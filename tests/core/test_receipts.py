"""Receipts of very many shards: in little memory, and the same books as from a list."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np

from megahour.core.receipts import Counts, FileInfo, Manifest, PackedReceipts, Receipt, packed
from megahour.core.store import Artifact, content_digest, finish

SHARDS = 3000
MANIFEST = Manifest("features", 1, "f", "d", {}, {}, SHARDS, Counts(), {})


def receipt(shard: int) -> Receipt:
    """As fat as those of `features`: sums and squares of 64 mels."""
    rng = np.random.default_rng(shard)
    stats = {"sums": rng.normal(size=64).tolist(), "squares": rng.normal(size=64).tolist(), "rates_hz": [16_000]}
    files = {".arrow": FileInfo(shard, f"{shard:064x}")}
    return Receipt(shard, "f", Counts(10, 9, 1, {"too-short": 1}), files, stats, {"set": "a\udc80é"})


def in_memory(shards: int) -> PackedReceipts:
    receipts = PackedReceipts()
    for shard in range(shards):
        receipts.append(packed(receipt(shard)))
    return receipts


def test_they_are_what_was_packed() -> None:
    receipts, whole = in_memory(5), [receipt(shard) for shard in range(5)]
    assert list(receipts) == whole
    assert receipts[3] == whole[3]
    assert receipts[1:3] == whole[1:3]
    assert (len(receipts), bool(PackedReceipts())) == (5, False)


def test_the_books_are_those_of_a_list(tmp_path: Path) -> None:
    for name, receipts in (("packed", in_memory(20)), ("list", [receipt(shard) for shard in range(20)])):
        finish(Artifact(tmp_path / name), receipts, MANIFEST)
    books = [(tmp_path / name / "receipts.jsonl").read_bytes() for name in ("packed", "list")]
    assert books[0] == books[1]
    assert books[0].count(b"\n") == 20
    assert content_digest(in_memory(20), {}) == content_digest([receipt(shard) for shard in range(20)], {})
    assert sorted(path.name for path in (tmp_path / "packed").iterdir()) == ["manifest.json", "receipts.jsonl"]


def test_a_driver_needs_less_than_a_gigabyte_for_200_000(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        receipts = in_memory(SHARDS)
        content_digest(receipts, {})
        finish(Artifact(tmp_path / "made"), receipts, MANIFEST)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / SHARDS * 200_000 < 1e9
