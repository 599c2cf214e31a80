"""A task of `ingest` finds its transcripts in the file of all of them without reading the rest."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from engine_here import EngineHere
from slow_store import SlowStore

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.corpus.ingest import transcript_table
from megahour.corpus.ingest.params import TranscriptTableParams
from megahour.corpus.ingest.transcript_table import (
    BLOCK_ROWS,
    LayOutTranscripts,
    TableLine,
    TranscriptsByName,
    read_transcripts,
)
from megahour.runner.runner import run_stage


def laid_out(folder: Path, lines: list[str]) -> Artifact:
    (folder / "all.txt").write_text("\n".join(lines), "utf-8")
    p = TranscriptTableParams(transcripts=str(folder / "all.txt"), max_bad=0.0)
    run_stage(LayOutTranscripts(), p, {}, Artifact("slow://transcripts"), EngineHere(), work=folder / "work")
    return Artifact("slow://transcripts")


def test_each_name_has_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slow_store.DELAY_S", 0.0)
    words = random.Random(0)
    texts = {f"ü/{number}": f"{words.random()}" for number in range(4 * BLOCK_ROWS + 3)}
    artifact = laid_out(tmp_path, words.sample([f"{name}: {text}" for name, text in texts.items()], len(texts)))
    table, before = TranscriptsByName(artifact), SlowStore.bytes_read
    assert table.get("ü/7") == TableLine(texts["ü/7"])
    assert SlowStore.bytes_read - before < len(artifact.read_bytes(0, ".texts")) / 3, "one block of five"
    assert {name: table.get(name) for name in texts} == {name: TableLine(text) for name, text in texts.items()}
    assert [table.get(name) for name in ("", "ü/", "ü/99999", "zz")] == [None] * 4


def test_files_that_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slow_store.DELAY_S", 0.0)
    monkeypatch.setattr(transcript_table, "MAX_BYTES", 5)
    with pytest.raises(ConfigError, match="more than"):
        laid_out(tmp_path, ["a: too many"])


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b"name,text\na,One.\na,Two.\n", "has another text for a than an earlier line"),
        ("a.tsv", b"id\ttext\tlicense\na\tOne\tCC0\na\tOne\tCC-BY\n", "has other side information for a than"),
        ("a.txt", b"a: One.\na: Two.\n", "has another text for a than an earlier line"),
        ("talk.stm", b"talk 1 ann 0.0 1.0 one\n", "talk.stm is the transcript of one recording"),
        ("cut.tsv.gz", gzip.compress(b"name\ttext\na\tb\n", mtime=0)[:-4], "cannot unpack: Compressed file ended"),
        ("no.txt.gz", b"a: One.", "cannot unpack: Not a gzipped file"),
        ("no.txt.xz", b"a: One.", "cannot unpack: Input format not supported"),
        ("nothing.txt", b"# nothing\n", "no line has a name and a text"),
        ("noise.txt", bytes(range(256)), "save the file as UTF-8"),
    ],
)
def test_texts_that_would_be_lost_and_files_that_cannot_be_read(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=message) as caught:
        read_transcripts(str(tmp_path / name), "en")
    assert name in str(caught.value)


def test_tables_with_a_header_and_several_files(tmp_path: Path) -> None:
    for name, text in {
        "validated.tsv": 'client_id\tpath\tsentence\nann\ta.mp3\t"Go home: now.\nbob\tb.mp3\t\n',
        "books/1.trans.txt": "1-1 GO\n1-2 STOP\n",
        "books/2.trans.txt": "2-1 AGAIN\n",
        "other/1.trans.txt": "1-1 GONE\n",
        "no-header.tsv": "1\tone\n2\ttwo\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "metadata.csv.gz").write_bytes(gzip.compress(b'file_name,transcription\nx.wav,"One, two"\n'))

    def read(path: str) -> dict[str, str]:
        return {name: line.text for name, line in read_transcripts(str(tmp_path / path), "en").items()}

    assert read("validated.tsv") == {"a.mp3": '"Go home: now.'}
    assert read("metadata.csv.gz") == {"x.wav": "One, two"}
    assert read("no-header.tsv") == {"1": "one", "2": "two"}
    assert read("books/*.txt") == {"1-1": "GO", "1-2": "STOP", "2-1": "AGAIN"}
    with pytest.raises(ConfigError, match=r"other/1\.trans\.txt has another text for 1-1"):
        read("*/1.trans.txt")
    (tmp_path / "cues.csv").write_bytes("name,text\na,One.\nb,Two.\na,One.\n".encode("utf-16"))
    assert read("cues.csv") == {"a": "One.", "b": "Two."}
    with pytest.raises(ConfigError, match="books is a folder") as caught:
        read("books")
    assert "books/**/*.txt" in caught.value.remedy
