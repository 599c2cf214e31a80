"""Sources at any fsspec address: the same records from an object store as from a disk, or a clear error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from made_media import encode, murmur, put

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.filesystems import file_system
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.stage import Ingest
from megahour.corpus.media.listed import Listing

SCHEMES = ("gs", "hdfs")
Row = dict[str, Any]


class Bucket(MemoryFileSystem):  # type: ignore[misc]
    """A store in this process under the names of remote ones, whose addresses have a bucket or a host."""

    protocol = SCHEMES
    store: dict[str, Any] = {}  # noqa: RUF012 (fsspec's own way)
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.partition("://")[2] or path))


@pytest.fixture(scope="module", autouse=True)
def stores() -> Iterator[None]:
    known = {scheme: fsspec.registry.get(scheme) for scheme in SCHEMES}
    for scheme in SCHEMES:
        fsspec.register_implementation(scheme, Bucket, clobber=True)
    yield
    for scheme, implementation in known.items():
        fsspec.register_implementation(scheme, implementation, clobber=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("disk")
    for i in range(3):
        put(root, f"talks/t{i}.flac", encode(murmur(2, seed=i), kind="FLAC"))
        put(root, f"talks/t{i}.srt", "1\n00:00:00,500 --> 00:00:01,500\nGood morning.\n")
        put(root, f"talks/t{i}.json", json.dumps({"license": "CC0-1.0", "speaker": f"s{i}"}))
    return root


def upload(folder: Path, url: str) -> None:
    fs, path = file_system(url)
    for file in sorted(folder.rglob("*.*")):
        fs.pipe(f"{path}/{file.relative_to(folder)}", file.read_bytes())


def ingested(out: Path, **params: Any) -> list[Row]:
    """Rows without their origin, made in this process, which has the store."""
    p, stage = IngestParams(**params), Ingest()
    rows: list[Row] = []
    for number, task in enumerate(stage.plan(p, {})):
        with ShardWriter(Artifact(out), number, "made") as writer:
            stage.run(p, {}, task, writer, Context(out / "work"))
            writer.commit()
        rows += Artifact(out).read_table(number).to_pylist()
    return [{name: row[name] for name in ("name", "offset", "size", "samples", "speaker", "licence")} for row in rows]


@pytest.mark.parametrize("root", ["memory://bucket", "gs://bucket", "hdfs://namenode:9000/data"])
def test_a_store_gives_what_the_disk_gives(tmp_path: Path, folder: Path, root: str) -> None:
    upload(folder, root)
    local = ingested(tmp_path / "local", source=str(folder))
    remote = ingested(tmp_path / "remote", source=root)
    assert local == remote
    assert len(local) == 3
    some = ingested(tmp_path / "some", source=f"{root}/talks/t[12].*")
    assert [row["speaker"] for row in some] == ["s1", "s2"]


@pytest.mark.parametrize("root", ["gs://rows", "hdfs://namenode:9000/rows"])
def test_a_table_of_addresses_in_a_store(tmp_path: Path, folder: Path, root: str) -> None:
    upload(folder, root)
    lines = [f"{root}/talks/t{i}.flac\tGood morning.\tCC0-1.0" for i in range(3)]
    fs, path = file_system(f"{root}/rows.tsv")
    fs.pipe(path, "\n".join(["audio\ttext\tlicence", *lines, f"{root}/talks/gone.flac\tx\tCC0-1.0"]).encode())
    rows = ingested(tmp_path / "table", source=f"{root}/rows.tsv")
    assert len(rows) == 3
    (bad,) = (tmp_path / "table" / "quarantine").glob("*.jsonl")
    assert [json.loads(line)["reason"] for line in bad.read_text().splitlines()] == ["missing-file"]


def test_what_is_written_again_is_another_source(folder: Path) -> None:
    upload(folder, "gs://again")
    before = IngestParams(source="gs://again").identity()
    assert IngestParams(source="gs://again").identity() == before
    fs, path = file_system("gs://again/talks/t0.srt")
    fs.pipe(path, b"1\n00:00:00,500 --> 00:00:01,500\nGood evening to all.\n")
    assert IngestParams(source="gs://again").identity() != before


@pytest.mark.parametrize(
    ("address", "message", "remedy", "reason"),
    [
        ("abfs://bucket/talks", "adlfs", "pip install adlfs", "unreachable-file"),
        ("s4://bucket/talks", "Protocol not known: s4", "any fsspec protocol", "foreign-protocol"),
    ],
)
def test_what_is_missing_is_named(address: str, message: str, remedy: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        file_system(address)
    assert message in str(caught.value)
    assert remedy in str(caught.value)
    with pytest.raises(BadRecord) as bad:
        Listing("table.csv").blob(address).open()
    assert bad.value.reason == reason
