"""What both engines share: the reduction tree, and the blocks and spill files of an exchange."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tasks import bracket

from megahour.engine.base import EngineError, Tree, in_order
from megahour.engine.blocks import BLOCK_BYTES, ROW_BYTES, blocks_of, decode, encode, sliced
from megahour.engine.spills import spill, spill_path, spilled


def tree_over(values: list[Any]) -> Any:
    tree = Tree(bracket)
    for value in values:
        tree.add(value)
    return tree.result()


def by_definition(values: list[Any]) -> Any:
    """The left half takes the largest power of two below n."""
    if len(values) == 1:
        return values[0]
    left = 1 << (len(values) - 1).bit_length() - 1
    return bracket(by_definition(values[:left]), by_definition(values[left:]))


@given(st.lists(st.integers(), min_size=1, max_size=70))
def test_the_tree_has_the_documented_shape(values: list[int]) -> None:
    assert tree_over(values) == by_definition(values)


@given(st.integers(1, 300), st.sampled_from([2, 4, 16]))
def test_aligned_blocks_can_be_combined_apart(count: int, block: int) -> None:
    values = list(range(count))
    blocks = [tree_over(values[first : first + block]) for first in range(0, count, block)]
    assert tree_over(blocks) == tree_over(values)


def test_there_is_nothing_to_reduce_in_nothing() -> None:
    with pytest.raises(ValueError, match="nothing to reduce"):
        Tree(bracket).result()


@given(st.permutations(list(range(12))))
def test_results_are_put_in_order(order: list[int]) -> None:
    assert list(in_order((index, index) for index in order)) == list(range(12))


@given(st.lists(st.text(max_size=40), max_size=60), st.integers(8, 400))
def test_slices_are_bounded_and_lose_nothing(texts: list[str], limit: int) -> None:
    batch = pa.record_batch({"text": pa.array(texts, pa.string())})
    pieces = list(sliced(batch, limit))
    assert [text for piece in pieces for text in piece["text"].to_pylist()] == texts
    assert all(piece.nbytes <= limit or piece.num_rows == 1 for piece in pieces)


def test_a_batch_is_halved_until_its_pieces_fit() -> None:
    """Cut points affect a merge's output, so both engines must always cut at the same rows."""
    batch = pa.record_batch({"n": pa.array(range(8), pa.int64())})
    rows = {limit: [piece.num_rows for piece in sliced(batch, limit)] for limit in (64, 63, 31, 8)}
    assert rows == {64: [8], 63: [4, 4], 31: [2, 2, 2, 2], 8: [1] * 8}
    assert BLOCK_BYTES == 8 << 20


def test_a_row_that_is_refused_is_far_from_what_arrow_and_spark_can_count() -> None:
    assert BLOCK_BYTES < ROW_BYTES <= 2**31 // 2


def test_a_row_that_no_engine_could_carry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megahour.engine.blocks.ROW_BYTES", 1000)
    batch = pa.record_batch({"cell": [b"x" * 2000]})
    with pytest.raises(EngineError, match=r"one row of an exchange has 20\d\d bytes, the limit is 1000"):
        list(sliced(batch, 100))
    monkeypatch.setattr("megahour.engine.blocks.ROW_BYTES", batch.nbytes)
    assert list(sliced(batch, 100)) == [batch]


def test_a_block_is_its_batch_again() -> None:
    words = pa.array(["a", "b", None, "a"]).dictionary_encode()
    batch = pa.record_batch({"word": words, "list": pa.array([[1], [], None, [2, 3]])})
    assert decode(encode(batch)).equals(batch)
    assert len(encode(batch.slice(1, 1))) < len(encode(batch)) + 200  # a slice does not carry its parent


def as_split(pairs: list[tuple[int, list[int]]]) -> Iterator[tuple[int, pa.RecordBatch]]:
    for partition, numbers in pairs:
        yield partition, pa.record_batch({"n": pa.array(numbers, pa.int64())})


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 4), st.lists(st.integers(0, 99), max_size=5)), max_size=20))
def test_a_spill_file_gives_each_partition_its_batches_in_order(pairs: list[tuple[int, list[int]]]) -> None:
    with TemporaryDirectory() as folder:
        spill(as_split, folder, 5, 3, pairs)
        path = spill_path(Path(folder), 3)
        assert list(Path(folder).iterdir()) == [path]
        for partition in range(5):
            found = [batch["n"].to_pylist() for batch in spilled(path, partition)]
            assert found == [numbers for owner, numbers in pairs if owner == partition]


def test_a_second_attempt_writes_the_same_spill_file(tmp_path: Path) -> None:
    pairs = [(1, [1, 2]), (0, [3]), (1, [4])]
    spill(as_split, str(tmp_path), 2, 0, pairs)
    first = spill_path(tmp_path, 0).read_bytes()
    spill(as_split, str(tmp_path), 2, 0, pairs)
    assert spill_path(tmp_path, 0).read_bytes() == first


def test_a_partition_out_of_range_is_an_error() -> None:
    with pytest.raises(EngineError, match="partition -1, there are 2"):
        list(blocks_of(as_split, [(-1, [1])], 2))
    with pytest.raises(EngineError, match="partition 2, there are 2"):
        list(blocks_of(as_split, [(2, [1])], 2))
