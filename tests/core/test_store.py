"""Artifacts: atomic commits, receipts, the manifest last, and what `verify` finds; on local disk and on S3."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

from megahour.core.errors import ConfigError, StoreError
from megahour.core.locks import MARKS, alone, check
from megahour.core.receipts import Counts, Manifest, Receipt
from megahour.core.store import ENTRIES, RESOLVED, SCRATCH, Artifact, content_digest, finish
from megahour.core.transfer import file_digest
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
        folder = out.path(".parquet").parent
        assert folder.exists()
    assert not folder.exists()
    assert artifact.committed() == set()
    assert not artifact.fs.exists(artifact.shard_path(0, ".parquet"))


def test_json_files_have_one_form(url: str) -> None:
    """Sorted and indented, so that equal values have equal bytes that can be read and compared."""
    artifact = Artifact(url)
    with ShardWriter(artifact, 0, "f") as out:
        out.json({"b": ["é", 1], "a": None})
        out.text("two\nlines", ".txt")
        out.commit()
    assert artifact.read_bytes(0, ".json").decode() == '{\n "a": null,\n "b": [\n  "é",\n  1\n ]\n}\n'
    assert artifact.read_json(0, ".json") == {"a": None, "b": ["é", 1]}
    assert artifact.read_bytes(0, ".txt") == b"two\nlines"


def test_counts_and_statistics_add_up(tmp_path: Path) -> None:
    with ShardWriter(Artifact(tmp_path), 0, "f") as out:
        for _ in range(3):
            out.came_in()
        out.kept()
        out.drop("short")
        out.drop("short", 2)
        out.drop("long", 0)  # a reason that no record had is not named
        out.stat("audio_s", 1.5)
        out.stat("audio_s", 2.0)
        receipt = out.commit()
    assert receipt.counts == Counts(came_in=3, kept=1, bad=0, dropped={"short": 3})
    assert receipt.stats == {"audio_s": 3.5}
    with ShardWriter(Artifact(tmp_path), 1, "f") as out, pytest.raises(ValueError, match="starts with a dot"):
        out.path("parquet")


def test_shards_that_another_process_commits_are_seen(s3_url: str, tmp_path: Path) -> None:
    """s3fs remembers what it has listed, which is out of date as soon as a worker commits."""
    s3fs = pytest.importorskip("s3fs", reason="pip install s3fs to test object stores")
    artifact = Artifact(f"{s3_url}/{tmp_path.name}")
    write_shard(artifact, 0)
    folder = artifact.path("receipts")
    assert len(artifact.fs.ls(folder)) == 1
    other = s3fs.S3FileSystem(skip_instance_cache=True)
    other.pipe_file(f"{folder}/00001.json", b"{}")
    assert len(artifact.fs.ls(folder)) == 2
    assert artifact.committed() == {0, 1}


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


def test_finished_runs_of_format_1_stay_valid(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "artifact")
    close(artifact, [write_shard(artifact, 0)])
    path = tmp_path / "artifact" / "manifest.json"
    assert json.loads(path.read_text())["format"] == 1
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(StoreError, match="has format 2, this version reads 1"):
        _ = Artifact(artifact.url).manifest


def test_equal_shards_have_equal_bytes(tmp_path: Path) -> None:
    receipts = [write_shard(Artifact(tmp_path / name), 0) for name in ("a", "b")]
    assert receipts[0] == receipts[1]


def test_verify_counts_the_receipts(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "artifact")
    close(artifact, [write_shard(artifact, shard) for shard in range(2)])
    path = tmp_path / "artifact" / "receipts.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    problems = verify(Artifact(artifact.url))
    assert f"{artifact.url}: the manifest names 2 shards, receipts.jsonl has 1" in problems


def test_verify_adds_up_the_counts(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "artifact")
    close(artifact, [write_shard(artifact, shard) for shard in range(2)])
    path = tmp_path / "artifact" / "manifest.json"
    path.write_text(path.read_text().replace('"kept": 6', '"kept": 7'))
    assert verify(Artifact(artifact.url)) == [f"{artifact.url}: the receipts' counts do not add up to the manifest's"]


def test_what_was_left_out_by_policy_is_not_in_quarantine(url: str) -> None:
    artifact = Artifact(url)
    with ShardWriter(artifact, 0, "f") as out:
        out.drop("held-out", 3)
        receipt = out.commit()
    close(artifact, [receipt])
    assert (receipt.counts.bad, receipt.counts.dropped) == (0, {"held-out": 3})
    assert list(Artifact(url).bad_records()) == []
    assert verify(artifact) == []


def test_a_finished_artifact_holds_nothing_of_killed_attempts(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "artifact")
    killed = ShardWriter(artifact, 0, "f")  # never left, as when its process is killed
    killed.table(TABLE)
    (tmp_path / "artifact" / "shards").mkdir()
    (tmp_path / "artifact" / "shards" / ".4f.tmp").write_text("half a file")
    close(artifact, [write_shard(artifact, 0)])
    assert {path.name for path in (tmp_path / "artifact").iterdir()} == ENTRIES - {"tmp", "claim.txt", MARKS, SCRATCH}
    assert not list((tmp_path / "artifact").rglob(".*.tmp"))


def test_a_power_cut_leaves_no_receipt_without_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes reach the disk before a file has its name, and the name before the next file has its own."""
    moves: list[str] = []
    sync, replace = os.fsync, Path.replace

    def watched_sync(descriptor: int) -> None:
        moves.append(f"sync {Path(f'/proc/self/fd/{descriptor}').resolve().relative_to(tmp_path)}")
        sync(descriptor)

    def watched_replace(source: Path, target: str) -> Path:
        moves.append(f"move {source.relative_to(tmp_path)} {Path(target).relative_to(tmp_path)}")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    artifact = Artifact(tmp_path)
    close(artifact, [write_shard(artifact, 0)])
    moved = [move.split()[1:] for move in moves if move.startswith("move")]
    assert moves == [
        step
        for source, target in moved
        for step in (f"sync {source}", f"move {source} {target}", f"sync {Path(target).parent}")
    ]
    files = [f"shards/00000{suffix}" for suffix in (".arrow", ".parquet", ".tar")]
    assert [target for _, target in moved] == [
        *files,
        "quarantine/00000.jsonl",
        "timings/00000.json",
        "receipts/00000.json",
        "receipts.jsonl",
        "manifest.json",
    ]


def test_a_manifest_is_read_again_once_it_is_another(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "artifact")
    close(artifact, [write_shard(artifact, 0)])
    assert artifact.manifest.shards == 1
    close(artifact, [write_shard(artifact, shard) for shard in range(2)])
    assert artifact.manifest.shards == 2
    artifact.delete()
    with pytest.raises(StoreError, match="missing or unfinished"):
        _ = artifact.manifest
    assert artifact.made is None
    (tmp_path / RESOLVED).touch()
    with pytest.raises(StoreError, match="the folder of a run, not an artifact") as caught:
        _ = Artifact(tmp_path).manifest
    assert caught.value.remedy == f"name one of its artifacts: {tmp_path}/STEP"


def test_deleting_leaves_the_marks_of_writers(url: str) -> None:
    """A run holds its place in the folder while it clears what another job left there."""
    artifact = Artifact(url)
    close(artifact, [write_shard(artifact, 0)])
    with alone(artifact.fs, artifact.root) as token:
        artifact.delete()
        check(artifact.fs, artifact.root, token, fresh=True)
        assert [Path(path).name for path in artifact.fs.ls(artifact.root, detail=False)] == [MARKS]
        artifact.delete()  # there is nothing to delete
        check(artifact.fs, artifact.root, token, fresh=True)


def test_a_folder_that_was_made_in_a_stores_console_is_empty(s3_url: str) -> None:
    """It is an empty object named by the folder, with a slash: a listing has it among the folder's files."""
    made = Artifact(f"{s3_url}/of-a-console/artifact")
    made.fs.call_s3("put_object", Bucket=s3_url.removeprefix("s3://"), Key="of-a-console/artifact/", Body=b"")
    made.fs.pipe_file(made.path("manifest.json"), b"{}")
    made.delete()
    assert not made.complete
    made.delete()  # there is nothing to delete


def test_a_folder_that_is_not_there_is_deleted_without_a_word(url: str) -> None:
    Artifact(f"{url}/nothing").delete()


def test_scratch_files_of_a_killed_run_are_an_artifacts_own(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "artifact")
    write_shard(artifact, 0)
    (tmp_path / "artifact" / ".4f.tmp").write_text("half a manifest")
    artifact.delete()
    assert not (tmp_path / "artifact").exists()


def test_a_manifest_without_its_format_is_damaged(tmp_path: Path) -> None:
    for written, told in ((0, "unknown format 0"), ("one", "format of it is 'one', not int")):
        text = Manifest("toy", 1, "f", "d", {}, {}, 0, Counts(), {}).to_json()
        with pytest.raises(ValueError, match=told):
            Manifest.from_json(text.replace('"format": 1', f'"format": {json.dumps(written)}'))
    with pytest.raises(ValueError, match="not a mapping"):
        Manifest.from_json("[1]")


def test_what_a_shard_took_is_beside_it(url: str) -> None:
    artifact = Artifact(url)
    with ShardWriter(artifact, 3, "f") as out:
        sum(range(200_000))
        out.commit()
    timing = artifact.timings()[3]
    assert timing["host"] == socket.gethostname()
    assert 0 < timing["cpu_seconds"] <= timing["seconds"] + 0.1 < 60
    artifact.fs.pipe_file(artifact.path("timings/3 copy.json"), b'{"seconds": 1}')
    artifact.fs.pipe_file(artifact.path("timings/00004.json"), b'{"seconds": "long", "host": "a"}')
    artifact.fs.pipe_file(artifact.path("timings/00005.json"), b"[1]")
    assert {shard: set(found) for shard, found in artifact.timings().items()} == {3: set(timing), 4: {"host"}}
    assert artifact.wall() == {}
    artifact.fs.pipe_file(artifact.path("timings/total.json"), b'{"seconds": 2.5, "workers": 2, "made_with": {}}')
    assert artifact.wall() == {"seconds": 2.5, "workers": 2, "made_with": {}}


def test_files_are_digested_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs, path = Artifact(tmp_path).fs, tmp_path / "file"
    path.write_bytes(bytes(range(11)))
    expected = (11, hashlib.sha256(bytes(range(11))).hexdigest())
    assert file_digest(fs, str(path)) == expected
    monkeypatch.setattr("megahour.core.transfer.BLOCK", 4)
    assert file_digest(fs, str(path)) == expected


def test_nothing_of_what_goes_to_a_store_stays_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    artifact = Artifact(f"memory://{tmp_path.name}/artifact")
    close(artifact, [write_shard(artifact, 0)])
    assert verify(artifact) == []
    assert list(tmp_path.iterdir()) == []


def test_an_artifact_without_shards_needs_no_receipts(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path)
    close(artifact, [])
    (tmp_path / "receipts.jsonl").unlink()
    assert artifact.receipts() == []


def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"caf\\xe9: the name is not UTF-8"):
        Artifact(tmp_path / os.fsdecode(b"caf\xe9"))


def test_a_writer_commits_only_while_its_run_has_the_place(url: str) -> None:
    artifact = Artifact(url)
    with alone(artifact.fs, artifact.root) as token:
        with ShardWriter(artifact, 0, "f", owner=token) as out:
            out.commit()
        assert artifact.committed() == {0}
    with ShardWriter(artifact, 1, "f", owner="0" * 32) as out, pytest.raises(StoreError, match="taken over this"):
        out.commit()
    assert artifact.committed() == {0}


def test_a_writer_whose_files_are_gone_is_told_that_another_run_has_removed_them(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path)
    with (
        pytest.raises(StoreError, match=f"{tmp_path}: another run has taken over this folder"),
        ShardWriter(artifact, 0, "f", owner="0" * 32) as out,
    ):
        out.path(".x").read_text()
    with pytest.raises(FileNotFoundError), ShardWriter(artifact, 0, "f") as out:
        out.path(".x").read_text()


def test_a_folder_whose_name_looks_like_a_glob(url: str) -> None:
    """Its shards were not seen: a resumed run made them all again, and no file was out of place."""
    artifact = Artifact(f"{url}/run [2019]*")
    receipts = [write_shard(artifact, 0)]
    assert artifact.committed() == {0}
    assert list(artifact.timings()) == [0]
    close(artifact, receipts)
    artifact.fs.pipe_file(artifact.shard_path(7, ".parquet"), b"stray")
    assert verify(artifact)[0].endswith("/shards/00007.parquet: not named by any receipt")
    assert artifact.matching("*/0000?*.json") == [
        artifact.path(f"{name}/00000.json") for name in ("receipts", "timings")
    ]
    assert artifact.matching("none/*") == artifact.matching("manifest.json/*") == artifact.matching("*/none") == []


def test_quarantine_holds_line_ends_of_unicode(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path)
    with ShardWriter(artifact, 0, "f") as out:
        out.quarantine("a\u2028b", "unreadable", "c\x85d")
        receipt = out.commit()
    close(artifact, [receipt])
    assert [(bad["id"], bad["detail"]) for bad in artifact.bad_records()] == [("a\u2028b", "c\x85d")]


def test_quarantine_holds_names_that_no_utf_8_can(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path)
    with ShardWriter(artifact, 0, "f") as out:
        out.quarantine(os.fsdecode(b"caf\xe9"), "unreadable", "\ud800", source="\udcff")
        out.tags["set"] = "\ud800"
        receipt = out.commit()
    assert receipt == artifact.receipt(0)
    assert receipt.tags == {"set": "\ufffd"}
    close(artifact, [receipt])
    (bad,) = artifact.bad_records()
    assert (bad["id"], bad["detail"], bad["source"]) == (r"caf\xe9", r"\ud800", r"\xff")


@pytest.mark.parametrize(("name", "what"), [("bundle.json", "the bundle of"), ("config.json", "of a checkpoint")])
def test_a_model_of_other_programs_is_no_artifact_yet(tmp_path: Path, name: str, what: str) -> None:
    """It was "missing or unfinished"."""
    (tmp_path / name).touch()
    with pytest.raises(StoreError, match=f"{what}.*, not an artifact") as caught:
        _ = Artifact(tmp_path).manifest
    assert f"`megahour import-aligner --model {tmp_path}`" in caught.value.remedy
