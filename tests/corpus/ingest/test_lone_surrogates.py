"""Lone surrogates, as in JSON's escapes and file names, never end a stage: they are replaced and counted."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_media import encode, murmur, put

from megahour.core.store import Artifact
from megahour.core.unicode import load_json, mended, shown
from megahour.core.verify import verify
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.stage import Ingest
from megahour.corpus.interchange.import_stage import Import
from megahour.corpus.interchange.params import ImportParams
from megahour.corpus.transcripts.encodings import decode_text
from megahour.engine.local import LocalEngine
from megahour.lm.text.sources import blocks
from megahour.runner.runner import run_stage

HALF = "Hello \ud800 there."  # as json.dumps writes it, an escape
MENDED = "Hello \ufffd there."
BYTE = os.fsdecode(b"caf\xe9")
SRT = "1\n00:00:00,100 --> 00:00:00,900\nHello.\n"


def run(tmp_path: Path, engine: LocalEngine, stage: Any, p: Any) -> Artifact:
    out = Artifact(tmp_path / "out")
    run_stage(stage, p, {}, out, engine, work=tmp_path / "work")
    assert verify(out) == []
    assert Artifact(out.url).receipts() == out.receipts()
    return out


def ingest(tmp_path: Path, engine: LocalEngine, source: object, **params: Any) -> Artifact:
    return run(tmp_path, engine, Ingest(), IngestParams(source=str(source), licence="CC0", max_bad=1, **params))


def rows(artifact: Artifact, suffix: str = ".parquet") -> list[dict[str, Any]]:
    return [row for receipt in artifact.receipts() for row in artifact.read_table(receipt.shard, suffix).to_pylist()]


def broken_strings(*values: bytes) -> pa.Array:
    """Strings as no writer should write them."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


def test_halves_of_one_character_are_joined_and_others_replaced() -> None:
    assert mended("a\ud83d\ude00b") == "a\U0001f600b"
    assert mended("\ud800a\udc00\ud83d") == "\ufffda\ufffd\ufffd"
    assert load_json('{"a\\ud800": ["\\ud83d\\ude00", "\\\\ud800", "\\udFFF"], "n": 1.5}') == {
        "a\ufffd": ["\U0001f600", "\\ud800", "\ufffd"],
        "n": 1.5,
    }
    assert load_json(b'"\xed\xa0\x80"') == "\ufffd"
    assert shown(BYTE + "\ud800") == r"caf\xe9\ud800"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_text_file_keeps_its_encoding(encoding: str) -> None:
    assert decode_text(f"Café {HALF}".encode(encoding, "surrogatepass")) == f"Café {MENDED}"


def test_json_transcripts_side_files_and_bad_json(tmp_path: Path, engine: LocalEngine) -> None:
    for number in range(3):
        put(tmp_path / "in", f"{number}.wav", encode(murmur(1, seed=number)))
    put(
        tmp_path / "in",
        "0.json",
        json.dumps({"segments": [{"start": 0, "end": 1, "text": HALF}], "speaker": "a\udfff"}),
    )
    put(tmp_path / "in", "1.json", json.dumps({"creator": "B\udc80", "licence": "CC-BY-4.0"}))
    put(tmp_path / "in", "1.srt", SRT.replace("Hello.", HALF).encode("utf-8", "surrogatepass"))
    put(tmp_path / "in", "2.json", json.dumps({"\ud800": 1, "segments": [{"text": "", "\ud801": 2}]}))
    out = ingest(tmp_path, engine, tmp_path / "in", require_transcript=False)
    zero, one = rows(out)
    assert (zero["speaker"], one["attribution"], one["licence"]) == ("a\ufffd", "B\ufffd", "CC-BY-4.0")
    assert [row["raw"] for row in rows(out, ".cues.parquet")] == [MENDED, MENDED]
    assert out.summary["replaced_characters"] == 4
    assert "4 characters" in out.summary["remark"]
    assert [bad["reason"] for bad in out.bad_records()] == ["empty-transcript"]


def test_licences_and_reasons_are_counted_whatever_they_are(tmp_path: Path, engine: LocalEngine) -> None:
    for number, licence in enumerate(["CC0", "so\ud800 what"]):
        put(tmp_path / "in", f"{number}.wav", encode(murmur(1, seed=number)))
        put(tmp_path / "in", f"{number}.txt", "Hello.")
        put(tmp_path / "in", f"{number}.json", json.dumps({"licence": licence}))
    put(tmp_path / "in", "notes." + BYTE, "x")
    out = ingest(tmp_path, engine, tmp_path / "in")
    assert out.summary["licences"]["so\ufffd what"] == {"dropped": 1}
    assert out.summary["not_read"] == {".caf\\xe9": 1}


def test_names_of_files_and_members(tmp_path: Path, engine: LocalEngine) -> None:
    root = tmp_path / "in"
    for name in (BYTE, os.fsdecode(b"caf\xea")):
        put(root, f"{name}.wav", encode(murmur(1, seed=len(name) + ord(name[-1]))))
        put(root, f"{name}.txt", "Hello.")
    put(root, f"{BYTE}-bad.wav", "no sound")
    put(root, f"{BYTE}-bad.txt", "Hello.")
    with tarfile.open(root / f"{BYTE}.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in ((f"{BYTE}.wav", encode(murmur(1, seed=9))), (f"{BYTE}.txt", b"Hello."), ("../\udcff", b"")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    out = ingest(tmp_path, engine, root)
    assert [(row["name"], row["source"]) for row in rows(out)] == [
        (r"caf\xe9", r"caf\xe9.tar!caf\xe9.wav"),
        (r"caf\xe9", r"caf\xe9.wav"),
        (r"caf\xea", r"caf\xea.wav"),
    ]
    assert sorted(bad["id"] for bad in out.bad_records()) == [r"caf\xe9-bad", r"caf\xe9.tar!../\xff"]


def test_a_folder_and_an_output_of_such_a_name(tmp_path: Path) -> None:
    put(tmp_path / BYTE, "a.wav", encode(murmur(1)))
    put(tmp_path / BYTE, "a.txt", "Hello.")
    whole = [sys.executable, "-m", "megahour", "ingest", "--licence", "CC0", "--workers", "1"]
    whole += ["--source", str(tmp_path / BYTE), "--out"]
    for out, code in (("out", 0), (f"out{BYTE}", 1)):
        done = subprocess.run([*whole, str(tmp_path / out)], capture_output=True, timeout=400, check=False)
        assert b"Traceback" not in done.stderr
        assert done.returncode == code, done.stderr
    assert rb"outcaf\xe9: the name is not UTF-8" in done.stderr


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_tables(tmp_path: Path, engine: LocalEngine, suffix: str) -> None:
    put(tmp_path, "a.wav", encode(murmur(1)))
    source = tmp_path / f"t{suffix}"
    if suffix == ".jsonl":
        listed = [
            {"audio": "a.wav", "text": HALF, "speaker": "s"},
            {"audio": "\ud800.wav", "text": "x", "name": "\udfff"},
        ]
        source.write_text("\n".join(map(json.dumps, listed)))
    elif suffix == ".csv":
        source.write_bytes(b"audio,text,name\na.wav,Hello \xe9 there.,\n\xff.wav,x,\xfe")
    else:
        columns = {"audio": broken_strings(b"a.wav", b"\xff.wav"), "text": broken_strings(b"Hello \xe9 there.", b"x")}
        pq.write_table(pa.table(columns), source)
    out = ingest(tmp_path, engine, source)
    assert [row["raw"] for row in rows(out, ".cues.parquet")] == [MENDED]
    assert out.summary["replaced_characters"] == 1
    assert [bad["reason"] for bad in out.bad_records()] == ["missing-file"]


@pytest.mark.parametrize("kind", ["utterances", "recordings"])
@pytest.mark.parametrize("form", ["nemo", "lhotse", "kaldi", "parquet", "webdataset"])
def test_imports(tmp_path: Path, engine: LocalEngine, form: str, kind: str) -> None:
    put(tmp_path, "in/a.wav", encode(murmur(1)))
    source = tmp_path / {"kaldi": "in", "parquet": "in/t.parquet", "webdataset": "in/t.tar"}.get(form, "in/t.jsonl")
    found = MENDED
    if form == "nemo":
        bad = {"audio_filepath": "\ud800.wav", "text": HALF, "duration": 1}
        lines = [{"audio_filepath": "a.wav", "text": HALF, "speaker": "\ud801"}, bad]
        source.write_text("\n".join(map(json.dumps, lines)))
    elif form == "lhotse":
        recording = {"id": "r\ud800", "sources": [{"type": "file", "source": "a.wav", "channels": [0]}]}
        supervision = {"id": "s\ud800", "recording_id": "r", "start": 0, "duration": 0.9, "text": HALF}
        cut = {"id": "c", "start": 0, "duration": 0.9, "recording": recording, "supervisions": [supervision]}
        source.write_text(json.dumps({**cut, "type": "MonoCut"}) + "\n" + json.dumps({**cut, "type": "\ud800"}))
    elif form == "kaldi":
        put(tmp_path, "in/wav.scp", b"u a.wav\n\xff a.wav\n")
        put(tmp_path, "in/text", "u Hello there.\n")
        found = "Hello there."
    elif form == "parquet":
        audio = pa.array([{"bytes": encode(murmur(1)), "path": "a.wav"}])
        pq.write_table(pa.table({"audio": audio, "text": broken_strings(b"Hello \xe9 there.")}), source)
    else:
        with tarfile.open(source, "w", format=tarfile.GNU_FORMAT) as tar:
            side = json.dumps({"text": HALF}).encode()
            for name, data in ((f"{BYTE}.wav", encode(murmur(1))), (f"{BYTE}.json", side), ("\udcfe.json", b"{")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    p = ImportParams(format=form, source=str(source), kind=kind, licence="CC0", max_bad=1)  # type: ignore[arg-type]
    out = run(tmp_path, engine, Import(), p)
    assert out.manifest.counts.kept == 1
    assert [row["raw"] for row in rows(out, ".parquet" if kind == "utterances" else ".cues.parquet")] == [found]
    assert bool(out.summary.get("replaced_characters")) == (form != "kaldi")
    assert out.manifest.counts.bad == (form != "parquet")


def test_text_of_a_column_for_a_language_model(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": broken_strings(b"caf\xe9 one", b"\xed\xa0\x80 two")}), tmp_path / "t.parquet")
    (block,) = blocks([f"{tmp_path}/t.parquet:text"])
    assert block.tobytes() == b"caf\xe9 one\n\xed\xa0\x80 two\n", "as in a file, bytes are what they are"
