"""Pieces of a file are written to the right places, past the page cache or through it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megahour.lm.arpa.direct import PAGE, DirectFile, DirectStream, aligned, page_buffer

cuts = st.lists(st.integers(0, 12 * PAGE), max_size=8).map(sorted)


def written(path: Path, data: bytes, edges: list[int], shift: int = 0) -> bytes:
    """The file of `data` in pieces at `edges`, last ones first, by two threads; shift: bytes out of alignment."""
    file = DirectFile(path)

    def write(begin: int, end: int) -> None:
        at = aligned(0, begin) + shift
        buffer = page_buffer(at + end - begin)
        buffer[at : at + end - begin] = np.frombuffer(data[begin:end], np.uint8)
        file.write(buffer, at, at + end - begin, begin)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, reversed([0, *edges]), reversed([*edges, len(data)])))
    file.close()
    return path.read_bytes()


@settings(max_examples=40)
@given(cuts, st.integers(0, 2))
def test_any_cut_gives_the_same_file(tmp_path_factory: pytest.TempPathFactory, edges: list[int], shift: int) -> None:
    data = np.random.default_rng(1).bytes(12 * PAGE + 77)
    assert written(tmp_path_factory.mktemp("cut") / "file", data, edges, shift) == data


@settings(max_examples=20)
@given(cuts, st.integers(0, 5000))
def test_a_stream_takes_pieces_for_any_place(
    tmp_path_factory: pytest.TempPathFactory, edges: list[int], more: int
) -> None:
    data = np.random.default_rng(2).integers(0, 256, 12 * PAGE + 77, np.uint8)
    path, bounds = tmp_path_factory.mktemp("stream") / "file", [0, *edges, len(data)]
    pieces = list(pairwise(bounds))
    file = DirectFile(path)
    with ThreadPoolExecutor(1) as writer:
        stream = DirectStream(file, writer, room=3 * PAGE)
        for begin, end in pieces[1::2] + pieces[::2]:
            stream.room(end - begin + more, begin)[: end - begin] = data[begin:end]  # asks for more than it needs
            stream.wrote(end - begin)
        stream.flush()
        stream.wait()
    file.close()
    assert path.read_bytes() == data.tobytes()


def test_a_slow_disk_gets_the_rest_through_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megahour.lm.arpa.direct.TRIAL_S", 0.0)
    monkeypatch.setattr("megahour.lm.arpa.direct.SLOWEST", 1e18)
    data = np.random.default_rng(1).bytes(40 * PAGE)
    assert written(tmp_path / "file", data, [3 * PAGE, 7 * PAGE + 5, 20 * PAGE]) == data


def test_a_buffer_begins_as_far_into_a_page_as_its_place_in_the_file() -> None:
    for size, place in [(0, 0), (1, 0), (PAGE, 5), (PAGE + 7, 6), (3, 3)]:
        begin = aligned(size, place)
        assert size <= begin < size + PAGE
        assert begin % PAGE == place % PAGE
    assert page_buffer(PAGE + 1).ctypes.data % PAGE == 0
    assert len(page_buffer(PAGE + 1)) == 2 * PAGE
