"""Text from files, compressed files and columns, as blocks that end between words."""

from __future__ import annotations

import bz2
import functools
import gzip
import http.server
import io
import lzma
import os
import struct
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megahour.core.errors import ConfigError, MegahourError
from megahour.lm.arpa import read as arpa_read
from megahour.lm.query.model_files import lines_of
from megahour.lm.text import sources as text_module
from megahour.lm.text.sources import blocks, line_blocks, sources_digest, text_bytes

LINES = ["the old boat", "", "came\tback", "naïve café", "x" * 100]
TEXT = "\n".join(LINES) + "\n"


def bytes_of(*sources: object, block_bytes: int = 64) -> bytes:
    return b"".join(block.tobytes() for block in blocks([str(source) for source in sources], block_bytes))


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


def pzstd(data: bytes) -> bytes:
    """As the program of that name writes it: before each frame one to skip, with the size of the next."""
    half = [zstd(data[: len(data) // 2]), zstd(data[len(data) // 2 :])]
    return b"".join(b"\x50\x2a\x4d\x18" + struct.pack("<II", 4, len(part)) + part for part in half)


def tar(data: bytes, form: int) -> bytes:
    with tarfile.open(fileobj=(file := io.BytesIO()), mode="w", format=form) as archive:
        member = tarfile.TarInfo("text.txt")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


TARS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "text.txt": bytes,
    "text.gz": gzip.compress,
    "text.xz": lzma.compress,
    "text.zst": zstd,
    "text.pzst": pzstd,
    "skip.zst": lambda data: b"\x5f\x2a\x4d\x18\2\0\0\0us" + zstd(data),  # one of the other frames to skip
    "text.bz2": bz2.compress,
}


@pytest.mark.parametrize("name", PACKERS)
def test_compression_is_detected_by_the_first_bytes_whatever_the_name(name: str, tmp_path: Path) -> None:
    for path in (tmp_path / name, tmp_path / "nameless"):
        path.write_bytes(PACKERS[name](TEXT.encode()))
        assert bytes_of(path) == TEXT.encode()
        assert text_bytes([str(path)]) == path.stat().st_size
        assert b"".join(line for lines in lines_of(str(path)) for line in lines) == TEXT.encode()


@pytest.mark.parametrize("name", PACKERS)
def test_a_byte_order_mark_is_no_part_of_the_first_word(name: str, tmp_path: Path) -> None:
    """Windows' editors write it: a word list lost its first word, and a text got one that is nowhere else."""
    (tmp_path / name).write_bytes(PACKERS[name](("\ufeff" + TEXT).encode()))
    assert bytes_of(tmp_path / name) == TEXT.encode()
    assert b"".join(line for lines in lines_of(str(tmp_path / name)) for line in lines) == TEXT.encode()
    os.mkfifo(pipe := tmp_path / "pipe")
    writer = threading.Thread(target=pipe.write_bytes, args=((tmp_path / name).read_bytes(),))
    writer.start()
    assert bytes_of(pipe) == TEXT.encode()
    writer.join()


def test_two_gzip_members_in_a_file_are_read_on(tmp_path: Path) -> None:
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"a b\n") + gzip.compress(b"c\n"))
    assert bytes_of(tmp_path / "text.gz") == b"a b\nc\n"


@pytest.mark.parametrize("name", ["text.gz", "text.xz", "text.zst", "text.bz2"])
def test_a_file_that_ends_early_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    packed = PACKERS[name](TEXT.encode())
    (tmp_path / name).write_bytes(packed[: len(packed) // 2])
    with pytest.raises(MegahourError, match="damaged or end early") as caught:
        bytes_of(tmp_path / name)
    assert name in caught.value.where


@pytest.mark.parametrize("name", PACKERS)
def test_a_pipe_is_read_whatever_its_compression_and_has_no_size(name: str, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    writer = threading.Thread(target=pipe.write_bytes, args=(PACKERS[name](TEXT.encode()),))
    writer.start()
    assert text_bytes([str(pipe), str(tmp_path / "not asked for")]) == 0
    assert bytes_of(pipe) == TEXT.encode()
    writer.join()


def test_globs_are_sorted_and_a_file_is_read_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(f"{name}\n", "utf-8")
    assert bytes_of(tmp_path / "*.txt", tmp_path / "a.txt") == b"a.txt\nb.txt\n"
    with pytest.raises(ConfigError, match="no file matches"):
        bytes_of(tmp_path / "*.gone")


def test_a_column_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"text": ["a b", None, "c\nd"], "number": [[1], [2], [3]]}), path)
    assert bytes_of(f"{path}:text") == b"a b\nc d\n"
    with pytest.raises(ConfigError, match="no column 'txt'"):
        bytes_of(f"{path}:txt")
    with pytest.raises(MegahourError, match="cannot read text"):
        bytes_of(f"{path}:number")
    assert sources_digest([f"{path}:text"]) != sources_digest([f"{path}:number"])


def test_a_table_without_a_column_is_not_read_as_text(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"text": ["a b"]}), path)
    with pytest.raises(ConfigError, match=r"a Parquet table, not text\nRemedy: name a column"):
        bytes_of(path)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("one two\n".encode("utf-16"), r"UTF-16, .*\nRemedy: convert the file \(iconv -f utf-16"),
        (b"PK\x03\x04....", "a zip archive, not text"),
        (b"ID3\x04....", "audio, not text\nRemedy: give its transcript"),
        (b"\\data\\\nngram 1=3\n", "a language model, not text\nRemedy: give text"),
        (b"\n\\data\\\nngram 1=3\n", "a language model, not text"),  # as SRILM writes it
        (b"# tokenizer: 12ab\n\\data\\\nngram 1=3\n", "a language model, not text"),
        (b"MHNGRAM\n\2\0\0\0", "a language model, not text"),
        (b"mmap lm http://kheafield.com/code", "a language model, not text"),
        (TEXT.encode("utf-16-le"), "UTF-16, .*"),
        (TEXT.encode("utf-16-be"), "UTF-16, .*"),
        *((tar(TEXT.encode(), form), "a tar archive, not text\nRemedy: unpack it") for form in TARS),
        (lzma.compress(TEXT.encode(), lzma.FORMAT_ALONE), "a compressed file, not text"),
    ],
)
@pytest.mark.parametrize("packer", PACKERS.values())
def test_files_whose_first_bytes_are_not_text_are_refused(
    tmp_path: Path, data: bytes, what: str, packer: Callable[[bytes], bytes]
) -> None:
    """lmplz makes a model of any bytes. What is compressed is no more a text for that: `.tar.gz`."""
    (tmp_path / "file").write_bytes(packer(data))
    with pytest.raises(ConfigError, match=what):
        list(blocks([str(tmp_path / "file")]))
    with pytest.raises(ConfigError, match=what):
        list(lines_of(str(tmp_path / "file")))


AUDIO = (
    *(b"RIFF\x24\x08\0\0WAVEfmt ", b"RIFX\0\0\x08\x24WAVEfmt ", b"RF64\xff\xff\xff\xffWAVEds64"),
    *(b"FORM\0\0\x08\x2eAIFFCOMM", b"FORM\0\0\x08\x2eAIFCFVER", b"caff\0\1\0\0desc", b"NIST_1A\n   1024\n"),
    *(b"riff\x2e\x91\xcf\x11\xa5", b"\0\0\0\x20ftypM4A \0", b"\x1a\x45\xdf\xa3\x9f", b"OggS\0\2", b"fLaC\0\0"),
    *(b"ID3\2\0", b"\xff\xfb\x90\x64", b"\xff\xf3\x48\xc4", b"\xff\xf1\x50\x80"),
)
PACKED = (b"\4\x22\x4d\x18\x64", b"\x1f\x9d\x90", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\7\1\0", b"LZIP\1\x14")


@pytest.mark.parametrize(
    ("begin", "what"), [*((begin, "audio") for begin in AUDIO), *((begin, "a compressed file") for begin in PACKED)]
)
def test_no_kind_of_audio_or_of_packed_files_is_taken_for_words(begin: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(begin + TEXT.encode())
    with pytest.raises(ConfigError, match=f"{what}, not text"):
        list(blocks([str(tmp_path / "file")]))


def test_text_that_looks_a_little_like_another_file_is_read(tmp_path: Path) -> None:
    mustard = "a" * 255 + " mustard ustar \n"  # where tar archives have "ustar"
    data = "# a\n\nthe \\data\\ of\n\\data\\\n"
    heads = ("RIFF a b c\n", "THE NEW WAVE\n", "the ftyp box\n", "FORM and AIM\n", "caff 1\n", "]\n")
    for text in ("ID3 PK %PDF\n", "a\0b\0" * 9, "ab\0" * 99 + "\n", *heads, data, mustard):
        (tmp_path / "file").write_text(text)
        assert bytes_of(tmp_path / "file").rstrip() == text.encode().rstrip()


@pytest.mark.parametrize("url", ["nowhere://bucket/text", "memory://gone/*.txt"])
def test_urls_that_cannot_be_opened_are_named(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bytes_of(url)
    assert url in str(caught.value)


def test_a_server_that_sends_whole_files_only_gives_no_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [str(i) * 50 for i in range(50_000)]}), tmp_path / "t.parquet", compression=None)
    (tmp_path / "text").write_bytes(TEXT.encode())
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert bytes_of(f"{url}/text") == TEXT.encode()
        with pytest.raises(MegahourError, match="range requests"):
            bytes_of(f"{url}/t.parquet:text")
        server.shutdown()


@settings(max_examples=60)
@given(
    data=st.lists(st.sampled_from([b"a", b"bc", b" ", b"\n", b"\t", b"\0", b"\r", b"long" * 9])).map(b"".join),
    block_bytes=st.integers(1, 50),
)
def test_blocks_hold_all_bytes_end_between_words_and_count_lines(
    data: bytes, block_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("blocks") / "text"
    path.write_bytes(data)
    found = [(block.tobytes(), block.line) for block in blocks([str(path)], block_bytes)]
    whole = b"".join(piece for piece, _ in found)
    assert whole == data + (b"" if data.endswith(b"\n") or not data else b"\n")
    assert all(piece[-1:] in b" \n\t\0\r" for piece, _ in found)
    assert [line for _, line in found] == [1 + sum(p.count(10) for p, _ in found[:i]) for i in range(len(found))]


def test_a_line_longer_than_a_block_is_cut_between_words(tmp_path: Path) -> None:
    line = b"word " * 10_000 + b"\n"
    (tmp_path / "text").write_bytes(line)
    found = [block.tobytes() for block in blocks([str(tmp_path / "text")], 1000)]
    assert b"".join(found) == line
    assert max(map(len, found)) <= 1000


def test_a_word_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "MAX_WORD", 3 << 20)
    (tmp_path / "binary").write_bytes(b"a\n" + b"x" * (4 << 20))
    with pytest.raises(MegahourError, match="a word of more than 3,145,728 bytes") as caught:
        bytes_of(tmp_path / "binary", block_bytes=1 << 16)
    assert caught.value.where.endswith("binary:2")


def test_no_block_has_a_word_that_arpa_files_cannot_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of more than a megabyte became lines that `arpa.read` refused, and only some of them."""
    assert 2 * text_module.MAX_WORD * arpa_read.MAX_ORDER <= arpa_read.LINE_BYTES
    monkeypatch.setattr(text_module, "MAX_WORD", 100)
    for before in range(0, 300, 7):
        for length, block_bytes in ((100, 1000), (200, 50), (200, 1000), (200, 10_000)):
            data = b"a\n" * before + b"x" * length + b" b\n" * 150
            (tmp_path / "text").write_bytes(data)
            if length == 100:
                assert bytes_of(tmp_path / "text", block_bytes=block_bytes) == data
                continue
            with pytest.raises(MegahourError, match="a word of more than 100 bytes") as caught:
                bytes_of(tmp_path / "text", block_bytes=block_bytes)
            assert caught.value.where.endswith(f"text:{before + 1}")
    with pytest.raises(MegahourError, match="a word of more than 100 bytes") as caught:
        list(line_blocks(["a b " * 99, "x" * 101], "column"))
    assert caught.value.where == "column:2"


def test_lines_of_strings(tmp_path: Path) -> None:
    found = list(line_blocks(["a b", "c\nd", "e"], "lines", block_bytes=4))
    assert [(block.tobytes(), block.line) for block in found] == [(b"a b\n", 1), (b"c d\n", 2), (b"e\n", 3)]
    (tmp_path / "text").write_bytes(b"a b\n")
    of_a_file = next(iter(blocks([str(tmp_path / "text")])))
    assert found[0].text.flags.writeable == of_a_file.text.flags.writeable, "the same kernels"
