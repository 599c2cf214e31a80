"""The order of training data is arithmetic: complete, resumable anywhere, equal for all ranks."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megahour.batches.bucket import cut, partition
from megahour.batches.plan import EpochPlan, ShardSize

sizes = st.lists(
    st.integers(0, 30).flatmap(
        lambda n: st.builds(ShardSize, st.just(n), st.integers(50 * n, 500 * n) if n else st.just(0))
    ),
    max_size=12,
)
plans = st.builds(
    EpochPlan,
    sizes,
    seed=st.integers(0, 3),
    epoch=st.integers(0, 3),
    batch_frames=st.integers(1, 5000),
    window_shards=st.integers(1, 5),
    lanes=st.integers(1, 6),
)


@given(plans)
@example(EpochPlan([ShardSize(1, 10_000)] + [ShardSize(5, 100)] * 5, 1, 0, 1000, window_shards=1, lanes=2))
def test_every_filled_shard_is_in_one_window_and_every_batch_in_its_place(plan):
    assert sorted(i for window in plan.windows for i in window) == [
        i for i, s in enumerate(plan.shards) if s.utterances
    ]
    places = [plan.locate(batch) for batch in range(len(plan))]
    counts = [next(n for window, _, n in places if window == i) for i in range(len(plan.windows))]
    in_turn = [(i, b) for i, n in enumerate(counts) for b in range(n)]
    assert [place[:2] for place in (sorted(places) if plan.lanes > 1 else places)] == in_turn
    assert len(plan) == len(places) == len(plan.windows and in_turn)
    begun: dict[int, int] = {}
    ended = 0
    for window, within, _ in places:  # each window's batches in order, and no more windows at a time than lanes
        assert begun.setdefault(window, 0) == within
        begun[window] += 1
        if begun[window] == counts[window]:
            ended += 1
        assert len(begun) - ended <= plan.lanes
    for window, n in zip(plan.windows, counts, strict=True):
        assert 1 <= n <= sum(plan.shards[i].utterances for i in window)


@settings(max_examples=80)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=80), st.data())
def test_partition_puts_every_item_into_one_batch_and_leaves_none_empty(lengths, data):
    lengths = np.array(lengths)
    batches = data.draw(st.integers(1, len(lengths)))
    groups = partition(lengths, batches, np.random.default_rng(0))
    assert len(groups) == batches
    assert min(len(group) for group in groups) > 0
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(lengths)))


def test_batches_are_even_and_padding_is_small():
    lengths = np.random.default_rng(1).integers(20, 500, 4000)
    groups = partition(lengths, 400, np.random.default_rng(0))
    frames = np.array([lengths[group].sum() for group in groups])
    padded = np.array([lengths[group].max() * len(group) for group in groups])
    assert frames.std() < 0.12 * frames.mean()
    assert 1 - frames.sum() / padded.sum() < 0.03
    assert np.corrcoef([lengths[group].mean() for group in groups], range(400))[0, 1] < 0.2  # shuffled, not sorted


@given(st.lists(st.integers(0, 100), max_size=20), st.integers(0, 40))
def test_chunks_cover_each_utterance_exactly(lengths, chunk):
    pieces = cut(np.array(lengths, dtype=np.int64), chunk)
    covered = [[] for _ in lengths]
    for utterance, start, length in zip(pieces.utterance, pieces.start, pieces.length, strict=True):
        assert 1 <= length <= (chunk or 100)
        covered[utterance] += range(start, start + length)
    assert covered == [list(range(length)) for length in lengths]


def test_epochs_and_seeds_differ_and_repeat():
    shards = [ShardSize(10, 5000)] * 50

    def windows(seed, epoch):
        return EpochPlan(shards, seed, epoch, 1000).windows

    assert windows(1, 0) == windows(1, 0)
    assert windows(1, 0) != windows(1, 1)
    assert windows(1, 0) != windows(2, 0)


def test_a_million_hours_are_planned_and_resumed_at_once():
    plan = EpochPlan([ShardSize(5000, 1_800_000)] * 200_000, seed=1, epoch=0, batch_frames=100_000)
    window, within, batches = plan.locate(len(plan) - 1)
    assert len(plan) == 3_600_000
    assert (window, within) == (24_999, batches - 1)


def test_workers_meet_windows_of_their_own_when_there_is_a_lane_for_each():
    shards = [ShardSize(100, int(n)) for n in np.random.default_rng(0).integers(90_000, 110_000, 400)]
    plan = EpochPlan(shards, seed=1, epoch=0, batch_frames=4000, window_shards=4, lanes=8)
    places = [plan.locate(batch)[0] for batch in range(len(plan))]
    for workers in (2, 4, 8):
        met = [set(places[rank::workers]) for rank in range(workers)]
        assert sum(map(len, met)) == len(plan.windows)
    frames = np.array(
        [sum(plan.shards[i].frames for i in plan.windows[w]) / n for w, _, n in map(plan.locate, range(len(plan)))]
    )
    assert 0.95 * 4000 < frames.min() <= frames.max() < 1.05 * 4000


def test_positions_outside_the_epoch_are_errors():
    plan = EpochPlan([ShardSize(3, 300)], 1, 0, 100)
    for batch in (-1, len(plan)):
        with pytest.raises(IndexError):
            plan.locate(batch)
    with pytest.raises(ValueError, match="batches"):
        partition(np.array([5]), 2, np.random.default_rng(0))
