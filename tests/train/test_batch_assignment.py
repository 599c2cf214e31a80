"""Each batch is taken once, by any worker, and a checkpoint is between the same two batches for all workers."""

from __future__ import annotations

import functools
import itertools
import operator
import threading
import time
from collections import defaultdict
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

from megahour.sync.group import virtual
from megahour.sync.group.base import Group
from megahour.train.batch_assignment import FirstCome, InTurn, Marks, claim_of


class Alone:
    """A group as `InTurn` sees it."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def taken_in_turn(size: int, at: int, total: int, each: int = 1) -> list[int]:
    found: list[int] = []
    for rank in range(size):
        claims = InTurn(Alone(rank, size), at, total, each)  # type: ignore[arg-type]
        while (claim := claims.take()) is not None:
            found += claim.own
    return sorted(found)


@given(st.integers(1, 9), st.integers(0, 40), st.integers(1, 40), st.integers(1, 3))
def test_in_turn_every_batch_is_taken_once(size: int, at: int, more: int, each: int) -> None:
    assert taken_in_turn(size, at, at + more, each) == list(range(at, at + more))


def test_a_step_of_several_batches_ends_where_those_of_all_workers_do() -> None:
    claims = InTurn(Alone(1, 2), 0, 9, each=2)  # type: ignore[arg-type]
    taken = [claims.take(), claims.take(), claims.take()]
    assert [(c.first, c.last, list(c.own)) for c in taken if c] == [(0, 4, [1, 3]), (4, 8, [5, 7]), (8, 9, [])]


def test_a_change_of_workers_at_any_step_neither_repeats_nor_skips() -> None:
    first = [number for start in range(0, 40, 4) for rank in range(4) for number in claim_of(start, 4, rank, 103).own]
    assert sorted([*first, *taken_in_turn(3, 40, 103)]) == list(range(103))


def test_who_does_not_wait_takes_the_next_that_nobody_has() -> None:
    store = HashStore()
    taken: dict[int, list[int]] = defaultdict(list)
    others: list[threading.Thread] = []

    def work(rank: int) -> None:
        claims = FirstCome(store, None, at=10, total=70)
        while (claim := claims.take()) is not None:
            taken[rank] += claim.own
            time.sleep(0.001)
            if rank == 0 and not others:
                others.extend(threading.Thread(target=work, args=(rank,)) for rank in (1, 2))
                for thread in others:
                    thread.start()
                for thread in others:
                    thread.join()

    work(0)
    assert sorted(functools.reduce(operator.iadd, taken.values(), [])) == list(range(10, 70))
    assert taken[0] == [10], "the slow worker takes fewer"


def test_workers_of_a_node_take_theirs_together() -> None:
    store = HashStore()

    def work(group: Group) -> list[int]:
        node = group.split([[0, 1], [2, 3]])
        claims, found = FirstCome(store, node, at=0, total=21), []
        while (claim := claims.take()) is not None:
            assert claim.first % 2 == 0
            found += claim.own
        return found

    assert sorted(functools.reduce(operator.iadd, virtual.run(work, 4), [])) == list(range(21))


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(20, 60), st.randoms(use_true_random=False))
def test_a_checkpoint_holds_all_batches_before_its_mark_and_none_after(workers: int, total: int, moments) -> None:
    """Threads that are as slow as chance wants; each notes what it had done when it passed a mark."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=240))
    at_mark: dict[int, list[int]] = defaultdict(list)
    passed: dict[int, list[int]] = defaultdict(list)
    pauses_s = [moments.choice([0.0, 0.0002, 0.001]) for _ in range(workers)]

    def work(rank: int) -> None:
        claims, marks, done = FirstCome(store, None, 0, total), Marks(store, 0, interval_s=0.002), []
        while True:
            claim = claims.take()
            while (mark := marks.due(claim)) is not None and mark.batch < total:
                passed[rank].append(mark.batch)
                at_mark[mark.batch] += done
                assert mark.save
                assert all(batch < mark.batch for batch in done)
            if claim is None:
                return
            done.append(claim.first)
            time.sleep(pauses_s[rank])

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tuple(marks) for marks in passed.values()}) == 1, "all pass the same marks"
    for mark, done in at_mark.items():
        assert sorted(done) == list(range(mark))


def marked(interval_s: float, unit: int, at: int = 0, total: int = 40) -> tuple[list[int], list[int]]:
    """All marks, and those where checkpoints are saved."""
    claims, marks = InTurn(Alone(0, unit), at, total), Marks(None, at, interval_s, unit)  # type: ignore[arg-type]
    found = []
    while (claim := claims.take()) is not None:
        found += [mark] if (mark := marks.due(claim)) is not None else []
    return [mark.batch for mark in found], [mark.batch for mark in found if mark.save]


def test_marks_are_after_every_step_or_further_apart_by_twice_at_most() -> None:
    """The first comes soon, so that the pace is known; with no interval there is one a step, made by all together."""
    assert marked(0.0, 1, at=5, total=10) == ([6, 7, 8, 9], [6, 7, 8, 9])
    assert marked(0.0, 4, total=20) == ([4, 8, 12, 16], [4, 8, 12, 16])
    assert marked(1e9, 1) == ([1, 3, 7, 15, 31], [1])
    assert marked(1e9, 3) == ([3, 9, 21], [3])


def test_marks_follow_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("megahour.train.batch_assignment.time.monotonic", lambda: now_s[0])
    claims, marks, found = InTurn(Alone(0, 1), 0, 4000), Marks(None, 0, interval_s=10.0), []  # type: ignore[arg-type]
    while (claim := claims.take()) is not None:
        if (mark := marks.due(claim)) is not None and mark.save:
            found.append(now_s[0])
        now_s[0] += 0.1 if claim.first < 2000 else 0.3  # whole utterances take longer than chunks
    steady = [after - before for before, after in itertools.pairwise(found) if before > 25]
    assert max(steady) <= 3 * 10.5, "the pace changed once within an interval"
    assert steady[-1] == pytest.approx(10.0, rel=0.05)


def test_a_requested_checkpoint_comes_at_the_next_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks are ten seconds apart, however rare checkpoints are."""
    now_s, requests = [0.0], [95.0, 250.0]
    monkeypatch.setattr("megahour.train.batch_assignment.time.monotonic", lambda: now_s[0])

    def requested() -> bool:
        return bool(requests) and now_s[0] >= requests[0] and bool(requests.pop(0))

    claims, saved = InTurn(Alone(0, 1), 0, 4000), []  # type: ignore[arg-type]
    marks = Marks(None, 0, 300.0, requested=requested)
    while (claim := claims.take()) is not None:
        if (mark := marks.due(claim)) is not None and mark.save:
            saved.append(now_s[0])
        now_s[0] += 0.2
    assert saved[0] == pytest.approx(0.2)
    assert 95 <= saved[1] <= 105.5
    assert 250 <= saved[2] <= 260.5
    assert [after - before for before, after in itertools.pairwise(saved[2:])] == [pytest.approx(300.0, abs=6.0)]
