"""What `ingest` fetches of archives and long recordings on web servers and object stores, counted at the server."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import fsspec
import pytest
from counting_proxy import counted_s3
from made_media import Int16, encode, murmur, put
from made_tracks import served, track

from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.ingest.items import task_items
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.shard import ingest_shard
from megahour.corpus.ingest.stage import Ingest
from megahour.corpus.media.tar import tar_writer

ZIPPED = {
    **{f"{i}.wav": encode(murmur(4, seed=i)) for i in range(6)},
    **{f"{i}.srt": b"1\n00:00:00,000 --> 00:00:04,000\nwords\n" for i in range(6)},
}


@cache
def long() -> Int16:
    return murmur(60, 44_100)


def small_members() -> bytes:
    target = io.BytesIO()
    with tar_writer(target) as tar:
        for i in range(40):
            tar.add(f"{i}.flac", encode(murmur(2, seed=i), kind="FLAC"))
            tar.add(f"{i}.txt", b"words")
    return target.getvalue()


def large_members() -> bytes:
    target = io.BytesIO()
    with tar_writer(target) as tar:
        for i in range(4):
            tar.add(f"{i}.wav", encode(murmur(20, seed=i)))
    return target.getvalue()


def zipped(method: int) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, data in ZIPPED.items():
            archive.writestr(name, data)
    return target.getvalue()


SOURCES: dict[str, Callable[[], bytes]] = {
    "small.tar": small_members,
    "large.tar": large_members,
    "stored.zip": lambda: zipped(zipfile.ZIP_STORED),
    "deflated.zip": lambda: zipped(zipfile.ZIP_DEFLATED),
    "long.mp3": lambda: encode(long(), 44_100, "MP3", "MPEG_LAYER_III"),
    "long.mp4": lambda: track(long(), "mp4", "aac", 44_100),
}


@contextmanager
def on_the_web(path: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    with served(path.parent) as server:
        yield f"{server.url}/{path.name}", lambda: sum(server.sent.values())


@contextmanager
def on_s3(path: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    url = f"s3://megahour-test/{path.parent.name}/{path.name}"
    fs, inner = fsspec.core.url_to_fs(url)
    fs.put_file(str(path), inner)
    with counted_s3() as counts:
        yield url, lambda: counts.fetched(path.name)


@pytest.mark.parametrize("place", [on_the_web, on_s3])
@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_fetched_hardly_more_than_once(tmp_path: Path, s3_url: str, name: str, place: Callable) -> None:  # type: ignore[type-arg]
    path = put(tmp_path, name, SOURCES[name]())
    size = path.stat().st_size
    with place(path) as (url, fetched):
        p = IngestParams(source=url, licence="CC0", require_transcript=False, allow_private=["127.0.0.0/8"], max_bad=1)
        (task,) = Ingest().plan(p, {})
        with ShardWriter(Artifact(tmp_path / "out"), 0, "made") as out:
            with task_items(p, None, task.spec, tmp_path / "work") as items:
                ingest_shard(p, items, out, tmp_path / "work")
            assert out.counts.kept == {"small.tar": 40, "large.tar": 4, "stored.zip": 6, "deflated.zip": 6}.get(name, 1)
        assert 0.9 * size < fetched() < 1.5 * size
