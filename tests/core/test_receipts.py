"""Receipts of very many shards: in little memory, and the same books as from a list."""

from __future__ import annotations

import tracemalloc
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from megahour.core.receipts import Counts, FileInfo, Manifest, PackedReceipts, Receipt, ReceiptsByShard, packed
from megahour.core.records import fingerprint
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.verify import agrees, known_receipts, verify

SHARDS = 600
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
    files = [[r.shard, r.tags, {name: info.sha256 for name, info in r.files.items()}] for r in in_memory(20)]
    assert content_digest(in_memory(20), {"b": 1, "a": "ü"}) == fingerprint([files, {"a": "ü", "b": 1}])
    assert content_digest([], {}) == fingerprint([[], {}])
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


class IdleEngine:
    """Finds nothing wrong with any shard."""

    def map(self, call: Callable[..., Any], items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        return ((index, []) for index, _ in enumerate(items))


def test_verify_and_repair_hold_as_little(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "made")
    digest = content_digest(in_memory(SHARDS), {})
    counts = Counts(10 * SHARDS, 9 * SHARDS, SHARDS, {"too-short": SHARDS})
    finish(artifact, in_memory(SHARDS), replace(MANIFEST, digest=digest, counts=counts))
    tracemalloc.start()
    try:
        assert verify(artifact, IdleEngine()) == []
        known = known_receipts(artifact, "f", SHARDS)
        assert agrees(artifact.manifest, ChainMap(ReceiptsByShard([receipt(7)]), known))
        assert not agrees(artifact.manifest, ChainMap(ReceiptsByShard([receipt(SHARDS)]), known))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / SHARDS * 200_000 < 1e9
    assert list(known.in_order()[5:7]) == [receipt(5), receipt(6)]


def test_receipts_that_contradict_each_other_are_not_known(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "made")
    finish(artifact, [receipt(0), receipt(1), replace(receipt(2), fingerprint="another")], MANIFEST)
    (tmp_path / "made/receipts").mkdir()
    (tmp_path / "made/receipts/00001.json").write_text(replace(receipt(1), tags={}).to_json())
    assert list(known_receipts(artifact, "f", 2).items()) == [(0, receipt(0))]
