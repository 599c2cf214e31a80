"""Symbolic links in a source: their targets are read once, and unreadable ones are named or counted."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from made_media import encode, murmur, put

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.sources import list_source, plan_files, source_digest
from megahour.corpus.ingest.stage import Ingest
from megahour.corpus.interchange.import_plan import plan_source
from megahour.corpus.interchange.params import ImportParams
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder elsewhere, with two recordings."""
    for number in range(2):
        talk(tmp_path / "disk/talks", f"{number}", seed=number)
    return tmp_path / "disk"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    talk(tmp_path / "in", "own", seed=9)
    return tmp_path / "in"


def talk(folder: Path, name: str, seed: int) -> None:
    put(folder, f"{name}.wav", encode(murmur(1, seed=seed)))
    put(folder, f"{name}.txt", "Hello.")


def link(path: Path, target: Path | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def ingest(tmp_path: Path, engine: LocalEngine, source: object) -> Artifact:
    out = Artifact(tmp_path / "out")
    p = IngestParams(source=str(source), licence="CC0", max_bad=1)
    run_stage(Ingest(), p, {}, out, engine, work=tmp_path / "work")
    return out


def names(out: Artifact) -> list[str]:
    return [row["name"] for receipt in out.receipts() for row in out.read_table(receipt.shard).to_pylist()]


def test_files_and_folders_elsewhere_are_read(tmp_path: Path, root: Path, disk: Path, engine: LocalEngine) -> None:
    link(root / "disk2", disk)
    talk(tmp_path / "other", "single", seed=5)
    link(root / "a/one.wav", tmp_path / "other/single.wav")
    link(root / "a/one.txt", "../../other/single.txt")
    out = ingest(tmp_path, engine, root)
    assert names(out) == ["a/one", "disk2/talks/0", "disk2/talks/1", "own"]
    assert out.manifest.counts.dropped == {}
    assert out.summary["not_read"] == {}


def test_a_linked_root_and_a_linked_file(root: Path, disk: Path, tmp_path: Path) -> None:
    link(tmp_path / "here", disk)
    assert list(list_source(str(tmp_path / "here/talks")).sizes) == ["0.txt", "0.wav", "1.txt", "1.wav"]
    assert len(list_source(str(tmp_path / "here")).sizes) == 4
    link(root / "x.wav", disk / "talks/0.wav")
    link(root / "x.txt", disk / "talks/0.txt")
    assert list(list_source(str(root / "x.wav"), "name").sizes) == ["x.txt", "x.wav"]


def test_circles_end_and_are_counted(root: Path) -> None:
    link(root / "self", ".")
    link(root / "up", "..")
    link(root / "deep/er/back", "../../deep")
    link(root / "deep/er/self", "self")
    listing = list_source(str(root))
    assert list(listing.sizes) == ["own.txt", "own.wav"]
    assert listing.unread == {"folder linked again": 3}
    assert listing.broken == ("deep/er/self",)


def test_a_folder_with_two_names_is_read_once_under_its_real_one(root: Path, disk: Path) -> None:
    talk(root / "v2", "new", seed=3)
    link(root / "a_current", "v2")
    link(root / "b", disk)
    link(root / "c", disk)
    link(root / "d", disk / "talks")
    listing = list_source(str(root))
    media = [path for path in listing.sizes if path.endswith(".wav")]
    assert media == ["b/talks/0.wav", "b/talks/1.wav", "own.wav", "v2/new.wav"]
    assert listing.unread == {"folder linked again": 3}


def test_what_a_hidden_folder_holds_is_read_where_a_link_shows_it(root: Path, disk: Path) -> None:
    talk(root / ".store", "kept", seed=3)
    link(root / "shown", ".store")
    link(root / ".hidden", disk)
    listing = list_source(str(root))
    assert [path for path in listing.sizes if path.endswith(".wav")] == ["own.wav", "shown/kept.wav"]
    assert listing.hidden == 3


def test_broken_links_are_bad_records_by_name(tmp_path: Path, root: Path, engine: LocalEngine) -> None:
    for name in ("disk3", "gone.wav", "gone.srt", "pack.tar.gz", "readme.pdf", ".hidden"):
        link(root / name, f"/mnt/missing/{name}")
    out = ingest(tmp_path, engine, root)
    assert names(out) == ["own"]
    bad = {record["id"]: (record["reason"], record["detail"]) for record in out.bad_records()}
    assert sorted(bad) == ["disk3", "gone.srt", "gone.wav", "pack.tar.gz"]
    assert bad["disk3"] == ("broken-link", "the link points to /mnt/missing/disk3, which cannot be read")
    assert out.summary["not_read"] == {"broken link": 1}


def test_a_source_of_broken_links_says_so(tmp_path: Path) -> None:
    link(tmp_path / "in/a.wav", "/mnt/missing/a.wav")
    for source in (tmp_path / "in", tmp_path / "in/*.wav", tmp_path / "in/a.wav"):
        with pytest.raises(ConfigError, match=r"broken links: a\.wav"):
            list_source(str(source))
    put(tmp_path / "in", "notes.pdf", "x")
    with pytest.raises(ConfigError, match=r"is audio, tar or zip; broken links: a\.wav"):
        plan_files(str(tmp_path / "in"), 1000)
    link(tmp_path / "m/a.jsonl", "/mnt/missing/a.jsonl")
    put(tmp_path / "m", "b.jsonl", "{}")
    with pytest.raises(ConfigError, match=r"broken links: a\.jsonl"):
        plan_source(ImportParams(format="nemo", source=str(tmp_path / "m")))


def test_a_broken_link_that_is_mended_is_another_source(tmp_path: Path, root: Path) -> None:
    digests = [source_digest(str(root))]
    link(root / "more", tmp_path / "later")
    digests.append(source_digest(str(root)))
    talk(tmp_path / "later", "x", seed=1)
    digests.append(source_digest(str(root)))
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*/*/*.wav", ["latest/talks/0.wav", "latest/talks/1.wav", "v1/talks/0.wav", "v1/talks/1.wav"]),
        ("**/talks/1.wav", ["latest/talks/1.wav", "v1/talks/1.wav"]),
        ("lat*/talks/[01].wav", ["latest/talks/0.wav", "latest/talks/1.wav"]),
        ("latest/talks/0.*", ["0.wav"]),
    ],
)
def test_globs_go_through_links(root: Path, disk: Path, pattern: str, expected: list[str]) -> None:
    disk.rename(root / "v1")
    link(root / "latest", "v1")
    link(root / "up", ".")
    assert [path for path in list_source(f"{root}/{pattern}").sizes if path.endswith(".wav")] == expected


def test_what_is_no_file_is_counted_and_not_opened(root: Path) -> None:
    os.mkfifo(root / "pipe.wav")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(root / "s.wav"))
    listing = list_source(str(root))
    assert list(listing.sizes) == ["own.txt", "own.wav"]
    assert listing.unread == {"special file": 2}


def test_a_folder_without_links_has_the_digest_that_it_had(root: Path) -> None:
    """Finished runs stay valid: sizes and times are those of fsspec's listing."""
    import fsspec

    from megahour.core.records import fingerprint

    fs: Any = fsspec.filesystem("file")
    listed = sorted(fs.find(str(root), detail=True).items())
    assert source_digest(str(root)) == fingerprint([[Path(p).name, e["size"], str(e["mtime"])] for p, e in listed])
