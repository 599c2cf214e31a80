"""A remote file read by ranges: the right bytes, few requests, and no byte twice where it is kept."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from made_artifacts import write_artifact

from megahour.core.errors import StoreError
from megahour.core.ranges import HELD_BYTES, MOST_BYTES, ReadAhead, scratch_file
from megahour.core.store import Artifact

KB = 1 << 10
DATA = np.random.default_rng(0).bytes(3 << 20)


class Counted(io.BytesIO):
    """Counts what is asked of it: (start, bytes)."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.asked: list[tuple[int, int]] = []

    def read(self, size: int | None = -1) -> bytes:
        start = self.tell()
        data = super().read(size)
        self.asked.append((start, len(data)))
        return data

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.asked)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("block", [0, 64 * KB])
def test_any_reads_give_the_files_bytes(tmp_path: Path, keeps: bool, block: int) -> None:
    rng, below, here = np.random.default_rng(1), Counted(DATA), io.BytesIO(DATA)
    file = ReadAhead(below, len(DATA), block_bytes=block, keep=scratch_file(tmp_path) if keeps else None)
    for _ in range(400):
        place, size = int(rng.integers(0, len(DATA) + 100)), int(rng.choice([1, 100, 70 * KB, 300 * KB]))
        whence = int(rng.integers(0, 3))
        place = {0: place, 1: min(place, 50 * KB), 2: -min(place, len(DATA))}[whence]
        assert file.seek(place, whence) == here.seek(place, whence)
        assert file.read(size) == here.read(size)
        assert file.tell() == here.tell()
    if keeps:
        assert below.bytes <= len(DATA)
        fetched = np.zeros(len(DATA), np.int64)
        for start, size in below.asked:
            fetched[start : start + size] += 1
        assert fetched.max() == 1
    file.close()
    assert below.closed


def test_a_file_that_is_read_through_needs_few_requests() -> None:
    below = Counted(DATA * 12)
    file = ReadAhead(below, 12 * len(DATA))
    while file.read(1000):
        pass
    assert below.bytes == 12 * len(DATA)
    sizes = [size for _, size in below.asked]
    assert sizes[:3] == [64 * KB, 128 * KB, 256 * KB]
    assert max(sizes) == MOST_BYTES
    held = sum(map(len, file._held._pieces.values()))  # type: ignore[union-attr]
    assert held <= HELD_BYTES


def test_a_read_behind_a_seek_fetches_a_block_or_what_is_asked_for() -> None:
    for block, expected in ((0, 100), (64 * KB, 64 * KB)):
        below = Counted(DATA)
        file = ReadAhead(below, len(DATA), block_bytes=block)
        for place in (2 << 20, 1 << 20, 2 << 20):
            file.seek(place)
            assert file.read(100) == DATA[place : place + 100]
        assert below.asked == [(2 << 20, expected), (1 << 20, expected)]


def test_a_file_that_has_become_shorter_ends(tmp_path: Path) -> None:
    for keep in (None, scratch_file(tmp_path)):
        assert ReadAhead(Counted(b"abc"), 10, keep=keep).read() == b"abc"


def test_ranges_of_shards(tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "a", [({}, {".tar": DATA[i:]}) for i in range(2)], {})
    assert artifact.read_ranges([(1, 5, 3), (0, 0, 2)], ".tar") == [DATA[6:9], DATA[:2]]
    with pytest.raises(StoreError, match=r"a shard has no file \*\.tar"):
        Artifact(artifact.url).read_ranges([(2, 5, 3)], ".tar")
