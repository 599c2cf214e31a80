"""The queue of the accelerator service: which sequences share a batch, whose turn it is, and who must wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from megahour.serve.batcher import MAX_PASSED, PATIENCE, Batcher, Pending, RequestBatch
from megahour.serve.metrics import ServiceMeter
from megahour.serve.spec import AcceleratorError, ModelSpec
from megahour.serve.wire import Keyed

EXACT = ModelSpec("m:f", max_batch_frames=64, exact_rows=8)  # eight rows of a length up to 8
FREE = ModelSpec("m:f", max_batch_frames=64, exact=False)


class Client:
    def deliver(self, items: Sequence[Pending], reply: pa.RecordBatch, layout: bytes) -> None: ...


ANN, BOB = Client(), Client()


def batcher(spec: ModelSpec = EXACT, *, wait_s: float = 0.0, queue_frames: int = 10_000) -> Batcher:
    return Batcher(spec, wait_s, queue_frames, ServiceMeter())


def admit(queue: Batcher, lengths: Sequence[int], first_key: int = 0, owner: Client = ANN, dim: int = 2) -> None:
    for place, frames in enumerate(lengths):
        queue.admit(Pending(Keyed(first_key + place, np.zeros((frames, dim), np.float32)), owner))


def keys(batch: RequestBatch | None) -> list[int]:
    assert batch is not None
    return [item.sequence.key for item in batch.items]


def test_a_full_batch_goes_first_and_of_two_the_one_that_waits_longer() -> None:
    queue = batcher(wait_s=60.0)
    admit(queue, [4] * 8, first_key=10)
    admit(queue, [6] * 9, first_key=20)
    assert keys(queue.next_batch()) == list(range(10, 18))
    assert keys(queue.next_batch()) == list(range(20, 28))
    assert queue.spare_batch() is None  # one is left, with a minute to find company


def test_features_of_another_size_or_type_are_another_batch() -> None:
    queue = batcher()
    admit(queue, [4] * 3)
    admit(queue, [4] * 2, first_key=10, dim=3)
    queue.admit(Pending(Keyed(20, np.zeros((4, 2), np.float16)), ANN))
    assert [keys(queue.next_batch()) for _ in range(3)] == [[0, 1, 2], [10, 11], [20]]


def test_an_idle_worker_takes_the_fullest_when_nobody_came_for_a_while() -> None:
    queue, started = batcher(wait_s=0.05), time.monotonic()
    admit(queue, [4] * 2)
    admit(queue, [6] * 3, first_key=10)
    assert keys(queue.next_batch()) == [10, 11, 12]
    assert time.monotonic() - started >= 0.05
    assert queue.meter.snapshot()["queue_wait_p50_s"] >= 0.04


def test_an_idle_worker_does_not_wait_for_ever_while_others_come() -> None:
    queue, ended, came = batcher(wait_s=0.05), threading.Event(), list[int]()

    def come() -> None:
        while len(came) < 100 * PATIENCE and not ended.wait(0.03):
            came.append(len(came))
            admit(queue, [4], first_key=len(came), dim=len(came))  # a size each: no batch is ever full

    thread = threading.Thread(target=come)
    thread.start()
    try:
        assert queue.next_batch() is not None
        assert len(came) < 100 * PATIENCE
    finally:
        ended.set()
        thread.join()


def test_a_busy_worker_gets_an_unfinished_batch_only_when_nobody_can_fill_it() -> None:
    queue = batcher()
    admit(queue, [4] * 2)
    with queue.sender():
        with queue.sender():
            assert queue.spare_batch() is None
        assert queue.spare_batch() is None
        admit(queue, [4] * 6, first_key=2)
        assert keys(queue.spare_batch()) == list(range(8))
        admit(queue, [4], first_key=9)
    assert keys(queue.spare_batch()) == [9]
    assert queue.spare_batch() is None


def test_a_batch_that_lost_its_worker_goes_before_all_others_as_it_was() -> None:
    queue = batcher()
    admit(queue, [4] * 8)
    lost = queue.next_batch()
    assert lost is not None
    admit(queue, [4] * 8, first_key=10)
    assert queue.retry(lost)
    assert queue.spare_batch() is None  # a busy worker leaves it to an idle one
    assert queue.next_batch() is lost
    assert keys(queue.next_batch()) == list(range(10, 18))


def test_a_rare_length_has_its_turn_after_enough_others() -> None:
    queue = batcher(wait_s=60.0)
    admit(queue, [3], first_key=-1)
    for number in range(MAX_PASSED):
        admit(queue, [4] * 8, first_key=8 * number)
        assert keys(queue.next_batch())[0] == 8 * number
    admit(queue, [4] * 8)
    assert keys(queue.next_batch()) == [-1]


def test_without_exactness_shorter_sequences_fill_a_batch_up() -> None:
    queue = batcher(FREE)
    admit(queue, [8] * 3)
    admit(queue, [2] * 2, first_key=10)
    admit(queue, [6] * 2, first_key=20)
    admit(queue, [7] * 2, first_key=30, dim=3)  # not these, of another size
    admit(queue, [9], first_key=40)  # nor this longer one
    assert keys(queue.next_batch()) == [0, 1, 2, 20, 21, 10, 11]  # eight rows of 8 fit
    assert len(keys(queue.next_batch())) == 2
    queue = batcher(FREE)
    admit(queue, [8] * 7)
    admit(queue, [6] * 3, first_key=20)
    assert keys(queue.next_batch()) == [0, 1, 2, 3, 4, 5, 6, 20]
    assert keys(queue.next_batch()) == [21, 22]


def test_producers_wait_for_room_and_come_in_their_order() -> None:
    queue, came = batcher(queue_frames=20), list[int]()
    admit(queue, [12, 8])
    assert queue.waiting_frames == 20
    assert queue.meter.snapshot()["queue_frames_peak"] == 20

    def produce(key: int, frames: int) -> None:
        admit(queue, [frames], first_key=key)
        came.append(key)

    threads = []
    for key, frames in ((1, 15), (2, 3)):
        threads.append(threading.Thread(target=produce, args=(key, frames)))
        threads[-1].start()
        until(lambda: len(queue._turns) == len(threads))
    queue.release(12)  # the second would fit now, but the first is before it
    time.sleep(0.05)
    assert came == []
    queue.release(8)
    for thread in threads:
        thread.join()
    assert sorted(came) == [1, 2]
    assert queue.waiting_frames == 18


def until(holds: object) -> None:
    deadline = time.monotonic() + 120
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_fits_no_batch_or_no_queue_is_refused() -> None:
    admit(batcher(), [64])
    with pytest.raises(AcceleratorError, match=r"65 frames are more than a batch may hold \(64\)"):
        admit(batcher(), [65])
    admit(batcher(queue_frames=10), [10])
    with pytest.raises(AcceleratorError, match=r"11 frames are more than a batch may hold \(10\)"):
        admit(batcher(queue_frames=10), [11])


def test_a_client_that_went_away_leaves_its_room_and_not_the_others() -> None:
    queue = batcher(queue_frames=20)
    admit(queue, [4, 4], owner=ANN)
    admit(queue, [4], first_key=10, owner=BOB)
    admit(queue, [7], first_key=20, owner=ANN)
    assert queue.forget(ANN) == 3
    assert queue.forget(ANN) == 0
    assert queue.waiting_frames == 4
    assert keys(queue.next_batch()) == [10]
    assert queue.spare_batch() is None


def test_a_closed_queue_gives_back_what_waits_and_takes_nothing_more() -> None:
    queue, found = batcher(queue_frames=40), list[RequestBatch | None]()
    admit(queue, [4] * 8)
    lost = queue.next_batch()
    assert lost is not None
    queue.retry(lost)
    admit(queue, [5], first_key=10)
    assert not queue.closed
    assert [item.sequence.key for item in queue.close("going home")] == [10, *range(8)]
    assert queue.closed
    assert queue.next_batch() is None
    assert not queue.retry(lost)
    assert queue.close("again") == []
    with pytest.raises(AcceleratorError, match="going home"):
        admit(queue, [3])
    idle = batcher()
    thread = threading.Thread(target=lambda: found.append(idle.next_batch()))
    thread.start()
    time.sleep(0.05)
    idle.close("done")
    thread.join()
    assert found == [None]
