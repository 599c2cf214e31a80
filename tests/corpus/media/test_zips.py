"""Zips: their members are those of Python's zipfile, and hostile ones are refused by name, whatever their bytes."""

from __future__ import annotations

import io
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megahour.core.errors import BadRecord
from megahour.corpus.media.zips import ENTRY, ZipMember, open_member, read_zip

NAME = st.from_regex(r"[a-zé][a-z0-9/]{0,20}[a-z]", fullmatch=True)


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, comment: bytes = b"") -> bytes:
    """All of one time: that of the test may hold the bytes of a name, by which `patched` finds its place."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        archive.comment = comment
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return target.getvalue()


def contents(data: bytes, max_bytes: int = 1 << 20) -> dict[str, bytes | str]:
    """Bytes of each member, or the reason why there are none."""
    file, found = io.BytesIO(data), {}
    for member in read_zip(file, max_bytes=max_bytes):
        if isinstance(member, BadRecord):
            found[member.record or ""] = member.reason
            continue
        try:
            with open_member(file, member) as opened:
                found[member.name] = opened.read()
        except BadRecord as bad:
            found[member.name] = bad.reason
    return found


def entry_of(data: bytes, name: bytes) -> int:
    """Where the directory's entry of a member begins."""
    return data.rindex(ENTRY, 0, data.rindex(name))


def patched(data: bytes, name: bytes, at: int, form: str, *values: int) -> bytes:
    """With other numbers `at` bytes behind the beginning of a member's entry in the directory."""
    changed = bytearray(data)
    struct.pack_into(form, changed, entry_of(data, name) + at, *values)
    return bytes(changed)


@given(st.dictionaries(NAME, st.binary(max_size=500), max_size=5), st.sampled_from([0, 8]), st.binary(max_size=30))
@settings(max_examples=30)
def test_members_are_those_that_zipfile_wrote(members: dict[str, bytes], method: int, comment: bytes) -> None:
    assert contents(zipped(members, method, comment.replace(b"PK", b""))) == members


def test_bytes_before_an_archive_and_zip64(monkeypatch: pytest.MonkeyPatch) -> None:
    members = {"a.wav": b"sound" * 50, "b.txt": b"words"}
    assert contents(b"#!/bin/sh\n" + zipped(members)) == members
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("a.wav", "w", force_zip64=True) as file:
            file.write(members["a.wav"])
        archive.writestr("b.txt", members["b.txt"])
    assert contents(target.getvalue()) == members
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 20)  # sizes, offsets and the directory's end are all of zip64
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    written = zipped(members)
    assert b"PK\6\6" in written
    assert contents(written) == members
    assert contents(written.replace(b"PK\6\6", b"PK\6\0")) == {"": "zip-corrupt"}
    lost = written.replace(struct.pack("<2H", 1, 24), struct.pack("<2H", 2, 24))
    assert contents(lost) in ({"": "zip-corrupt"}, members)


HOSTILE: dict[str, tuple[Callable[[], bytes], dict[str, object]]] = {
    "parent": (lambda: zipped({"../a": b"x"}), {"../a": "zip-parent-path"}),
    "backslash": (lambda: zipped({"a\\..\\b": b"x"}), {"a\\..\\b": "zip-parent-path"}),
    "absolute": (lambda: zipped({"/etc/a": b"x"}), {"/etc/a": "zip-absolute-path"}),
    "drive": (lambda: zipped({"C:/a": b"x"}), {"C:/a": "zip-absolute-path"}),
    "encrypted": (lambda: patched(zipped({"a": b"x"}), b"a", 8, "<H", 1), {"a": "zip-encrypted"}),
    "method": (lambda: zipped({"a": b"x"}, zipfile.ZIP_LZMA), {"a": "zip-unsupported"}),
    "link": (lambda: patched(zipped({"a": b"x"}), b"a", 38, "<L", 0o120777 << 16), {"a": "zip-link"}),
    "large": (lambda: zipped({"a": bytes(2 << 20), "b": b"x"}), {"a": "too-large", "b": b"x"}),
    "size": (lambda: patched(zipped({"a": b"x" * 90}), b"a", 24, "<L", 80), {"a": "zip-corrupt"}),
    "crc": (lambda: patched(zipped({"a": b"x" * 90}), b"a", 16, "<L", 7), {"a": "zip-corrupt"}),
    "damaged": (
        lambda: zipped({"a": b"xyz" * 9, "b": b"w"}, 0).replace(b"zxy", b"zzz", 1),
        {"a": "zip-corrupt", "b": b"w"},
    ),
    "stored": (lambda: patched(zipped({"a": b"x" * 9}, 0), b"a", 24, "<L", 8), {"a": "zip-corrupt"}),
    "beyond": (lambda: patched(zipped({"a": b"x" * 9}, 0), b"a", 20, "<2L", 900, 900), {"a": "zip-corrupt"}),
    "no member": (lambda: patched(zipped({"a": b"x" * 90}), b"a", 42, "<L", 1), {"a": "zip-corrupt"}),
    "other name": (lambda: zipped({"aa": b"x"}).replace(b"aa", b"ab", 1), {"aa": "zip-corrupt"}),
    "cut": (lambda: zipped({"a": b"x" * 90})[:-30], {"": "zip-corrupt"}),
    "no directory": (lambda: zipped({"a": b"x"}).replace(ENTRY, b"PK\1\0"), {"": "zip-corrupt"}),
    "several disks": (lambda: zipped({})[:4] + b"\1\0" + zipped({})[6:], {"": "zip-unsupported"}),
    "empty": (lambda: b"", {"": "zip-corrupt"}),
    "folders": (lambda: zipped({"d/": b"", "__MACOSX/._a": b"x", "d/a": b"x"}), {"d/a": b"x"}),
    "old names": (lambda: zipped({"xa": b"y"}).replace(b"xa", b"\x81a"), {"üa": b"y"}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_and_odd_archives(name: str) -> None:
    make, expected = HOSTILE[name]
    assert contents(make()) == expected


def test_a_count_of_members_that_began_again_loses_none() -> None:
    """Programs without zip64, such as the archiver of older Macs, count 65,537 members as 1."""
    one = zipped({"a": b"sound"})
    start, end = one.rindex(ENTRY), one.rindex(b"PK\5\6")
    listed = one[start:end] * 65_537  # all of them the same: what counts is that each is seen
    plain = one[:start] + listed + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(listed), start, 0)
    assert sum(1 for _ in read_zip(io.BytesIO(plain), max_bytes=9)) == 65_537
    odd = zipped({"a": b"", "b": b"", "c": b""})
    at = odd.rfind(b"PK\5\6") + 8
    (bad,) = read_zip(io.BytesIO(odd[:at] + struct.pack("<2H", 2, 2) + odd[at + 4 :]), max_bytes=1)
    assert isinstance(bad, BadRecord)
    assert bad.detail == "the directory has 3 members, but declares 2"


def test_equal_names_count_once() -> None:
    data = zipped({"aa": b"1", "ab": b"2"}).replace(b"ab", b"aa")
    found = list(read_zip(io.BytesIO(data), max_bytes=10))
    assert [each.reason if isinstance(each, BadRecord) else each.name for each in found] == ["aa", "duplicate-id"]


def test_members_that_share_bytes_are_all_refused() -> None:
    """Fifield's bomb: each member's bytes contain the headers and bytes of all later members."""
    data = zipped({"a": b"1" * 50, "b": b"2" * 50, "c": b"3" * 50}, 0)
    assert contents(patched(data, b"b", 42, "<L", 0)) == {"a": "zip-overlap", "b": "zip-overlap", "c": b"3" * 50}
    longer = patched(data, b"a", 20, "<2L", 120, 120)
    assert contents(longer) == {"a": "zip-overlap", "b": "zip-overlap", "c": b"3" * 50}


def test_what_would_grow_two_hundredfold_is_a_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    data = zipped({"a": bytes(1 << 20), "b": random.Random(0).randbytes(9000)})
    assert contents(data)["a"] == bytes(1 << 20), "small ones do no harm"
    monkeypatch.setattr("megahour.corpus.media.zips.BOMB_BYTES", 1 << 19)
    assert {name: type(found) for name, found in contents(data).items()} == {"a": str, "b": bytes}
    assert contents(data)["a"] == "zip-bomb"


def test_more_bytes_than_declared_are_never_unpacked(tmp_path: Path) -> None:
    data = patched(zipped({"a": bytes(8 << 20)}), b"a", 24, "<L", 1000)
    file = io.BytesIO(data)
    (member,) = read_zip(file, max_bytes=1 << 20)
    assert isinstance(member, ZipMember)
    with pytest.raises(BadRecord, match="1001 bytes with CRC"):
        open_member(file, member, tmp_path)
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6), st.integers(0, 400))
@settings(max_examples=60)
def test_no_changed_byte_raises_anything_else(changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(zipped({"a.wav": b"sound" * 9, "b/c.txt": b"words"}))
    for at, value in changes:
        data[at % len(data)] = value
    contents(bytes(data[: len(data) - cut % 7]))
