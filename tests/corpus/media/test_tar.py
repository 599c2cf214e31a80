"""Tar shards: equal members give equal bytes, samples come by offset, and hostile archives are refused by name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_media import murmur

from megahour.core.errors import BadRecord, StoreError
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.media.archives import SPARSE, Member, read_members, unpacked, window
from megahour.corpus.media.audio import encode_flac
from megahour.corpus.media.tar import ShardAudio, tar_writer


def made_tar(members: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tar_writer(target) as tar:
        for name, data in members.items():
            tar.add(name, data)
    return target.getvalue()


def member(
    name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", link: str = "", size: int | None = None
) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data) if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def walk(data: bytes, max_bytes: int = 1 << 20) -> list[Member | BadRecord]:
    return list(read_members(io.BytesIO(data), max_bytes=max_bytes))


def reasons(data: bytes, max_bytes: int = 1 << 20) -> list[str]:
    return [found.reason if isinstance(found, BadRecord) else found.name for found in walk(data, max_bytes)]


GOOD = member("good.txt", data=b"good")
END = bytes(1024)


@given(
    st.dictionaries(st.from_regex(r"[a-zé][a-z0-9/]{0,150}[a-z]", fullmatch=True), st.binary(max_size=1500), max_size=5)
)
@settings(max_examples=40)
def test_what_is_written_is_read_here_and_by_pythons_tarfile(members: dict[str, bytes]) -> None:
    data = made_tar(members)
    assert data == made_tar(members)
    file = io.BytesIO(data)
    found = [each for each in walk(data) if isinstance(each, Member)]
    assert {each.name: window(file, each).read() for each in found} == members
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert {info.name: tar.extractfile(info).read() for info in tar} == members  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (member("/etc/passwd", data=b"x"), "tar-absolute-path"),
        (member("C:/x.wav", data=b"x"), "tar-absolute-path"),
        (member("\\\\host\\x.wav", data=b"x"), "tar-absolute-path"),
        (member("a/../../x.wav", data=b"x"), "tar-parent-path"),
        (member("x.wav", tarfile.SYMTYPE, link="/etc/passwd"), "tar-link"),
        (member("x.wav", tarfile.LNKTYPE, link="good.txt"), "tar-link"),
        (member("x.wav", tarfile.CHRTYPE), "tar-device"),
        (member("x.wav", tarfile.FIFOTYPE), "tar-device"),
        (member("x.wav", tarfile.GNUTYPE_SPARSE, data=b"x"), "tar-unsupported"),
        (member("good.txt", data=b"again"), "duplicate-id"),
        (member("large.wav", data=bytes(5000)), "too-large"),
    ],
)
def test_a_hostile_member_is_refused_and_the_next_is_read(bad: bytes, reason: str) -> None:
    assert reasons(GOOD + bad + member("next.txt", data=b"n") + END, max_bytes=4096) == ["good.txt", reason, "next.txt"]


def test_a_hidden_absolute_path_in_long_name_headers() -> None:
    long_name = member("././@LongLink", b"L", b"/" + b"x" * 200)
    record = b"path=/etc/passwd\n"
    pax = member("pax", tarfile.XHDTYPE, f"{len(record) + 3} ".encode() + record)
    for header in (long_name, pax):
        assert reasons(header + member("harmless.wav", data=b"x") + GOOD + END) == ["tar-absolute-path", "good.txt"]


def test_a_size_in_a_pax_header_counts() -> None:
    """From 8 GiB on, a member's own field is 0."""
    info = tarfile.TarInfo("long.wav")
    info.size, info.pax_headers = 0, {"size": "4"}
    data = info.tobuf(tarfile.PAX_FORMAT) + b"abcd" + bytes(508) + GOOD + END
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert [(each.name, each.size) for each in tar] == [("long.wav", 4), ("good.txt", 4)]
    found = [each for each in walk(data) if isinstance(each, Member)]
    assert [(each.name, data[each.offset : each.offset + each.size]) for each in found] == [
        ("long.wav", b"abcd"),
        ("good.txt", b"good"),
    ]


def test_an_archive_behind_another_is_read_too() -> None:
    """`cat a.tar b.tar`, and shards of WebDataset: zeros end the first, and pad it to a record of 10,240 bytes."""
    later = member("later.txt", data=b"later")
    assert reasons(GOOD + END + later + END) == ["good.txt", "later.txt"]
    assert reasons(GOOD + bytes(10_240) + later + bytes(10_240)) == ["good.txt", "later.txt"]
    assert reasons(GOOD + bytes(3 << 20) + later) == ["good.txt", "later.txt"]
    assert reasons(GOOD + END + b"no header" * 100) == ["good.txt", "tar-corrupt"]


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
@pytest.mark.parametrize("form", ["gnu", "oldgnu", "pax"])
def test_sparse_members_are_named_and_those_behind_them_read(tmp_path: Path, form: str) -> None:
    """The map of 30 stretches goes on in further headers, or in a pax header."""
    for name in ("holes.wav", "more.wav"):
        with (tmp_path / name).open("wb") as file:
            for position in range(0, 30 << 18, 1 << 18):
                file.seek(position)
                file.write(b"sound" * 1000)
    (tmp_path / "whole.wav").write_bytes(b"whole")
    packed = tmp_path / "all.tar"
    names = ["holes.wav", "whole.wav", "more.wav"]
    command = ["tar", "--format", form, "-S", "-cf", str(packed), "-C", str(tmp_path), *names]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("this tar writes no sparse members")
    if packed.stat().st_size > 1 << 20:
        pytest.skip("this file system has no holes")
    found = walk(packed.read_bytes(), max_bytes=1 << 30)
    assert [each.record if isinstance(each, BadRecord) else each.name for each in found] == names
    bad = [each for each in found if isinstance(each, BadRecord)]
    assert {(each.reason, each.detail) for each in bad} == {("tar-unsupported", SPARSE)}
    assert len(bad) == 2


def test_declared_sizes_beyond_the_archive_end_the_walk() -> None:
    assert reasons(GOOD + member("x.wav", data=b"x", size=1 << 60) + END) == ["good.txt", "tar-truncated"]
    assert reasons(member("pax", tarfile.XHDTYPE, bytes(1 << 17)) + GOOD) == ["tar-corrupt"]
    assert reasons((GOOD + member("x.wav", data=bytes(4000)) + END)[:2500]) == ["good.txt", "tar-truncated"]


def test_noise_is_no_tar() -> None:
    assert reasons(GOOD + bytes(range(256)) * 4) == ["good.txt", "tar-corrupt"]


@given(st.binary(max_size=3000))
def test_any_bytes_after_a_good_member_never_raise(noise: bytes) -> None:
    assert reasons(GOOD + noise)[0] == "good.txt"


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, bytes])
def test_packed_archives_are_read_without_extracting(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    packed = io.BytesIO(pack(made_tar({"a.txt": b"hello"})))
    with unpacked(packed, max_bytes=1 << 20, folder=tmp_path) as file:
        (found,) = read_members(file, max_bytes=1 << 20)
        assert isinstance(found, Member)
        assert window(file, found).read() == b"hello"
        assert list(tmp_path.iterdir()) == []


def test_a_bomb_and_a_broken_archive_are_refused(tmp_path: Path) -> None:
    for data, reason in (
        (gzip.compress(bytes(3 << 20)), "tar-too-large"),
        (gzip.compress(made_tar({"a": b"x" * 9000}))[:-20], "tar-corrupt"),
        (b"\x1f\x8b\x08\x00 no gzip behind these", "tar-corrupt"),
        (b"BZh9 no bzip2 behind these", "tar-corrupt"),
    ):
        with pytest.raises(BadRecord) as caught, unpacked(io.BytesIO(data), max_bytes=1 << 20, folder=tmp_path):
            pass
        assert caught.value.reason == reason


def test_samples_come_by_offset(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "artifact")
    recordings = [murmur(1 + seed, seed=seed) for seed in range(3)]
    with ShardWriter(artifact, 0, "print") as out:
        with out.open(".tar") as file, tar_writer(file) as tar:
            places = [tar.add(f"{i}.flac", encode_flac(samples, 16_000)) for i, samples in enumerate(recordings)]
        out.commit()
    with ShardAudio(artifact, 0) as audio:
        for (offset, size), samples in zip(places, recordings, strict=True):
            assert np.array_equal(audio.read(offset, size), samples)
            assert np.array_equal(audio.read(offset, size, 5_001, 12_345), samples[5_001:12_345])
        assert np.array_equal(audio.read(*places[2], 40_000), recordings[2][40_000:])
        with pytest.raises(StoreError, match="no FLAC at byte 7"):
            audio.read(7, 100)
        with pytest.raises(StoreError, match="samples 0 to 99999 of an utterance with 16000"):
            audio.read(*places[0], 0, 99_999)


def test_a_long_recording_is_read_through_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megahour.corpus.media.tar.WHOLE_BYTES", 1000)
    artifact, samples = Artifact(tmp_path / "artifact"), murmur(4, seed=9)
    with ShardWriter(artifact, 0, "print") as out:
        with out.open(".tar") as file, tar_writer(file) as tar:
            tar.add("0.flac", encode_flac(murmur(1, seed=8), 16_000))
            place = tar.add("1.flac", encode_flac(samples, 16_000))
        out.commit()
    with ShardAudio(artifact, 0) as audio:
        assert np.array_equal(audio.read(*place), samples)
        assert np.array_equal(audio.read(*place, 30_000, 50_000), samples[30_000:50_000])
