"""Kaldi's archives and HTK's SLF: files we write can be read, here and by kaldifst, and damaged ones are named."""

from __future__ import annotations

import gzip
import io
import struct
from dataclasses import replace
from pathlib import Path

import kaldifst
import numpy as np
import pytest

from megahour.core.errors import ConfigError
from megahour.foreign.lattice_files import ReadLattices
from megahour.foreign.params import ImportLatticesParams
from megahour.lattices import n_best
from megahour.lattices.kaldi_format import compact_bytes, compact_text, plain_bytes, read_archive
from megahour.lattices.lattice import Lattice
from megahour.lattices.n_best import best_paths, best_texts
from megahour.lattices.slf import from_slf, to_slf

WORDS = ["<eps>", "red", "boat", "l'eau"]
NUMBERS = {"boat": 1, "red": 2, "l'eau": 3}
SPELLED = ["<eps>", "boat", "red", "l'eau"]


def lattice() -> Lattice:
    """Paths: red boat, red l'eau, boat."""
    source, target, word = np.array([(0, 1, 1), (0, 2, 2), (1, 2, 2), (1, 3, 3), (2, 4, 0), (3, 4, 0)], np.int32).T
    costs = np.array([1.5, 4.0, 0.25, 0.75, 0.5, 0.125]), np.array([10.0, 20.5, 11.25, 9.0, 1.0, 2.0])
    frame, labels = np.array([0, 2, 4, 4, 5], np.int32), np.array([1, 2, 1, 1, 2, 0, 2, 0, 0, 3, 0, 0], np.int32)
    return Lattice(source, target, word, *costs, frame, labels, WORDS)


def listed(one: Lattice) -> list[tuple[object, ...]]:
    paths = best_paths(one, 0.5)
    return [(path.words, round(path.cost, 5), round(path.graph, 5), tuple(one.labels_of(path.arcs))) for path in paths]


def archive(*entries: bytes) -> dict[str, Lattice | ValueError]:
    return dict(read_archive(io.BytesIO(b"".join(entries)), SPELLED))


def written(one: Lattice) -> dict[str, Lattice | ValueError]:
    """The lattice read back from an archive: binary, text, and binary again."""
    binary, text = compact_bytes(one, NUMBERS), compact_text(one, NUMBERS).encode()
    return archive(b"u1 ", binary, b"u2 ", text, b"u3 ", binary)


def test_a_compact_archive_is_read_as_it_was_written_binary_and_text() -> None:
    one = lattice()
    found = written(one)
    assert list(found) == ["u1", "u2", "u3"]
    for each in found.values():
        assert isinstance(each, Lattice)
        assert listed(each) == listed(one)
        assert each.frames == 5


def test_a_word_that_ends_a_lattice_is_written_too() -> None:
    """Of other recognisers, whose last node may have a word, and several ways may lead there from one state."""
    nodes = "VERSION=1.0\nI=0 t=0\nI=1 t=0.3 W=red\nI=2 t=0.6 W=boat\n"
    links = "J=0 S=0 E=1 a=-2 l=-1\nJ=1 S=1 E=2 a=-1\nJ=2 S=0 E=2 W=l'eau a=-4.5\nJ=3 S=1 E=2 W=!NULL a=-3\n"
    _, one = from_slf((nodes + links).splitlines(), 0.03)
    found = written(one)
    assert [path.words for path in best_paths(one, 1.0)] == [("red", "boat"), ("l'eau",), ("red",)]
    for each in found.values():
        assert isinstance(each, Lattice)
        assert [path[:3] for path in listed(each)] == [path[:3] for path in listed(one)]


def test_the_bytes_are_those_that_kaldi_documents() -> None:
    """OpenFst's magic number, `vector`, `compactlattice44`; the first arc of state 0 with graph, acoustic, two ids."""
    data = compact_bytes(lattice(), NUMBERS)
    assert data[:4] == b"\xd6\xfd\xb2\x7e"
    assert data[4:34] == b"\x06\0\0\0vector\x10\0\0\0compactlattice44"
    state = data[34 + 40 :]
    assert state[:20] == np.array([np.inf, np.inf], "<f4").tobytes() + bytes(4) + (2).to_bytes(8, "little")
    arc = (
        np.array([2, 2], "<i4").tobytes()
        + np.array([1.5, 10.0], "<f4").tobytes()
        + np.array([2, 2, 3, 1], "<i4").tobytes()
    )
    assert state[20 : 20 + len(arc)] == arc


def test_a_lattice_begins_where_kaldi_says_binary_and_text() -> None:
    """In the header's start state, and in the state of the first line: states 0 and 2 trade numbers here."""
    text = b"u1 \n2 1 1 1,2,7\n1 0 2 1,2,8\n0 0.5,0.25,9\n\n"
    names = b"".join(struct.pack("<i", len(name)) + name for name in (b"vector", b"compactlattice44"))
    binary = b"u2 " + struct.pack("<i", 2125659606) + names + struct.pack("<iiQqqq", 2, 0, 3, 2, 3, 2)
    for final, arcs in (((0.5, 0.25, 9), ()), ((np.inf, np.inf), ((2, 8, 0),)), ((np.inf, np.inf), ((1, 7, 1),))):
        binary += struct.pack("<ffi", *final[:2], len(final) - 2) + struct.pack(f"<{len(final) - 2}i", *final[2:])
        binary += struct.pack("<q", len(arcs))
        for word, label, target in arcs:
            binary += struct.pack("<iiffiii", word, word, 1, 2, 1, label, target)
    for found in archive(text, binary).values():
        assert isinstance(found, Lattice)
        (path,) = best_paths(found, 1.0)
        assert (path.words, path.cost, found.labels.tolist()) == (("boat", "red"), 6.75, [6, 7, 8])


def test_an_n_best_list_has_a_text_once_though_a_lattice_has_it_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a lattice with silence words, or one that was not determinised."""
    text = b"u1 \n0 1 1 1,2,1_1\n0 1 1 1,1.5,1_2\n1 2 0 0.5,0,3\n1 2 2 1,1,3\n2 3 3 1,1,4\n3\n\n"
    one = archive(text)["u1"]
    assert isinstance(one, Lattice)
    best = [(("boat", "l'eau"), 5.0), (("boat", "red", "l'eau"), 6.5)]
    assert len(list(best_paths(one, 1.0))) == 4
    assert [(path.words, path.cost) for path in best_texts(one, 1.0, 9)] == best
    assert [(path.words, path.cost) for path in best_texts(one, 1.0, 1)] == best[:1]
    monkeypatch.setattr(n_best, "TRIED", 1)
    assert len(best_texts(one, 1.0, 2)) == 1, "it looks at some paths, not at all of a huge lattice"


def test_an_empty_lattice_costs_no_more_than_itself() -> None:
    """Kaldi writes one, with start state -1, where a decoding failed."""
    names = b"".join(struct.pack("<i", len(name)) + name for name in (b"vector", b"compactlattice44"))
    empty = struct.pack("<i", 2125659606) + names + struct.pack("<iiQqqq", 2, 0, 3, -1, 0, 0)
    found = archive(b"u1 ", empty, b"u2 ", compact_bytes(lattice(), NUMBERS))
    assert str(found["u1"]) == "no path leads to a final state"
    assert isinstance(found["u2"], Lattice)


def test_kaldifst_reads_a_plain_lattice_with_the_same_paths(tmp_path: Path) -> None:
    (tmp_path / "lat").write_bytes(plain_bytes(lattice(), NUMBERS))
    theirs = kaldifst.Lattice.read(str(tmp_path / "lat"))
    found = []
    for path in kaldifst.convert_nbest_to_vector(kaldifst.shortest_path(theirs, 10)):
        _, ids, words, weight = kaldifst.get_linear_symbol_sequence(path)
        found.append((tuple(SPELLED[w] for w in words), weight.value1, weight.value2, tuple(i - 1 for i in ids)))
    ours = [
        (path.words, path.graph, path.cost - path.graph, tuple(lattice().labels_of(path.arcs)))
        for path in best_paths(lattice(), 1.0)
    ]
    assert sorted(found) == sorted(ours)


def test_slf_is_read_as_it_was_written_and_in_other_forms() -> None:
    one = lattice()
    text = to_slf("u1", one, 0.5, 0.03)
    name, again = from_slf(text.splitlines(), 0.03)
    assert name == "u1"
    assert [row[:3] for row in listed(replace(again, labels=one.labels))] == [row[:3] for row in listed(one)]
    assert again.frame[-1] == 5
    nodes = "VERSION=1.0\nbase=10\nI=2 t=0\nI=0 t=0.3 W=red\nI=1 t=0.6 W=!NULL\n"
    nodes += "J=0 S=2 E=0 a=-2 l=-1\nJ=1 S=0 E=1 a=-1\n"
    _, other = from_slf(nodes.splitlines(), 0.03)
    (path,) = best_paths(other, 1.0)
    assert (path.words, path.cost) == (("red",), pytest.approx(4 * np.log(10)))
    assert other.frame.tolist() == [0, 10, 20]
    whole = nodes
    for short, name in {"t": "time", "W": "WORD", "S": "START", "E": "END", "a": "acoustic", "l": "language"}.items():
        whole = whole.replace(f" {short}=", f" {name}=")
    _, again = from_slf(whole.splitlines(), 0.03)
    assert (next(best_paths(again, 1.0)), again.frame.tolist()) == (path, other.frame.tolist())
    weighed = nodes.replace("base=10", "base=10\nlmscale=3 wdpenalty=0.5 acscale=1")
    (path,) = best_paths(from_slf(weighed.splitlines(), 0.03)[1], 1.0)
    assert path.cost == pytest.approx((3 + 3 - 0.5) * np.log(10)), (
        "acoustics 3, three times l = 1, a bonus for one word"
    )


@pytest.mark.parametrize("word", ["c#", "#", 'a"b', '"x"', "a\\b", "don't", "x=y"])
def test_signs_in_words_of_slf_are_no_comments_and_no_quotes(word: str) -> None:
    one = replace(lattice(), words=["<eps>", word, "blue", "green"][: len(lattice().words)])
    text = to_slf("u1", one, 1.0, 0.03).replace("start=0", "# a comment, U=no\nstart=0 # W=no")
    name, again = from_slf(text.splitlines(), 0.03)
    paths = [[(path.words, path.graph, path.cost) for path in best_paths(each, 1.0)] for each in (one, again)]
    assert (name, paths[1]) == ("u1", paths[0])
    assert any(word in words for words, _, _ in paths[0])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1 2", "not an HTK lattice"),
        ("VERSION=1.0\nJ=0 S=0 E=1\nJ=1 S=2 E=3", "begins in 2 nodes"),
        ("VERSION=1.0\nstart=0\nend=2\nI=0\nI=1\nI=2\nJ=0 S=0 E=1\nJ=1 S=1 E=0\nJ=2 S=1 E=2", "cycle"),
        ("VERSION=1.0\nstart=0\nend=2\nI=0\nI=1\nJ=0 S=0 E=1", "no path"),
        ("VERSION=1.0\nI=0\nI=1\nJ=0 S=0 E=1 a=nan", "not finite"),
        ("VERSION=1.0\nI=0 t=2\nI=1 t=1\nJ=0 S=0 E=1", "frames do not match its labels"),
    ],
)
def test_what_is_wrong_with_an_slf_file_is_named(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        from_slf(text.splitlines(), 0.01)


def test_a_bad_lattice_of_an_archive_is_an_error_of_its_own_and_a_cut_archive_one_of_all() -> None:
    good = compact_text(lattice(), NUMBERS).encode()
    found = archive(
        b"empty \n\n", b"cycle \n0 1 1 1,1,\n1 0 1 1,1,\n1\n\n", b"infinite \n0 1 1 inf,1,\n1\n\n",
        b"unknown \n0 1 9 1,1,\n1\n\n", b"frames \n0 1 1 1,1,1_1\n0 1 2 1,1,1\n1\n\n", b"odd \n0 x\n\n",
        b"huge \n0 1 1 1,1,99999999999\n1\n\n", b"good ", good,
    )  # fmt: skip
    messages = {key: str(value) for key, value in found.items() if isinstance(value, ValueError)}
    assert {key: message.split()[0] for key, message in messages.items()} == {
        "empty": "no", "cycle": "its", "infinite": "a", "unknown": "a", "frames": "two", "odd": "b'0", "huge": "a",
    }  # fmt: skip
    assert isinstance(found["good"], Lattice)
    with pytest.raises(ValueError, match="ends within"):
        archive(b"u1 ", compact_bytes(lattice(), NUMBERS)[:-3])
    with pytest.raises(ValueError, match="lattice-copy --write-compact"):
        archive(b"u1 ", plain_bytes(lattice(), NUMBERS))
    plain = archive(b"plain \n0 1 3 1 1,2\n1 2 2 0 1,2\n2\n\n")["plain"]  # its words would be transition ids
    assert isinstance(plain, ValueError)
    assert "lattice-copy --write-compact" in str(plain)
    with pytest.raises(ValueError, match=r"'boat' is not in the graph's words\.txt"):
        compact_bytes(lattice(), {"red": 1, "l'eau": 2})


def test_an_archive_with_lines_as_in_windows_is_read() -> None:
    text = b"u1 " + compact_text(lattice(), NUMBERS).encode()
    (found,) = archive((text + text).replace(b"\n", b"\r\n")).values()
    assert isinstance(found, Lattice)
    assert listed(found) == listed(lattice())


def test_cut_gzip_and_words_of_another_encoding_are_named(tmp_path: Path) -> None:
    packed, words = tmp_path / "lat.1.gz", tmp_path / "words.txt"
    packed.write_bytes(gzip.compress(b"u1 " + compact_bytes(lattice(), NUMBERS))[:-9])
    words.write_bytes(b"<eps> 0\n\xe9 1\n")
    for source, what in ((packed, "lat.1.gz: damaged gzip"), (words, "words.txt: not UTF-8")):
        p = ImportLatticesParams(source=[str(source)], words=str(words))
        with pytest.raises(ConfigError, match=what):
            list(ReadLattices().records(p, str(source)))


def test_a_word_of_words_txt_may_hold_a_space_of_unicode(tmp_path: Path) -> None:
    archive_file, words = tmp_path / "lat.1", tmp_path / "words.txt"
    numbers = {"10\u00a0000" if word == "red" else word: number for word, number in NUMBERS.items()}
    one = replace(lattice(), words=["10\u00a0000" if word == "red" else word for word in lattice().words])
    archive_file.write_bytes(b"u1 " + compact_bytes(one, numbers))
    words.write_text("".join(f"{word}\t{number}\n" for word, number in {"<eps>": 0, **numbers}.items()), "utf-8")
    p = ImportLatticesParams(source=[str(archive_file)], words=str(words))
    (record,) = ReadLattices().records(p, str(archive_file))
    assert "10\u00a0000" in record.row["word"]


def test_a_word_of_slf_may_hold_a_line_end_of_unicode(tmp_path: Path) -> None:
    path, one = tmp_path / "7.lat", replace(lattice(), words=["<eps>", "red", "b\u2028c", "l'eau"])
    path.write_bytes(to_slf("7", one, 1.0, 0.03).replace("\n", "\r\n").encode())
    p = ImportLatticesParams(source=[str(path)], format="slf", frame_s=0.03)
    (record,) = ReadLattices().records(p, str(path))
    assert record.name == "7"
    assert set(record.row["word"]) == {"", "red", "b\u2028c", "l'eau"}
