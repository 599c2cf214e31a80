"""Artifacts: atomic commits, receipts, the manifest last, and what `verify` finds; on local disk and on S3."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from megahour.core.errors import StoreError
from megahour.core.store import Artifact, Counts, Manifest, Receipt, content_digest, finish
from megahour.core.verify import verify
from megahour.core.writer import ShardWriter

TABLE = pa.table({"key": pa.array([1, 2, 3], pa.int64()), "text": ["one", "two", "three"]})


@pytest.fixture(params=["local", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "artifact")
    bucket: str = request.getfixturevalue("s3_url")
    return f"{bucket}/{tmp_path.name}"


def write_shard(artifact: Artifact, shard: int, fingerprint: str = "f") -> Receipt:
    with ShardWriter(artifact, shard, fingerprint) as out:
        out.came_in(4)
        out.kept(3)
        out.quarantine("r4", "nan-audio", "12 of 16000 samples", source="d.wav")
        out.table(TABLE)
        out.table(TABLE, ".arrow")
        with out.open(".tar") as file:
            file.write(b"audio")
        out.stat("audio_s", 2.5)
        out.tags["set"] = "test"
        return out.commit()


def close(artifact: Artifact, receipts: list[Receipt]) -> None:
    counts = Counts()
    for receipt in receipts:
        counts.add(receipt.counts)
    digest = content_digest(receipts, {})
    finish(artifact, receipts, Manifest("toy", 1, "f", digest, {}, {}, len(receipts), counts, {}))


def test_a_committed_shard_can_be_read_back(url: str) -> None:
    artifact = Artifact(url)
    receipts = [write_shard(artifact, shard) for shard in range(2)]
    close(artifact, receipts)

    again = Artifact(url)
    assert again.complete
    assert again.receipts() == receipts
    assert again.read_table(1).equals(TABLE)
    assert again.read_table(1, ".arrow", columns=["text"]).column_names == ["text"]
    assert again.read_bytes(0, ".tar") == b"audio"
    with again.local(0, ".tar") as path:
        assert path.read_bytes() == b"audio"
    assert again.manifest.counts == Counts(came_in=8, kept=6, bad=2, dropped={"nan-audio": 2})
    bad = list(again.bad_records())
    found = {"id": "r4", "reason": "nan-audio", "detail": "12 of 16000 samples", "source": "d.wav"}
    assert bad[0] == {**found, "shard": "0"}
    assert verify(again) == []


def test_without_a_manifest_nothing_exists(url: str) -> None:
    artifact = Artifact(url)
    write_shard(artifact, 0)
    assert not Artifact(url).complete
    with pytest.raises(StoreError, match="unfinished"):
        _ = Artifact(url).manifest
    assert artifact.committed() == {0}


def test_a_writer_that_is_left_before_commit_leaves_no_trace(url: str) -> None:
    artifact = Artifact(url)
    with ShardWriter(artifact, 0, "f") as out:
        out.table(TABLE)
    assert artifact.committed() == set()
    assert not artifact.fs.exists(artifact.shard_path(0, ".parquet"))


def test_a_duplicate_attempt_is_harmless(url: str) -> None:
    """Two attempts at one shard that end in any order leave one shard with the same bytes."""
    artifact = Artifact(url)
    with ShardWriter(artifact, 0, "f") as slow:
        slow.table(TABLE)
        slow.came_in(3)
        with ShardWriter(artifact, 0, "f") as quick:
            quick.table(TABLE)
            quick.came_in(3)
            first = quick.commit()
        assert slow.commit() == first
    close(artifact, [first])
    assert verify(artifact) == []


def test_verify_names_each_kind_of_damage(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "artifact")
    close(artifact, [write_shard(artifact, shard) for shard in range(3)])
    shards = tmp_path / "artifact" / "shards"
    flipped = bytearray((shards / "00000.tar").read_bytes())
    flipped[0] ^= 1
    (shards / "00000.tar").write_bytes(flipped)
    (shards / "00001.tar").write_bytes(b"short")
    (shards / "00001.tar").write_bytes(b"sho")
    (shards / "00002.tar").unlink()
    (shards / "00009.tar").write_bytes(b"stray")
    problems = "\n".join(verify(artifact))
    assert "00000.tar: its SHA-256 differs" in problems
    assert "00001.tar: 3 bytes, the receipt says 5" in problems
    assert "00002.tar: missing" in problems
    assert "00009.tar: not named by any receipt" in problems
    assert len(verify(artifact)) == 4


def test_verify_sees_a_receipt_that_was_edited(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "artifact")
    close(artifact, [write_shard(artifact, 0)])
    path = tmp_path / "artifact" / "receipts.jsonl"
    path.write_text(path.read_text().replace('"set":"test"', '"set":"train"'))
    assert "digest" in verify(artifact)[0]


def test_verify_reports_damaged_books_without_giving_up(tmp_path: Path) -> None:
    def damaged(name: str, file: str, text: str | None) -> str:
        artifact = Artifact(tmp_path / name)
        close(artifact, [write_shard(artifact, 0)])
        path = tmp_path / name / file
        path.unlink() if text is None else path.write_text(text)
        (problem,) = verify(Artifact(artifact.url))
        return problem

    assert "damaged manifest" in damaged("a", "manifest.json", "{")
    assert "damaged receipts.jsonl" in damaged("b", "receipts.jsonl", None)
    assert "damaged receipts.jsonl" in damaged("c", "receipts.jsonl", '{"shard": 0')
    assert "not the receipt of receipts.jsonl" in damaged("d", "receipts/00000.json", None)
    assert "quarantine/00000.jsonl: missing" in damaged("e", "quarantine/00000.jsonl", None)
    assert "0 bad records, the receipt says 1" in damaged("f", "quarantine/00000.jsonl", "")


def test_a_damaged_table_is_named(url: str) -> None:
    artifact = Artifact(url)
    close(artifact, [write_shard(artifact, 0)])
    for suffix in (".parquet", ".arrow"):
        artifact.fs.pipe_file(artifact.shard_path(0, suffix), b"not a table")
        with pytest.raises(StoreError, match=rf"shard 0, file \*{suffix} cannot be read"):
            artifact.read_table(0, suffix)
    with pytest.raises(StoreError, match="shard 7"):
        artifact.read_table(7, ".arrow")


def test_only_an_artifact_is_deleted(url: str) -> None:
    """A mistyped output must not cost a home directory."""
    artifact = Artifact(url)
    close(artifact, [write_shard(artifact, 0)])
    artifact.fs.pipe_file(artifact.path("thesis.txt"), b"years of work")
    with pytest.raises(StoreError, match=r"not an artifact: it holds thesis\.txt"):
        artifact.delete()
    assert artifact.complete
    artifact.fs.rm_file(artifact.path("thesis.txt"))
    artifact.delete()
    assert not artifact.fs.exists(artifact.root)


def test_a_damaged_manifest_says_so(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "artifact")
    close(artifact, [write_shard(artifact, 0)])
    (tmp_path / "artifact" / "manifest.json").write_text('{"format": 1, "stage":')
    with pytest.raises(StoreError, match="damaged manifest"):
        _ = Artifact(tmp_path / "artifact").manifest


def test_equal_shards_have_equal_bytes(tmp_path: Path) -> None:
    receipts = [write_shard(Artifact(tmp_path / name), 0) for name in ("a", "b")]
    assert receipts[0] == receipts[1]
