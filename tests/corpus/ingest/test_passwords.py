"""A password in a table's address opens the file, and is never stored."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from made_media import encode, murmur, put

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.shard import ingest_shard
from megahour.corpus.ingest.tables import plan_table, table_items
from megahour.corpus.media.addresses import masked
from megahour.corpus.media.listed import Listing

SECRET = "s3cret"
SRT = "1\n00:00:00,100 --> 00:00:00,900\nGood morning.\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://ann:s3cret@host.org:8443/a.wav?x=1", "https://***@host.org:8443/a.wav?x=1"),
        ("HTTP://s3cret@host/a", "HTTP://***@host/a"),
        ("https://a.blob.net/c/a.wav?sv=2024&sig=s3cr%2Bet%3D&sp=r", "https://a.blob.net/c/a.wav?sv=2024&sig=***&sp=r"),
        (
            "https://b.s3.org/a.wav?X-Amz-Date=1&X-Amz-Signature=s3cret",
            "https://b.s3.org/a.wav?X-Amz-Date=1&X-Amz-Signature=***",
        ),
        ("https://host/a.wav?Signature=s3cret~#t", "https://host/a.wav?Signature=***#t"),
        ("https://host/get?id=7&design=sig", "https://host/get?id=7&design=sig"),
        ("no file at https://ann:p@ss@host/a, nor at http://bob:x@other/b", None),
        ("sftp://ann:s3cret@host/a", "sftp://***@host/a"),
        ("abfs://box@account.dfs.core.windows.net/a", "abfs://box@account.dfs.core.windows.net/a"),
        ("hdfs://ann@namenode:8020/a", "hdfs://ann@namenode:8020/a"),
        ("https://host/@ann/a.wav", "https://host/@ann/a.wav"),
        ("https://host:80/a:b@c", "https://host:80/a:b@c"),
        ("talks/ann:b@c.wav", "talks/ann:b@c.wav"),
    ],
)
def test_what_lets_somebody_in_is_masked_and_nothing_else(text: str, shown: str | None) -> None:
    several = "no file at https://***@host/a, nor at http://***@other/b"
    assert masked(text) == (several if shown is None else shown)


@pytest.mark.parametrize("text", ["a" * 2_000_000, "://a" * 500_000, "https://" + "a:" * 1_000_000])
def test_a_text_of_any_length_is_masked_at_once(text: str) -> None:
    """An untrusted table may have such an address."""
    started_s = time.process_time()
    masked(text)
    assert time.process_time() - started_s < 2.0


class _Handler(SimpleHTTPRequestHandler):
    def send_head(self):  # type: ignore[no-untyped-def]
        if self.headers.get("Authorization") != f"Basic {base64.b64encode(f'ann:{SECRET}'.encode()).decode()}":
            self.send_error(401)
            return None
        return super().send_head()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def guarded(folder: Path) -> Iterator[str]:
    """HOST:PORT of a web server that lets ann in."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_files_behind_a_password_are_fetched_and_the_password_is_written_nowhere(tmp_path: Path) -> None:
    web = tmp_path / "web"
    put(web, "talk.wav", encode(murmur(1)))
    put(web, "talk.srt", SRT)
    put(web, "broken.wav", b"RIFF")
    with guarded(web) as host:
        ours, wrong = f"http://ann:{SECRET}@{host}", f"http://ann:{SECRET}2@{host}"
        rows = [
            f"{ours}/talk.wav,{ours}/talk.srt",
            f"{ours}/talk.wav,{ours}/talk.srt",
            f"{ours}/gone.wav,{ours}/talk.srt",
            f"{wrong}/other.wav,{ours}/talk.srt",
            f"{ours}/broken.wav,{ours}/talk.srt",
            f"ftp://ann:{SECRET}@{host}/x.wav,",
            f"http://ann:{SECRET}@:x/y.wav,",
        ]
        source = put(tmp_path, "list.csv", "\n".join(["url,srt", *rows]))
        p = IngestParams(source=str(source), licence="CC0", allow_private=["127.0.0.1"])
        (spec,) = plan_table(p.source, 1 << 30, 100)
        items = table_items(p.source, *spec["table"], 0, spec["repeated"], p.allow_private)
        with ShardWriter(Artifact(tmp_path / "out"), 0, "made") as out:
            ingest_shard(p, items, out, tmp_path / "work")
            receipt = out.commit()
    assert receipt.counts.kept == 1
    assert set(receipt.counts.dropped) >= {"duplicate-id", "missing-file", "foreign-protocol", "malformed-address"}
    assert sum(receipt.counts.dropped.values()) == 6
    (made,) = Artifact(tmp_path / "out").read_table(0).to_pylist()
    assert (made["source"], made["name"]) == (f"http://***@{host}/talk.wav", f"http://***@{host}/talk")
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path
    quarantine = (tmp_path / "out" / "quarantine" / "00000.jsonl").read_text()
    assert quarantine.count("***@") >= 5, "what is wrong can still be found by its address"


def test_another_password_for_the_same_file_makes_no_other_recording(tmp_path: Path) -> None:
    source = put(tmp_path, "list.csv", "url\nhttps://ann:1@host/a.wav\nhttps://bob:2@host/a.wav\n")
    (spec,) = plan_table(str(source), 1 << 30, 100)
    assert spec["repeated"] == [1]


def test_a_stores_table_keeps_its_password_out_of_errors() -> None:
    listing = Listing(f"http://ann:{SECRET}@127.0.0.1:9/list.csv", ("127.0.0.1",))
    with pytest.raises(BadRecord) as caught:
        listing.blob("a.wav").open()
    assert "***@127.0.0.1:9/a.wav" in str(caught.value)
    with pytest.raises(ConfigError) as refused:
        plan_table(f"http://ann:{SECRET}@127.0.0.1:9/list.csv", 1 << 30, 100)
    assert SECRET not in str(refused.value)
