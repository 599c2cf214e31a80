"""Tables of addresses: all formats give the same rows, rows are divided into tasks, and the web is read by ranges."""

from __future__ import annotations

import csv
import io
import json
import math
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_media import encode, murmur, put
from made_tracks import served, track

from megahour.core.errors import BadRecord, ConfigError, StageError
from megahour.core.store import Artifact
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.side_information import side_info
from megahour.corpus.ingest.sources import Item
from megahour.corpus.ingest.stage import Ingest
from megahour.corpus.ingest.tables import plan_table, table_items
from megahour.corpus.media.addresses import Blob
from megahour.corpus.media.audio import Decoder, decode
from megahour.corpus.media.listed import Listing
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage

LOOPBACK = ("127.0.0.0/8",)
SRT = "1\n00:00:00,100 --> 00:00:00,900\nGood morning.\n"


def ingest(tmp_path: Path, engine: LocalEngine, source: str, **params: Any) -> Artifact:
    out = Artifact(tmp_path / "out")
    p = IngestParams.model_validate({"source": source, "max_bad": 1, **params})
    run_stage(Ingest(), p, {}, out, engine, work=tmp_path / "work")
    return out


def open_listed(address: str) -> BinaryIO:
    """Opens an address of a local table on a local server."""
    return Listing("table.csv", LOOPBACK).blob(address).open()


def rows(artifact: Artifact, suffix: str = ".parquet") -> list[dict[str, Any]]:
    return [row for receipt in artifact.receipts() for row in artifact.read_table(receipt.shard, suffix).to_pylist()]


def write_table(path: Path, records: list[dict[str, Any]]) -> str:
    """The records as a table in the format of the suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for record in records for name in record))
    if path.suffix == ".parquet":
        columns = {name: [record.get(name) for record in records] for name in names}
        pq.write_table(pa.table(columns), path, row_group_size=3)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, names, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(records)
    return str(path)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_table_says_what_is_what(tmp_path: Path, engine: LocalEngine, suffix: str) -> None:
    put(tmp_path, "cat/audio/one.wav", encode(murmur(1)))
    put(tmp_path, "elsewhere/two.m4a", track(murmur(2, 48_000, seed=1), "ipod", "aac"))
    put(tmp_path, "cat/words/a.srt", SRT)
    records = [
        {"Audio": "audio/one.wav", "transcript": "words/a.srt", "license": "CC BY 4.0", "creator": "A. Nobody",
         "speaker": "anna", "language": "eng", "text": ""},
        {"Audio": str(tmp_path / "elsewhere/two.m4a"), "transcript": "", "license": "cc0", "creator": "B",
         "speaker": "bob", "language": "fr", "text": "Bonjour, ça va?\nOui."},
    ]  # fmt: skip
    out = ingest(tmp_path, engine, write_table(tmp_path / f"cat/table{suffix}", records))
    one, two = rows(out)
    assert (one["name"], one["licence"], one["attribution"]) == ("audio/one", "CC-BY-4.0", "A. Nobody")
    assert (one["speaker"], one["language"], one["source"]) == ("anna", "en", "audio/one.wav")
    assert (two["speaker"], two["language"], abs(two["samples"] - 32_000) < 800) == ("bob", "fr", True)
    assert [row["text"] for row in rows(out, ".cues.parquet")] == ["good morning", "bonjour ça va", "oui"]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_tasks_read_their_own_rows_and_no_other(tmp_path: Path, suffix: str) -> None:
    records = [{"audio": f"{i}.wav", "text": f"line one\nof {i}", "bytes": 10 * i} for i in range(20)]
    source = write_table(tmp_path / f"t{suffix}", records)
    for specs in (plan_table(source, 300, 5), plan_table(source, 10**9, 5)):
        items = [item for spec in specs for item in table_items(source, *spec["table"], spec["row"])]
        assert [(item.name, item.text) for item in items] == [(str(i), f"line one\nof {i}") for i in range(20)]  # type: ignore[union-attr]
    assert len(plan_table(source, 300, 5)) > 4
    assert len(plan_table(source, 10**9, 5)) == 1


def test_a_tsv_may_quote_as_spreadsheets_do_or_hold_plain_quotes(tmp_path: Path) -> None:
    """Common Voice writes sentences as they are: read as CSV, the first would take in all rows up to the fourth."""
    plain = ['"Go home.', 'He said "no".', '"Yes", she said.', 'Stop!"', "", '"Quoted."']
    lines = "".join(f"{i}.mp3\t{text}\t2\n" for i, text in enumerate(plain))
    table = put(tmp_path, "plain.tsv", f"path\tsentence\tup_votes\n{lines}")
    (spec,) = plan_table(str(table), 1 << 30, 100)
    texts = [item.text for item in table_items(str(table), *spec["table"], 0) if not isinstance(item, BadRecord)]
    assert texts == [*plain[:-1], "Quoted."]
    quoted = ['a\nb "c"', '"', "plain", "tab\there"]
    records = [{"id": str(i), "sentence": text, "path": f"{i}.mp3"} for i, text in enumerate(quoted)]
    table = Path(write_table(tmp_path / "quoted.tsv", records))
    specs = plan_table(str(table), 1 << 30, 1)
    items = [item for spec in specs for item in table_items(str(table), *spec["table"], spec["row"])]
    assert [item.text for item in items if not isinstance(item, BadRecord)] == quoted


def test_addresses_may_start_from_another_folder_than_the_tables(tmp_path: Path, engine: LocalEngine) -> None:
    """Common Voice: validated.tsv beside a folder clips."""
    put(tmp_path, "clips/a.wav", encode(murmur(1)))
    row = {"client_id": "ann", "path": "a.wav", "sentence": "Good morning.", "locale": "en"}
    source = write_table(tmp_path / "validated.tsv", [row])
    with pytest.raises(StageError, match=r"a\.wav: No such file or directory; relative addresses start from"):
        ingest(tmp_path / "1", engine, source, licence="CC0", max_bad=0)
    out = ingest(tmp_path / "2", engine, source, root=str(tmp_path / "clips"), licence="CC0")
    assert [(row["speaker"], row["name"]) for row in rows(out)] == [("ann", "a")]
    assert [cue["text"] for cue in rows(out, ".cues.parquet")] == ["good morning"]


@pytest.mark.parametrize("column", ["transcript", "transcription", "sentence"])
def test_the_text_may_stand_in_the_row(tmp_path: Path, column: str) -> None:
    table = write_table(tmp_path / "t.csv", [{"wav_filename": "a.wav", column: "Send me the file.txt, please"}])
    (item,) = table_items(table, plan_table(table, 1 << 30, 1)[0]["table"][0], 1, 0)
    assert not isinstance(item, BadRecord)
    assert (item.text, item.transcripts) == ("Send me the file.txt, please", ())


def test_numbers_are_floats_where_a_value_is_missing(tmp_path: Path) -> None:
    """The speaker 12.0 counted as none, and each of their recordings as a speaker of its own."""
    columns = {"audio": ["a.wav", "b.wav"], "speaker_id": [12.0, None], "spk": ["", "ann"], "bytes": [5e8, None]}
    pq.write_table(pa.table({**columns, "license": ["CC0"] * 2}), tmp_path / "t.parquet")
    source = str(tmp_path / "t.parquet")
    specs = plan_table(source, 256_000_000, 16)
    assert [spec["table"] for spec in specs] == [[0, 1], [1, 1]]
    items = [each for spec in specs for each in table_items(source, *spec["table"], spec["row"])]
    assert [side_info(each, IngestParams(source=source)).speaker for each in items if isinstance(each, Item)] == [
        "12",
        "ann",
    ]
    nan = Item("a", "a", Blob("a", io.BytesIO), (), (), {"speaker_id": math.nan, "spk": "bob", "licence": "CC0"})
    assert side_info(nan, IngestParams()).speaker == "bob"


@pytest.mark.parametrize("size", ["9" * 400, "9" * 5000, "1e400", "nan", "-1", "two"])
def test_a_size_that_is_none_ends_no_plan(tmp_path: Path, size: str) -> None:
    (tmp_path / "t.csv").write_text(f"audio,bytes\na.wav,{size}\nb.wav,5\n")
    assert [spec["table"][1] for spec in plan_table(str(tmp_path / "t.csv"), 1000, 16)] == [2]


def test_line_ends_of_old_macs_are_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"audio,text\ra.wav,Hello.\r")
    with pytest.raises(ConfigError, match="new-line character seen in unquoted field near byte 0") as caught:
        plan_table(str(tmp_path / "t.csv"), 1000, 16)
    assert "line ends of Unix or Windows" in caught.value.remedy


def test_the_number_0_is_a_name_and_a_speaker(tmp_path: Path) -> None:
    records = [{"audio": f"{i}.wav", "id": i, "speaker_id": i, "license": "CC0"} for i in range(2)]
    source = write_table(tmp_path / "t.jsonl", records)
    items = [item for item in table_items(source, 0, 2, 0) if isinstance(item, Item)]
    assert [item.name for item in items] == ["0", "1"]
    assert [side_info(item, IngestParams(source=source)).speaker for item in items] == ["0", "1"]


@pytest.mark.parametrize("shard_rows", [1, 3, 100])
def test_a_row_that_came_before_is_a_duplicate_in_whatever_task(
    tmp_path: Path, engine: LocalEngine, shard_rows: int
) -> None:
    for place, name in enumerate(("one", "two", "three")):
        put(tmp_path, f"{name}.wav", encode(murmur(1, seed=place)))
    listed = [("a", "one.wav"), ("b", "two.wav"), ("c", "one.wav"), ("b", "three.wav"), ("d", "")]
    records = [{"id": name, "audio": path, "text": "Hello.", "licence": "CC0"} for name, path in listed]
    out = ingest(tmp_path, engine, write_table(tmp_path / "table.jsonl", records), shard_rows=shard_rows)
    assert [row["name"] for row in rows(out)] == ["a", "b"]
    bad = [(record["id"], record["reason"]) for record in out.bad_records()]
    duplicates = [(f"table.jsonl row {n}", "duplicate-id") for n in (3, 4)]
    assert bad == [*duplicates, ("table.jsonl row 5", "no-audio-address")]


def test_a_manifest_of_stretches_is_pointed_to_import(tmp_path: Path) -> None:
    row = {"audio_filepath": "a.wav", "duration": 2.0, "text": "hello"}
    table = write_table(tmp_path / "nemo.jsonl", [{**row, "offset": 0.0}, {**row, "offset": 2.0}])
    (spec,) = plan_table(table, 10**9, 10)
    first, second = table_items(table, *spec["table"], 0, spec["repeated"])
    assert not isinstance(first, BadRecord)
    assert isinstance(second, BadRecord)
    assert "use `import` for segments" in second.detail


def test_addresses_that_differ_in_their_query_only(tmp_path: Path) -> None:
    table = write_table(
        tmp_path / "table.csv",
        [{"audio": f"https://host/{path}"} for path in ("get?id=1", "get?id=2", "a.mp3?signature=x")],
    )
    (spec,) = plan_table(table, 10**9, 10)
    assert "repeated" not in spec
    names = [item.name for item in table_items(table, *spec["table"], 0) if not isinstance(item, BadRecord)]
    assert names == ["https://host/get?id=1", "https://host/get?id=2", "https://host/a"]


def test_rows_that_cannot_be_used_say_why(tmp_path: Path, engine: LocalEngine) -> None:
    put(tmp_path, "good.wav", encode(murmur(1)))
    put(tmp_path, "page.mp3", "<html>not found</html>" * 20)
    lines = [
        '{"audio": "good.wav", "text": "Hello."}',
        '{"text": "no address"}',
        '{"audio": "gone.wav", "text": "Hello."}',
        '{"audio": "page.mp3", "text": "Hello."}',
        '{"audio": "nonsense://x/y.wav", "text": "Hello."}',
        "[1, 2]",
        "{broken",
    ]
    source = put(tmp_path, "t.jsonl", "\n".join(lines))
    out = ingest(tmp_path, engine, str(source), licence="CC0")
    assert [(bad["id"], bad["reason"]) for bad in out.bad_records()] == [
        ("t.jsonl row 2", "no-audio-address"),
        ("gone", "missing-file"),
        ("page", "unreadable-audio"),
        ("t.jsonl row 5", "foreign-protocol"),
        ("t.jsonl row 6", "unreadable-row"),
        ("t.jsonl row 7", "unreadable-row"),
    ]
    assert [row["name"] for row in rows(out)] == ["good"]


def test_a_table_without_addresses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no addresses of media"):
        plan_table(write_table(tmp_path / "t.csv", [{"sound": "a.wav"}]), 10, 10)


@pytest.mark.parametrize("damage", ["cut", "empty", "pages", "text"])
def test_a_damaged_parquet_table_is_refused_with_its_name(tmp_path: Path, damage: str) -> None:
    source = tmp_path / "table.parquet"
    records = pa.table({"audio": [f"{number}.wav" for number in range(2000)]})
    pq.write_table(records, source, compression="none", use_dictionary=False)
    whole = source.read_bytes()
    damaged = {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "pages": whole[:100] + b"\xff" * 2000 + whole[2100:],
        "text": b"audio\n1.wav\n2.wav\n",
    }
    source.write_bytes(damaged[damage])
    with pytest.raises(ConfigError, match=r"table\.parquet is not a complete Parquet file: \w") as error:
        plan_table(str(source), 1 << 20, 100)
    assert "write it again" in str(error.value)


def test_a_table_from_the_web_names_files_of_the_web_only(tmp_path: Path, engine: LocalEngine) -> None:
    root = tmp_path / "web"
    put(root, "set/one.wav", encode(murmur(1)))
    put(root, "set/two.webm", track(murmur(2, 48_000, seed=1), "webm", "libopus"))
    put(root, "set/two.srt", SRT)
    secret = put(tmp_path, "secret.wav", encode(murmur(1, seed=3)))
    with served(root) as server:
        records = [
            {"audio": "one.wav", "text": "Hello."},
            {"audio": f"{server.url}/set/two.webm", "transcripts": "two.srt", "text": ""},
            *({"audio": each, "text": "Hello."} for each in (str(secret), f"file://{secret}", f"filecache::{secret}")),
            {"audio": "gone.wav", "text": "Hello."},
        ]
        write_table(root / "set/table.csv", records)
        out = ingest(tmp_path, engine, f"{server.url}/set/table.csv", licence="CC0", allow_private=LOOPBACK)
    assert [row["name"] for row in rows(out)] == ["one", f"{server.url}/set/two"]
    reasons = [bad["reason"] for bad in out.bad_records()]
    assert reasons == ["local-address", "local-address", "foreign-protocol", "missing-file"]


def test_a_table_on_s3_names_files_beside_it(tmp_path: Path, engine: LocalEngine, s3_url: str) -> None:
    import fsspec

    put(tmp_path, "cat/audio/one.mp4", track(murmur(2, 48_000), "mp4", "aac"))
    put(tmp_path, "cat/one.srt", SRT)
    write_table(tmp_path / "cat/table.parquet", [{"audio": "audio/one.mp4", "transcripts": ["one.srt"]}])
    bucket = f"{s3_url}/{tmp_path.name}"
    fs, path = fsspec.core.url_to_fs(bucket)
    fs.put(str(tmp_path / "cat"), path, recursive=True)
    here = ingest(tmp_path / "a", engine, str(tmp_path / "cat/table.parquet"), licence="CC0")
    with LocalEngine(workers=1) as started_with_keys:
        there = ingest(tmp_path / "b", started_with_keys, f"{bucket}/table.parquet", licence="CC0")
    assert here.manifest.counts.kept == 1
    assert here.manifest.digest == there.manifest.digest


def test_a_long_file_is_read_by_range_and_once(tmp_path: Path) -> None:
    samples = murmur(300, 16_000)
    path = put(tmp_path, "long.wav", encode(samples))
    with served(tmp_path) as server, open_listed(f"{server.url}/long.wav") as file:
        decoder = Decoder(file, 16_000)
        before = server.sent["/long.wav"]
        assert before < 6 << 20, "the header does not need the file"
        assert sum(len(block) for block in decoder.blocks()) == len(samples)
        assert server.sent["/long.wav"] < path.stat().st_size + (12 << 20)


def test_a_bad_header_costs_no_download(tmp_path: Path) -> None:
    path = put(tmp_path, "page.mp4", b"<html>" + bytes(60_000_000))
    with (
        served(tmp_path) as server,
        open_listed(f"{server.url}/page.mp4") as file,
        pytest.raises(BadRecord, match="unreadable-audio"),
    ):
        Decoder(file, 16_000)
    assert server.sent["/page.mp4"] < path.stat().st_size / 4


def test_a_server_without_ranges_serves_as_well(tmp_path: Path) -> None:
    samples = murmur(150, 48_000)  # 14 MB: more than two blocks
    put(tmp_path, "a.wav", encode(samples, 48_000))
    with served(tmp_path, ranges=False) as server, open_listed(f"{server.url}/a.wav") as file:
        out = decode(file, 48_000)[:, 0]
    assert np.array_equal(out, samples)


def test_a_server_that_stumbles_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megahour.corpus.media.addresses.PAUSE_S", 0.01)
    put(tmp_path, "a.wav", encode(murmur(1)))
    with served(tmp_path) as server:
        server.flaky["/a.wav"] = 4  # HEAD and GET of two tries
        with open_listed(f"{server.url}/a.wav") as file:
            assert len(decode(file, 16_000)) == 16_000
        server.flaky["/a.wav"] = 1000
        with pytest.raises(BadRecord, match="unreachable-file"):
            open_listed(f"{server.url}/a.wav")


def test_a_refusal_by_a_server_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megahour.corpus.media.addresses.PAUSE_S", 0.01)
    with served(tmp_path) as server, pytest.raises(BadRecord, match=r"gone\.wav: the server responded 404"):
        open_listed(f"{server.url}/gone.wav")
    with pytest.raises(BadRecord, match="Cannot connect to host"):
        open_listed(f"{server.url}/gone.wav")
    for source in (f"{server.url}/talks", f"{server.url}/table.csv"):
        with pytest.raises(ConfigError, match="cannot be read: Cannot connect to host"):
            IngestParams(source=source).identity()


def test_a_folder_of_a_web_server(tmp_path: Path, engine: LocalEngine) -> None:
    put(tmp_path, "site/talks/one talk.wav", encode(murmur(1)))
    put(tmp_path, "site/talks/one talk.srt", SRT)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        out = ingest(tmp_path, engine, f"http://127.0.0.1:{server.server_port}/talks/", licence="CC0")
        server.shutdown()
    assert [(row["name"], row["samples"]) for row in rows(out)] == [("one%20talk", 16_000)]


def test_a_csv_as_spreadsheets_write_it(tmp_path: Path) -> None:
    text = '\ufeffAudio;Text\r\n"a;b.wav";"She said ""no"";\r\nand left."\r\n\r\nc.wav;Yes\r\n'
    source = str(put(tmp_path, "t.csv", text))
    (spec,) = plan_table(source, 10**9, 100)
    found = list(table_items(source, *spec["table"], spec["row"]))
    assert [(item.source, item.text) for item in found] == [  # type: ignore[union-attr]
        ("a;b.wav", 'She said "no";\r\nand left.'),
        ("c.wav", "Yes"),
    ]


def test_bytes_of_a_row_decide_the_order_of_nothing(tmp_path: Path) -> None:
    """Rows keep their order regardless of size, so shards are the same on every machine."""
    records = [{"audio": f"{i}.wav", "bytes": size} for i, size in enumerate([5, 5000, 1, 1, 9000, 2])]
    source = write_table(tmp_path / "t.jsonl", records)
    specs = plan_table(source, 5000, 1)
    assert [spec["table"][1] for spec in specs] == [2, 3, 1]
    assert [spec["row"] for spec in specs] == [0, 2, 5]


def test_io_of_a_remote_file_behaves_like_a_file(tmp_path: Path) -> None:
    data = bytes(range(256)) * 100
    put(tmp_path, "x.bin", data)
    with served(tmp_path) as server, open_listed(f"{server.url}/x.bin") as file:
        assert file.seek(-10, io.SEEK_END) == len(data) - 10
        assert file.read(100) == data[-10:]
        file.seek(5)
        file.seek(5, io.SEEK_CUR)
        assert (file.tell(), file.read(3)) == (10, data[10:13])
        buffer = bytearray(4)
        assert file.readinto(buffer) == 4  # type: ignore[attr-defined]
        assert bytes(buffer) == data[13:17]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_a_table_that_is_not_utf_8_is_refused_by_its_encoding(tmp_path: Path, suffix: str, encoding: str) -> None:
    """A spreadsheet's "Unicode text" is UTF-16."""
    source = write_table(tmp_path / f"list{suffix}", [{"audio": "a.wav", "text": "Grüße"}])
    text = Path(source).read_text("utf-8")
    Path(source).write_bytes(text.encode(encoding))
    with pytest.raises(ConfigError, match=rf"is {encoding.upper()[:6]}, but tables must be UTF-8\nRemedy: save it"):
        plan_table(source, 1 << 30, 100)
    Path(source).write_text(text, "utf-8-sig")
    assert len(plan_table(source, 1 << 30, 100)) == 1


def test_the_length_of_a_row_that_is_left_out(tmp_path: Path, engine: LocalEngine) -> None:
    """From its column, else from the header of a local file; nothing is requested from the web."""
    for name in ("stays", "here", "said"):
        put(tmp_path, f"{name}.wav", encode(murmur(1, seed=len(name))))
    rows_of_table = [
        {"audio": "stays.wav", "text": "Hello.", "licence": "CC0", "duration": ""},
        {"audio": "here.wav", "text": "Hello.", "licence": "CC-BY-NC-4.0", "duration": "unknown"},
        {"audio": "said.wav", "text": "Hello.", "licence": "CC-BY-NC-4.0", "duration": 2.5},
        {"audio": "https://localhost:9/away.wav", "text": "Hello.", "licence": "CC-BY-NC-4.0", "duration": -1},
    ]
    out = ingest(tmp_path, engine, write_table(tmp_path / "table.jsonl", rows_of_table))
    lengths = {row["name"]: row["seconds"] for row in rows(out, ".left_out.parquet")}
    assert (lengths["here"], lengths["said"]) == (1.0, 2.5)
    assert np.isnan(lengths["https://localhost:9/away"])
