"""Batches made ahead: the same, in the same order, bounded in memory; errors and ends as without."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from made_artifacts import MELS, features_artifact, units_artifact, utterances

from megahour.batches.ahead import Ahead, Request
from megahour.batches.augment import Augment
from megahour.batches.in_order import in_order
from megahour.batches.index import shelves
from megahour.batches.labels import SenoneLabels
from megahour.batches.loader import Loader
from megahour.batches.window import Front
from megahour.core.errors import StoreError
from megahour.core.store import Artifact

FRONT = Front(3, np.full(MELS, 0.5, np.float32), np.full(MELS, 2.0, np.float32))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, SenoneLabels]:
    folder, made = tmp_path_factory.mktemp("data"), utterances(60)
    features = features_artifact(folder / "features", [("labelled", made[i : i + 10]) for i in range(0, 60, 10)])
    return features, SenoneLabels(units_artifact(folder / "units", made), 3)


def loader_of(inputs: tuple[Artifact, SenoneLabels], lanes: int = 1) -> Loader:
    features, labels = inputs
    return Loader(
        features,
        shelves(features, ["labelled"], labels, 3),
        labels,
        FRONT,
        seed=1,
        batch_frames=60,
        window_shards=2,
        lanes=lanes,
        augment=Augment(1, 4, 1, 2, 0.1, 0.5),
        open_windows=lanes + 1,
    )


def schedule(loader: Loader, number: int) -> Request:
    """Epochs in turn of chunks and of whole utterances."""
    epoch, batch = divmod(number, len(loader.plan(0)))
    return Request(loader, epoch, batch, epoch % 3, 7 * (epoch % 2))


def watched(loader: Loader) -> list[tuple[int, int]]:
    """(epoch, number) of the windows that the loader opens from now on."""
    opened: list[tuple[int, int]] = []
    real = loader._open
    loader._open = lambda plan, index, *rest: (opened.append((plan.epoch, index)), real(plan, index, *rest))[1]
    return opened


def until(condition) -> None:
    deadline_s = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.001)


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("prefetch", [1, 2, 9])
def test_batches_made_ahead_are_equal_bit_for_bit_from_wherever_one_begins(inputs, prefetch: int, lanes: int) -> None:
    alone, loader = loader_of(inputs, lanes), loader_of(inputs, lanes)
    total = 3 * len(loader.plan(0))
    for rank, size in ((0, 1), (1, 3), (total - 2, 1)):
        numbers = range(rank, total, size)
        with Ahead(lambda n: schedule(loader, n), prefetch=prefetch, numbers=numbers) as ahead:
            for number in numbers:
                batch, expected = ahead.batch(number), schedule(alone, number).batch()
                assert batch.keys == expected.keys
                assert batch.features.tobytes() == expected.features.tobytes()
                assert batch.lengths.tolist() == expected.lengths.tolist()
                assert batch.targets["labels"].tobytes() == expected.targets["labels"].tobytes()


def test_as_many_batches_wait_as_are_asked_for_and_no_more(inputs) -> None:
    loader, made = loader_of(inputs), []
    real = loader.batch
    loader.batch = lambda *a, **k: (made.append(a[1]), real(*a, **k))[1]
    with Ahead(lambda n: schedule(loader, n), prefetch=3, numbers=range(len(loader.plan(0)))) as ahead:
        for number in range(4):
            ahead.batch(number)
            until(lambda: len(made) >= number + 4)  # noqa: B023
            time.sleep(0.02)
            assert sorted(made) == list(range(number + 4))  # this one, and three that wait


def test_without_prefetch_nothing_is_made_before_it_is_asked_for(inputs) -> None:
    loader = loader_of(inputs)
    opened, before = watched(loader), set(threading.enumerate())
    with Ahead(lambda n: schedule(loader, n), prefetch=0, numbers=range(9)) as ahead:
        assert not opened
        ahead.batch(0)
        assert len(opened) == 1
        assert not [t for t in set(threading.enumerate()) - before if "window" in t.name]


@pytest.mark.parametrize("known", [True, False])
def test_the_next_window_is_opened_while_one_is_in_use_and_each_once(inputs, known: bool) -> None:
    loader = loader_of(inputs)
    opened, total = watched(loader), 2 * len(loader.plan(0))
    order = list(dict.fromkeys(schedule(loader, n).window for n in range(total)))
    numbers = {"numbers": range(total)} if known else {"following": lambda n: range(n + 1, total)}
    with Ahead(lambda n: schedule(loader, n), prefetch=1, **numbers) as ahead:
        for number in range(total):
            ahead.batch(number)
            current = order.index(schedule(loader, min(number + known, total - 1)).window)
            until(lambda: len(opened) >= min(current + 2, len(order)))  # noqa: B023
            assert len(opened) == min(current + 2, len(order)), number
    assert opened == [(epoch, index) for _, epoch, index, *_ in order]


def test_an_error_of_a_thread_is_raised_where_its_batch_would_be(inputs, tmp_path: Path) -> None:
    made = utterances(60)
    features = features_artifact(tmp_path, [("labelled", made[i : i + 10]) for i in range(0, 60, 10)])
    loader = loader_of((features, inputs[1]))
    last = loader.plan(0).windows[-1]
    path = Path(features.shard_path(last[0], ".arrow"))
    path.rename(path.with_suffix(".away"))
    total = len(loader.plan(0))
    good = [n for n in range(total) if loader.plan(0).locate(n)[0] < 2]
    before = set(threading.enumerate())
    with Ahead(lambda n: schedule(loader, n), prefetch=4, numbers=range(total)) as ahead:
        for number in good:
            ahead.batch(number)
        with pytest.raises(StoreError, match=f"shard {last[0]}"):
            ahead.batch(good[-1] + 1)
    until(lambda: set(threading.enumerate()) <= before)  # none is left
    path.with_suffix(".away").rename(path)
    assert schedule(loader, good[-1] + 1).batch().keys  # the error is not kept


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Restores SIGINT, which children of a shell's `&` ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("wakes", [True, False])
def test_an_interrupt_does_not_wait_for_what_is_being_made(wakes: bool) -> None:
    """Not even one that does not wake the waiting thread, as just before it waits: here another thread gets it."""
    go_on: Future[None] = Future()
    began: list[int] = []
    before, began_s = set(threading.enumerate()), time.monotonic()

    def interrupt() -> None:
        until(lambda: len(began) == 2)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.kill(os.getpid(), signal.SIGINT)

    def interrupted(results: Iterator[object]) -> object:
        if not wakes:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        threading.Thread(target=interrupt).start()
        return next(results)

    with (
        in_order(lambda i: (began.append(i), go_on.result(500)), range(9), threads=2, ahead=4) as results,
        pytest.raises(KeyboardInterrupt),
    ):
        interrupted(results)
    assert time.monotonic() - began_s < 450
    go_on.set_result(None)
    until(lambda: set(threading.enumerate()) <= before)
    assert sorted(began) == [0, 1]  # what waited for a thread never began


def test_another_batch_than_the_next_is_refused(inputs) -> None:
    loader = loader_of(inputs)
    with Ahead(lambda n: schedule(loader, n), prefetch=2, numbers=range(9)) as ahead:
        ahead.batch(0)
        with pytest.raises(ValueError, match="batch 2 is asked for, 1 is the next"):
            ahead.batch(2)


def test_a_window_that_two_threads_ask_for_is_opened_once(inputs) -> None:
    loader = loader_of(inputs)
    opened = watched(loader)
    with in_order(lambda i: loader.window(0, 0, offset=0), range(8), threads=8, ahead=8) as windows:
        assert len({id(window) for window in windows}) == 1
    assert len(opened) == 1
