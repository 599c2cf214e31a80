"""Scratch files past the page cache: data of any size come back unchanged; a truncated file is an error."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from megahour.core.errors import StageError
from megahour.lm.scale.streams import PIECE_BYTES, StreamReader, StreamWriter


@pytest.mark.parametrize(
    "sizes", [[], [1], [4095, 1], [PIECE_BYTES], [PIECE_BYTES - 1, 2], [3 * PIECE_BYTES + 5, 0, 7], [100_000] * 40]
)
def test_arrays_come_back_in_order(tmp_path: Path, sizes: list[int]) -> None:
    rng = np.random.Generator(np.random.PCG64(1))
    arrays = [rng.integers(0, 256, size, np.uint8) for size in sizes]
    writer = StreamWriter(tmp_path / "a")
    for array in arrays:
        writer.put(array)
    assert not (tmp_path / "a").exists(), "it is visible when it is whole"
    writer.close()
    assert (tmp_path / "a").stat().st_size == sum(sizes)
    with closing(StreamReader(tmp_path / "a")) as reader:
        for array in arrays:
            found = np.empty_like(array)
            assert reader.fill(found) or not len(array)
            assert np.array_equal(found, array)
        assert not reader.fill(np.empty(1, np.uint8)), "the end"


def test_tables_of_any_type_are_bytes(tmp_path: Path) -> None:
    table = np.arange(12, dtype=np.int64).reshape(3, 4)
    writer = StreamWriter(tmp_path / "a")
    writer.put(table)
    writer.close()
    with closing(StreamReader(tmp_path / "a")) as reader:
        found = np.empty_like(table)
        assert reader.fill(found)
    assert np.array_equal(found, table)


def test_a_file_that_ends_within_an_array_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(10))
    with closing(StreamReader(tmp_path / "a")) as reader, pytest.raises(StageError, match="ends early"):
        reader.fill(np.empty(11, np.uint8))


@pytest.mark.parametrize("begin", [0, 1, 4096, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 5001, 2 * PIECE_BYTES + 6])
def test_reading_begins_anywhere(tmp_path: Path, begin: int) -> None:
    data = np.random.Generator(np.random.PCG64(2)).integers(0, 256, 2 * PIECE_BYTES + 7, np.uint8)
    data.tofile(tmp_path / "a")
    with closing(StreamReader(tmp_path / "a", begin)) as reader:
        assert b"".join(piece.tobytes() for piece in reader.pieces()) == data[begin:].tobytes()
    rest = np.empty(len(data) - begin, np.uint8)
    with closing(StreamReader(tmp_path / "a", begin)) as reader:
        assert reader.fill(rest)
        assert not list(reader.pieces()), "nothing is left"
    assert np.array_equal(rest, data[begin:])


@pytest.mark.parametrize("begin", [0, 5000, 8191])
def test_reads_that_return_less_than_is_left_are_continued(
    begin: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As network file systems may; the rest of a model would be missing."""
    array, real = np.arange(2_000_000, dtype=np.uint32).view(np.uint8)[:3_000_001], os.preadv
    writer = StreamWriter(tmp_path / "a")
    writer.put(array)
    writer.close()
    monkeypatch.setattr(os, "preadv", lambda file, room, place: real(file, [room[0][:2000]], place))
    with closing(StreamReader(tmp_path / "a", begin)) as reader:
        assert np.array_equal(np.concatenate([piece.copy() for piece in reader.pieces()]), array[begin:])
