"""Progressive sharding: no shard above the limit, nothing lost, and the unsharded model to the bit."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_skewed import bounded, in_memory, write_skewed

from megahour.core.errors import StageError
from megahour.lm.scale.memory_rows import MemoryRows
from megahour.lm.scale.row_files import LEAD, LEADING, RowFiles
from megahour.lm.scale.shard_types import SHARE, Text
from megahour.lm.scale.shards import ShardTree, Split
from megahour.lm.scale.shared_context import add_up, close, names_of
from megahour.lm.text.tokenise import BOUNDARY, WordTable


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_skewed(tmp_path_factory.mktemp("text") / "skewed.txt", 220_000)


def test_one_and_two_words_are_not_enough_for_a_skewed_corpus_and_three_are(skewed: Path, tmp_path: Path) -> None:
    """A shard holds 33,000 positions; 44,000 lines begin with "how to"."""
    model, found = bounded(skewed, 4, tmp_path / "free")
    assert model == in_memory(skewed, 4, tmp_path / "whole.arpa")
    sharding = found.sharding
    assert sharding.rounds == 3
    assert sharding.largest <= 40_000 < sharding.left_over[1], "what two words leave is above the limit of a shard"
    assert sharding.skew < 3
    shared = found.shared_ngrams
    assert shared < found.sizes[1] / 2, "two-word sharding would share all bigrams"


@settings(max_examples=30)
@given(
    sentences=st.lists(st.lists(st.integers(3, 6), max_size=6), min_size=1, max_size=60),
    limit=st.integers(1, 12),
    order=st.integers(2, 5),
)
def test_every_position_is_in_one_shard_with_all_that_share_its_history(
    sentences: list[list[int]], limit: int, order: int
) -> None:
    tokens = np.array([token for sentence in sentences for token in [*sentence, BOUNDARY]], np.int32)
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "tokens").write_bytes(LEADING + tokens.tobytes())
        padded = np.concatenate([np.full(LEAD, BOUNDARY, np.int32), tokens])
        counts = np.bincount(padded[LEAD - 1 : -1], minlength=7)
        tree = ShardTree(counts, np.arange(8), limit, order)
        rows = RowFiles(Path(name), tree)
        rows.first_round(Path(name) / "tokens", len(padded))
        while left := tree.left_over():
            grown = [rows.grow(split, tree.rounds) for split in left]
            tree.next_round()
            for split, (words, each) in zip(left, grown, strict=True):
                tree.grow(split, words, each)
            rows.later_round(left, tree.rounds)
        shards = [rows.read(shard) for shard in tree.shards]
        held = _in_memory(padded, counts, limit, order)
        assert [part.tolist() for part in held] == [
            _by_word(shard, tree.shards[i].floor) for i, shard in enumerate(shards)
        ]
    places = np.concatenate([shard[:, order] for shard in shards])
    assert sorted(places.tolist()) == list(range(LEAD, len(padded)))
    assert all(len(shard) == tree.shards[i].rows <= limit for i, shard in enumerate(shards))
    assert tree.rounds < max(2, order)
    homes: dict[tuple[int, ...], int] = {}
    for shard, found in zip(tree.shards, shards, strict=True):
        assert np.all(np.diff(found[:, order]) > 0), "positions of a shard are in order"
        assert len(np.unique(found[:, 1 : shard.floor + 1], axis=0)) <= 1, "the shared words are the same"
        for row in found.tolist() if not shard.leaf else []:
            assert homes.setdefault(tuple(row[1 : shard.floor + 2]), shard.number) == shard.number


def test_counts_of_shards_add_up_beyond_32_bits() -> None:
    share = np.array([(3, 2**31 - 1, 2**31 - 1, 7)], SHARE)
    found = add_up([share, share])
    assert found[["word", "adjusted", "raw", "first"]].tolist() == [(3, 2**32 - 2, 2**32 - 2, 7)]
    table = WordTable.of([b"of", b"the"])
    text = Text.of(3, np.zeros(5, np.int64), table.arena, table.starts[: len(table) + 1])
    tree, split = ShardTree(np.ones(5, np.int64), np.arange(6), 9, 3), Split(0, (4, 3), 9, 0)
    tree.splits = [split]
    with pytest.raises(StageError, match='the history "of the" has 4,294,967,294 counts'):
        names_of(text, tree, [close(text, split, found)])


def test_a_write_that_takes_only_a_part_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.array([BOUNDARY] * LEAD + [3, 4, BOUNDARY] * 30, np.int32)
    tokens.tofile(tmp_path / "tokens")
    tree = ShardTree(np.bincount(tokens[LEAD - 1 : -1], minlength=5), np.arange(6), 100, 2)
    rows, real = RowFiles(tmp_path, tree), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: real(file, bytes(data)[:100], place))
    rows.first_round(tmp_path / "tokens", len(tokens))
    assert sorted(row[2] for shard in tree.shards for row in rows.read(shard).tolist()) == list(
        range(LEAD, len(tokens))
    )


def _in_memory(tokens: np.ndarray, counts: np.ndarray, limit: int, order: int) -> list[np.ndarray]:
    """Positions of each shard as `MemoryRows` has them."""
    tree = ShardTree(counts, np.arange(8), limit, order)
    rows = MemoryRows(tree, tokens, counts)
    while left := tree.left_over():
        grown = [rows.grow(split) for split in left]
        tree.next_round()
        for split, (words, each) in zip(left, grown, strict=True):
            tree.grow(split, words, each)
        rows.later_round(left)
    none = np.empty(0, np.int32)
    return [np.concatenate([none, *(part.positions for part in rows.parts(shard))]) for shard in tree.shards]


def _by_word(rows: np.ndarray, floor: int) -> list[int]:
    """Positions of a shard's rows; of neighbouring words, word by word."""
    order = np.arange(len(rows)) if floor else np.argsort(rows[:, 1], kind="stable")
    found: list[int] = rows[order, -2].tolist()
    return found


def test_sizes_of_the_later_rounds_follow_what_is_left(tmp_path: Path) -> None:
    counts = np.array([0, 5, 0, 100, 3, 3])
    tree = ShardTree(counts, np.arange(7), 10, 4)
    assert [shard.rows for shard in tree.shards] == [5, 6]
    (split,) = tree.left_over()
    assert split.history == (3,)
    tree.next_round()
    tree.grow(split, np.array([5, 4, 3], np.int32), np.array([0, 0, 0, 80, 8, 12]))
    assert [(other.history, other.rows) for other in tree.left_over()] == [((3, 5), 12), ((3, 3), 80)]
    report = tree.report()
    assert (report.rounds, report.shards, report.left_over) == (2, [2, 1], [100, 92])
    assert report.largest == 8
