"""What can be known of an artifact whose books are damaged, and when receipts are those of a manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from megahour.core.receipts import Counts, Manifest, Receipt
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.verify import agrees, known_receipts, sum_counts, verify, verify_book, verify_shard
from megahour.core.writer import ShardWriter


def made(folder: Path, shards: int = 3) -> tuple[Artifact, list[Receipt]]:
    artifact, receipts = Artifact(folder), []
    for shard in range(shards):
        with ShardWriter(artifact, shard, "f") as out:
            out.came_in(2)
            out.kept(2)
            out.table(pa.table({"number": [shard]}))
            receipts.append(out.commit())
    digest = content_digest(receipts, {"of": "all"})
    finish(artifact, receipts, Manifest("made", 1, "f", digest, {}, {}, shards, sum_counts(receipts), {"of": "all"}))
    return artifact, receipts


def test_receipts_agree_with_a_manifest_when_they_are_all_of_them_unchanged(tmp_path: Path) -> None:
    artifact, receipts = made(tmp_path)
    by_shard = {receipt.shard: receipt for receipt in receipts}
    assert agrees(artifact.manifest, by_shard)
    assert agrees(artifact.manifest, dict(reversed(by_shard.items()))), "in whatever order they were read"
    assert not agrees(artifact.manifest, {shard: by_shard[shard] for shard in (0, 1)})
    assert not agrees(artifact.manifest, by_shard | {3: replace(receipts[0], shard=3)})
    assert not agrees(artifact.manifest, by_shard | {1: replace(receipts[1], tags={"set": "test"})})
    assert not agrees(artifact.manifest, by_shard | {1: replace(receipts[1], counts=Counts(2, 1, 0, {"short": 1}))})


def test_counts_of_no_receipts_are_zero(tmp_path: Path) -> None:
    assert sum_counts([]) == Counts(0, 0, 0, {})
    assert sum_counts(made(tmp_path)[1]) == Counts(6, 6, 0, {})


def test_a_shard_is_known_from_either_of_its_books_unless_they_contradict_each_other(tmp_path: Path) -> None:
    artifact, receipts = made(tmp_path)
    by_shard = {receipt.shard: receipt for receipt in receipts}
    assert known_receipts(artifact, "f", 3) == by_shard
    assert known_receipts(artifact, "another job", 3) == {}
    assert known_receipts(artifact, "f", 2) == {0: receipts[0], 1: receipts[1]}
    (tmp_path / "receipts" / "00000.json").unlink()
    lines = (tmp_path / "receipts.jsonl").read_text().splitlines()
    (tmp_path / "receipts.jsonl").write_text("\n".join([lines[0], "{", lines[2]]))
    assert known_receipts(artifact, "f", 3) == by_shard
    (tmp_path / "receipts" / "00002.json").write_text(replace(receipts[2], stats={"audio_s": 9.0}).to_json())
    assert known_receipts(artifact, "f", 3) == {0: receipts[0], 1: receipts[1]}
    (tmp_path / "receipts.jsonl").unlink()
    assert sorted(known_receipts(artifact, "f", 3)) == [1, 2]


def test_the_single_receipt_must_be_that_of_the_list(tmp_path: Path) -> None:
    artifact, receipts = made(tmp_path)
    assert verify_book(artifact, receipts[1]) == []
    (problem,) = verify_book(artifact, replace(receipts[1], stats={"audio_s": 1.0}))
    assert problem == f"{tmp_path}/receipts/00001.json: missing, or not the receipt of receipts.jsonl"


def test_a_shard_without_bad_records_needs_no_quarantine(tmp_path: Path) -> None:
    artifact, receipts = made(tmp_path)
    assert verify_shard(artifact, receipts[0]) == []
    bad = replace(receipts[0], counts=Counts(2, 1, 1, {"nan-audio": 1}))
    assert verify_shard(artifact, bad) == [f"{tmp_path}/quarantine/00000.jsonl: missing"]
    (tmp_path / "quarantine").mkdir()
    (tmp_path / "quarantine" / "00000.jsonl").write_text("{}\n{}\n")
    assert verify_shard(artifact, bad) == [f"{tmp_path}/quarantine/00000.jsonl: 2 bad records, the receipt says 1"]


def test_what_cannot_be_read_is_a_problem_and_no_traceback(tmp_path: Path) -> None:
    artifact, receipts = made(tmp_path)
    (tmp_path / "shards" / "00001.parquet").unlink()
    (tmp_path / "shards" / "00001.parquet").mkdir()
    assert verify_shard(artifact, receipts[1]) == [
        f"{tmp_path}/shards/00001.parquet: it cannot be read: Is a directory"
    ]


def test_a_suffix_may_name_a_file_in_a_folder_of_the_shard(tmp_path: Path) -> None:
    """Formats want it that are many files."""
    artifact = Artifact(tmp_path)
    with ShardWriter(artifact, 0, "f") as out:
        for name in (".kaldi/text", ".kaldi/utt2spk"):
            out.path(name).parent.mkdir(exist_ok=True)
            out.path(name).write_text(name)
        receipt = out.commit()
    digest = content_digest([receipt], {})
    finish(artifact, [receipt], Manifest("made", 1, "f", digest, {}, {}, 1, Counts(), {}))
    assert (tmp_path / "shards" / "00000.kaldi" / "text").read_text() == ".kaldi/text"
    assert verify(artifact) == []
    (tmp_path / "shards" / "00001.kaldi").mkdir()
    assert verify(artifact) == [f"{tmp_path}/shards/00001.kaldi: not named by any receipt"]
