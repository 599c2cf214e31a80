"""Addresses in a table: each is opened or refused with a reason, and nothing private is reached."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
from fsspec.registry import known_implementations
from made_media import encode, murmur, put

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.shard import ingest_shard
from megahour.corpus.ingest.stage import Ingest
from megahour.corpus.ingest.tables import table_items
from megahour.corpus.media import networks
from megahour.corpus.media.addresses import Remote
from megahour.corpus.media.listed import PROTOCOLS, Listing
from megahour.corpus.media.networks import PrivateAddress, check_address, parse_networks

HERE = "127.0.0.1"


def reason(address: str, source: str = "t.csv", *allowed: str) -> str:
    """Why the address that a table at `source` names cannot be opened; "" if it can."""
    found = ""
    try:
        Listing(source, allowed).blob(address).open().close()
    except BadRecord as bad:
        found = bad.reason
        assert len(bad.detail) < 1000, "an address in a message is cut"  # noqa: PT017
    return found


@pytest.fixture(autouse=True)
def nothing_is_kept_open() -> Iterator[None]:
    """fsspec caches file systems with their credentials; other tests must not get those of these tests."""
    yield
    for name in ("s3", "http"):
        fsspec.get_filesystem_class(name).clear_instance_cache()


@pytest.mark.parametrize("protocol", sorted(set(known_implementations) - set(PROTOCOLS)))
@pytest.mark.parametrize("form", ["{}://host/a.wav", "{}://", "{}::/a.wav", "{}::http://127.0.0.1/a.wav"])
def test_protocols_that_tables_may_not_name(protocol: str, form: str) -> None:
    before = set(sys.modules)
    for source in ("t.csv", "https://host/t.csv"):
        expected = ("foreign-protocol", "local-address") if protocol == "memory" else ("foreign-protocol",)
        assert reason(form.format(protocol), source) in expected
        assert reason(form.format(protocol.upper()), source) in expected
    assert set(sys.modules) == before, "nothing is imported for it"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_protocols_that_tables_may_name_give_a_reason_too(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{HERE}:9")
    for rest in ("", "/", "//", "?", "a" * 10_000, "\x00", "a\x00b", "::", "%zz"):
        assert reason(f"{protocol}://{rest}")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://[::1", "malformed-address"),
        ("http://host:port/a.wav", "malformed-address"),
        ("http://host:99999/a.wav", "malformed-address"),
        ("http://:80/a.wav", "malformed-address"),
        ("http:///a.wav", "malformed-address"),
        ("http://ho st/a.wav", "malformed-address"),
        ("http://\u2100.example/a.wav", "malformed-address"),
        (f"http://{'a' * 64}.example/a.wav", "malformed-address"),
        ("http://a..example/a.wav", "malformed-address"),
        ("http://127.0.0.1/\ud800.wav", "private-address"),
        ("https://host\x00/a.wav", "malformed-address"),
        ("s3://", "malformed-address"),
        ("s3://not a bucket!/a.wav", "malformed-address"),
        ("file:///%zz", "missing-file"),
        ("file://", "malformed-address"),
        ("a" * 10_000 + ".wav", "missing-file"),
        ("nul\x00.wav", "malformed-address"),
        ("\udcff.wav", "missing-file"),
        ("/dev/zero", "missing-file"),
        ("..", "missing-file"),
        ("data:audio/wav;base64,UklGRg==", "foreign-protocol"),
        ("DATA:,x", "foreign-protocol"),
        ("zip://a::http://b", "foreign-protocol"),
        ("zip::http://b", "foreign-protocol"),
        ("s3://bucket/a::http://b", "foreign-protocol"),
        ("ftp://host/a.wav", "foreign-protocol"),
        ("nonsense://host/a.wav", "foreign-protocol"),
    ],
)
def test_malformed_and_foreign_addresses(address: str, expected: str) -> None:
    assert reason(address) == expected


def test_a_store_without_credentials_is_unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{HERE}:9")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    assert reason("s3://bucket/a.wav") == "unreachable-file"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    assert reason("pipe.wav", str(tmp_path / "t.csv")) == "missing-file"


@pytest.mark.parametrize("size", [-1, 10])
def test_a_disk_that_fails_is_a_failure_of_the_row(tmp_path: Path, size: int) -> None:
    file = Listing(str(tmp_path / "t.csv")).blob(str(put(tmp_path, "a.wav", b"RIFF"))).open()
    fails = os.open(tmp_path / "a.wav", os.O_WRONLY)
    os.dup2(fails, file.fileno())  # the next read fails, as on a broken disk
    os.close(fails)
    with file, pytest.raises(BadRecord, match="unreadable-file"):
        file.read(size)


def test_names_that_look_like_chains_are_files(tmp_path: Path) -> None:
    put(tmp_path, "Part 2 :: the end.wav", encode(murmur(1)))
    assert reason("Part 2 :: the end.wav", str(tmp_path / "t.csv")) == ""


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.255.0.9", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
        *("0.0.0.0", "224.0.0.1", "239.1.1.1", "255.255.255.255", "240.0.0.1", "198.18.0.1", "192.0.2.1"),
        *("192.0.0.192", "168.63.129.16", "::ffff:168.63.129.16", "100.100.100.200", "fd00:ec2::254"),
        *("::1", "::", "fc00::1", "fd12::1", "fe80::1", "fe80::1%lo", "fec0::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "2002:7f00:1::", "::7f00:1"),
        *("2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost", ""),
    ],
)
def test_what_is_private(address: str) -> None:
    with pytest.raises(PrivateAddress):
        check_address(address, ())


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_what_is_public(address: str) -> None:
    check_address(address, ())


def test_networks_that_are_allowed() -> None:
    allowed = parse_networks(["10.0.0.0/8", "127.0.0.1", "fd00::/8"])
    for address in ("10.9.8.7", "127.0.0.1", "::ffff:10.0.0.1", "fd12::1"):
        check_address(address, allowed)
    for address in ("127.0.0.2", "192.168.1.1", "::1"):
        with pytest.raises(PrivateAddress):
            check_address(address, allowed)


def test_an_invalid_network_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='"intranet" is not a network'):
        Ingest().check(IngestParams(source=str(tmp_path), allow_private=["intranet"]), ())


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        server.asked.append(self.path)
        if self.path.startswith("/to?"):
            self.send_response(302)
            self.send_header("Location", self.path.partition("?")[2])
            self.end_headers()
            return
        if self.path == "/silent":
            server.wait.wait(30)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(server.data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(server.data)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None: ...


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str) -> None:
        super().__init__((host, 0), _Handler)
        self.asked: list[str] = []
        self.data = encode(murmur(1))
        self.wait = threading.Event()
        self.url = f"http://{host}:{self.server_port}"


@contextmanager
def served(host: str) -> Iterator[_Server]:
    with _Server(host) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.wait.set()
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def inside() -> Iterator[_Server]:
    """What a table must not reach."""
    with served("127.0.0.2") as server:
        yield server


def spellings(port: int) -> list[str]:
    hosts = ["127.0.0.2", "2130706434", "0x7f000002", "0177.0.0.2", "127.2", "[::ffff:127.0.0.2]", "user:pw@127.0.0.2"]
    return [f"http://{host}:{port}/a.wav" for host in hosts]


def test_no_spelling_of_a_private_address_is_reached(inside: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    inside.asked.clear()
    pauses: list[float] = []
    monkeypatch.setattr("megahour.corpus.media.addresses.time", SimpleNamespace(sleep=pauses.append))
    for address in spellings(inside.server_port):
        assert reason(address) in ("private-address", "malformed-address"), address
    assert reason(f"http://localhost:{inside.server_port}/a.wav") == "private-address"
    assert reason("a.wav", f"{inside.url}/t.csv") == "private-address", "nor beside a table that is there"
    assert inside.asked == []
    assert pauses == [], "it is not asked again"


def test_it_is_reached_where_that_is_allowed(inside: _Server) -> None:
    assert reason(f"{inside.url}/a.wav", "t.csv", "127.0.0.0/8") == ""
    assert reason("a.wav", f"{inside.url}/t.csv", "127.0.0.2") == ""


def test_no_redirect_leads_there(inside: _Server) -> None:
    inside.asked.clear()
    with served(HERE) as outside:
        for address in spellings(inside.server_port):
            assert reason(f"{outside.url}/to?{address}", "t.csv", HERE) in ("private-address", "malformed-address")
        assert outside.asked
        assert reason(f"{outside.url}/to?file:///etc/passwd", "t.csv", HERE) == "unreachable-file"
        assert reason(f"{outside.url}/to?{outside.url}/a.wav", "t.csv", HERE) == ""
    assert inside.asked == []


def test_no_name_leads_there(inside: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is public when it is looked up first and private when a connection is made: DNS rebinding."""
    real, answers = socket.getaddrinfo, ["8.8.8.8", "127.0.0.2"]

    def looked_up(host: str, *args: object, **more: object) -> object:
        return real(answers.pop(0) if len(answers) > 1 else answers[0], *args, **more)  # type: ignore[arg-type]

    inside.asked.clear()
    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    socket.getaddrinfo("rebinding.example", 80)
    assert reason(f"http://rebinding.example:{inside.server_port}/a.wav") == "private-address"
    assert inside.asked == []


def test_a_namenode_is_asked_only_if_it_is_public_or_the_tables_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def connect(address: str) -> None:
        asked.append(address)
        raise BadRecord("unreachable-file", "")

    monkeypatch.setattr("megahour.corpus.media.listed._store", connect)
    assert reason("hdfs://127.0.0.1:8020/a.wav", "s3://bucket/t.csv") == "private-address"
    assert reason("hdfs://127.0.0.1:8020/a.wav", "hdfs://127.0.0.1:8020/t.csv") == "unreachable-file"
    assert asked == ["hdfs://127.0.0.1:8020/a.wav"]


def test_a_silent_server_does_not_hold_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "SILENT_S", 0.2)
    monkeypatch.setattr("megahour.corpus.media.addresses.PAUSE_S", 0.01)
    started = time.monotonic()
    with served(HERE) as server:
        assert reason(f"{server.url}/silent", "t.csv", "127.0.0.0/30") == "unreachable-file"
    assert time.monotonic() - started < 240


def test_a_shard_goes_on_past_all_of_them(tmp_path: Path, inside: _Server) -> None:
    put(tmp_path, "good.wav", encode(murmur(1)))
    addresses = ["http://[::1", "s3://", "ftp://h/a.wav", f"{inside.url}/a.wav", "good.wav", "\u2100://x", "nul\0.wav"]
    addresses.append("/proc/self/mem")  # a regular file that reads as EIO
    rows = [{"audio": address, "text": "Hello."} for address in addresses]
    rows.append({"audio": "other.wav", "transcript": "zip://a::http://b"})
    source = put(tmp_path, "t.jsonl", "\n".join(map(json.dumps, rows)))
    p = IngestParams(source=str(source), licence="CC0")
    with ShardWriter(Artifact(tmp_path / "out"), 0, "made") as out:
        ingest_shard(p, table_items(p.source, 0, len(rows), 0), out, tmp_path / "work")
        counts = out.commit().counts
    assert counts.kept == 1
    expected = {"malformed-address": 2, "foreign-protocol": 2, "private-address": 1, "missing-file": 2}
    device = "zero-length-audio" if Path("/proc/self/mem").exists() else "missing-file"
    expected[device] = expected.get(device, 0) + 1
    assert counts.dropped == expected


def test_a_file_that_could_not_be_opened_closes_without_an_error() -> None:
    """Python closes it when it is collected, and from 3.13 on prints an error of that to the terminal."""
    unopened = Remote.__new__(Remote)
    unopened.close()
    assert unopened.closed
