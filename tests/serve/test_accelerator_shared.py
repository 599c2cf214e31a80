"""Features of clients on the service's host travel in shared memory: the same results, and nobody else's memory."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.flight as flight
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megahour.serve import call, endpoint, wire
from megahour.serve.batcher import Batcher, Pending
from megahour.serve.client import client
from megahour.serve.endpoint import Stream
from megahour.serve.local import serve_in_process
from megahour.serve.metrics import ServiceMeter
from megahour.serve.segment import (
    ALIGNMENT_BYTES,
    NONCE_BYTES,
    SEGMENT_BYTES,
    Extents,
    Handle,
    Segment,
    Segments,
    SharedWindow,
    decode_handle,
)
from megahour.serve.server import Service, serve
from megahour.serve.spec import ModelSpec
from megahour.serve.wire import Keyed, SegmentPlace

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux has sealed files in memory")

SUMS = ModelSpec("accelerator_models:sums", max_batch_frames=2048)
LSTM = ModelSpec("accelerator_models:lstm", {"features": 24, "units": 16, "outputs": 5}, max_batch_frames=1024)
Items = list[tuple[int, np.ndarray]]


def sequences(n: int, dim: int, *, dtype: type = np.float32, longest: int = 90) -> Items:
    rng = np.random.default_rng(n)
    return [(i, rng.standard_normal((t, dim)).astype(dtype)) for i, t in enumerate(rng.integers(1, longest, n))]


def as_bytes(results: Iterator[tuple[int, dict[str, np.ndarray]]]) -> dict[int, bytes]:
    return {key: b"".join(array.tobytes() for array in outputs.values()) for key, outputs in results}


def until(condition, *, seconds: float = 120.0) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serve(SUMS) as running:
        yield running


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of this process ask for shared memory with their first sequence."""
    monkeypatch.setattr(call, "SHARE_AFTER_BYTES", 0)
    monkeypatch.setattr(call, "SHARE_TIMEOUT_S", 240.0)


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segments().make(1 << 16)
    assert made is not None
    yield made
    made.close()


# -- results ---------------------------------------------------------------------------------------------------------


def test_shared_memory_changes_no_byte(soon: None) -> None:
    halves, singles = sequences(60, 24, dtype=np.float16), sequences(50, 24, dtype=np.float32)
    with serve(LSTM) as service, client(service.endpoint) as c:
        results = c.infer(halves)
        first = next(results)
        assert service.segments.n_bytes > 0
        shared = as_bytes(iter([first, *results])), as_bytes(c.infer(singles))
        assert service.segments.n_bytes == 0
        assert c.metrics()["shared"] == 108  # all but the first sequence of each call
    with serve(LSTM, shared_bytes=0) as service, client(service.endpoint) as c:
        assert (as_bytes(c.infer(halves)), as_bytes(c.infer(singles))) == shared
        assert c.metrics()["shared"] == 0
    with serve_in_process(LSTM) as session:
        assert (as_bytes(session.infer(halves)), as_bytes(session.infer(singles))) == shared


def test_what_finds_no_room_travels_in_messages(soon: None, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    items = sequences(300, 16)
    with client(service.endpoint) as c:
        plenty = as_bytes(c.infer(items))
        before = c.metrics()["shared"]
        monkeypatch.setattr(call, "SEGMENT_BYTES", 20_000)  # three or four sequences
        assert as_bytes(c.infer(items)) == plenty
        assert 3 <= c.metrics()["shared"] - before < 300


def test_a_producer_may_use_its_array_again(soon: None, service: Service) -> None:
    """The first sequence travels in a message, the others in shared memory."""
    scratch = np.empty((40, 4), np.float32)

    def produce() -> Iterator[tuple[int, np.ndarray]]:
        for key in range(50):
            scratch[:] = 100 + key
            yield key, scratch

    with client(service.endpoint) as c:
        found = {key: outputs["sums"][0, 0] for key, outputs in c.infer(produce())}
    assert found == {key: 100 + key for key in range(50)}


def test_a_short_call_asks_for_no_memory(service: Service) -> None:
    with client(service.endpoint) as c:
        results = c.infer(sequences(100, 16))
        next(results)
        assert service.segments.n_bytes == 0
        assert len(list(results)) == 99


def test_a_killed_worker_costs_a_retry_and_nothing_else(soon: None) -> None:
    items = sequences(200, 16)
    with serve(replace(SUMS, arguments={"seconds": 0.02})) as service, client(service.endpoint) as c:
        results = {}
        for n, (key, outputs) in enumerate(c.infer(items, window_frames=4000)):
            results[key] = outputs["sums"]
            if n == 30:
                os.kill(service.workers[0].pid, signal.SIGKILL)
        assert c.metrics()["worker_deaths"] == 1
    assert sorted(results) == [key for key, _ in items]
    for key, features in items:
        np.testing.assert_array_equal(results[key], np.cumsum(features, axis=0, dtype=np.float64)[::2])


# -- whose memory, and for how long ----------------------------------------------------------------------------------


def test_memory_is_free_once_a_call_is_given_up(soon: None, service: Service) -> None:
    with client(service.endpoint) as c:
        results = c.infer(sequences(200, 16), window_frames=2000)
        next(results)
        assert service.segments.n_bytes > 0
        results.close()
        until(lambda: service.segments.n_bytes == 0)


def test_memory_is_free_once_a_client_is_killed(service: Service) -> None:
    code = (
        "import os, sys, numpy as np\n"
        "from megahour.serve.client import client\n"
        "with client(sys.argv[1], os.environ['TOKEN']) as c:\n"
        "    for _ in c.infer((i, np.ones((64, 16), np.float32)) for i in range(10**9)):\n"
        "        pass\n"
    )
    command = [sys.executable, "-c", code, service.address]
    with subprocess.Popen(command, env={**os.environ, "TOKEN": service.token}) as process:
        until(lambda: service.segments.n_bytes > 0)
        process.kill()
    until(lambda: service.segments.n_bytes == 0)


def test_a_client_can_neither_shrink_nor_grow_a_segment(segment: Segment) -> None:
    number = os.open(segment.handle.path, os.O_RDWR)
    for n_bytes in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(number, n_bytes)
    os.close(number)


def test_segments_stay_within_their_bound() -> None:
    segments = Segments(100_000)
    one = segments.make(60_000)
    assert one is not None
    assert segments.make(60_000) is None
    one.close()
    assert segments.n_bytes == 0
    assert segments.make(0) is segments.make(NONCE_BYTES) is None
    assert Segments(1 << 62).make(SEGMENT_BYTES + 1) is None


def test_only_the_right_file_is_attached(segment: Segment, tmp_path: Path) -> None:
    """Elsewhere, /proc/<pid>/fd/<n> is missing, or another file, or a pipe."""
    handle = segment.handle
    assert SharedWindow.attach(handle) is not None
    assert SharedWindow.attach(replace(handle, nonce="00" * NONCE_BYTES)) is None
    assert SharedWindow.attach(replace(handle, n_bytes=handle.n_bytes * 2)) is None
    assert SharedWindow.attach(replace(handle, number=1 << 20)) is None
    reading, writing = os.pipe()
    assert SharedWindow.attach(replace(handle, number=reading)) is None
    (tmp_path / "other").write_bytes(b"other")
    with (tmp_path / "other").open("rb+") as other:
        assert SharedWindow.attach(Handle(os.getpid(), other.fileno(), 5, handle.nonce)) is None
    os.close(reading)
    os.close(writing)


def raw_call(service: Service, messages: list[bytes]) -> list[bytes]:
    """What the service tells a client that writes its own messages, until the call ends."""
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {service.token}".encode())])
    with flight.connect(service.address) as raw:
        writer, reader = raw.do_exchange(flight.FlightDescriptor.for_command(b"infer"), options)
        writer.begin(wire.request_schema(np.dtype(np.float32)))
        for message in messages:
            writer.write_metadata(message)
        writer.done_writing()
        return [chunk.app_metadata.to_pybytes() for chunk in reader]


ASK = wire.encode_ask(8192)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (
            [ASK, wire.encode_places([SegmentPlace(1, 8192 - 64, 17, 1, 4)])],
            "sequence 1: bytes 8128 to 8196 are not within",
        ),
        ([ASK, wire.encode_places([SegmentPlace(1, 64, 2**31 - 1, 2**31 - 1, 4)])], "sequence 1: bytes 64 to"),
        ([ASK, wire.encode_places([SegmentPlace(1, 2**62, 1, 1, 4)])], "are not within the 8192 bytes"),
        ([ASK, wire.encode_places([SegmentPlace(1, -64, 1, 1, 4)])], "are not within"),
        ([ASK, wire.encode_places([SegmentPlace(1, 0, 1, 1, 4)])], "are not within"),  # the nonce
        ([ASK, wire.encode_places([SegmentPlace(1, 65, 1, 1, 2)])], "are not within"),  # not aligned
        ([ASK, wire.encode_places([SegmentPlace(1, 64, 0, 1, 4)])], "0 x 1 values of 4 bytes"),
        ([ASK, wire.encode_places([SegmentPlace(1, 64, 1, -1, 4)])], "1 x -1 values of 4 bytes"),
        ([ASK, wire.encode_places([SegmentPlace(1, 64, 1, 1, 8)])], "1 x 1 values of 8 bytes"),
        ([ASK, ASK], "the call already has a segment"),
        ([wire.encode_places([SegmentPlace(1, 64, 1, 1, 4)])], "has no segment"),
        ([ASK, wire.encode_places([SegmentPlace(1, 64, 1, 1, 4)])[:-1]], "a message of 31 bytes is neither"),
        ([wire.ASK + b"-1"], "a message of 6 bytes is neither"),
        ([b"garbage"], "a message of 7 bytes is neither"),
    ],
)
def test_places_outside_of_the_segment_are_refused(service: Service, messages: list[bytes], reason: str) -> None:
    with pytest.raises(flight.FlightServerError, match=reason):
        raw_call(service, messages)
    assert service.segments.n_bytes == 0
    with client(service.endpoint) as c:
        assert len(list(c.infer(sequences(5, 3)))) == 5


def test_a_wish_that_cannot_be_granted_is_answered(service: Service) -> None:
    (answer,) = raw_call(service, [wire.encode_ask(10**18)])
    assert decode_handle(answer) is None


# -- parts -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 3000), st.booleans()), max_size=60), st.integers(0, 100))
def test_extents_do_not_overlap_and_come_back_whole(steps: list[tuple[int, bool]], start: int) -> None:
    end = 16_384
    extents = Extents(start, end)
    taken: dict[int, int] = {}
    for n_bytes, give in steps:
        if give and taken:
            offset = sorted(taken)[n_bytes % len(taken)]
            del taken[offset]
            extents.give(offset)
        elif (offset := extents.take(n_bytes)) is not None:
            assert offset % ALIGNMENT_BYTES == 0
            assert start <= offset <= offset + n_bytes <= end
            assert all(offset + n_bytes <= other or other + size <= offset for other, size in taken.items())
            taken[offset] = n_bytes
    for offset in taken:
        extents.give(offset)
    first = -(-start // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    assert extents.take(end - first) == first
    with pytest.raises(KeyError):
        extents.give(first + 1)


def test_a_window_takes_back_what_is_answered(segment: Segment) -> None:
    window = SharedWindow.attach(segment.handle)
    assert window is not None
    large = Keyed(1, np.arange(10_000, dtype=np.float32).reshape(100, 100))
    place = window.put(large)
    assert place is not None
    assert window.put(Keyed(2, large.features)) is None
    (placed,) = segment.placed([place])
    assert (placed.key, placed.frames, placed.dim, placed.dtype) == (1, 100, 100, np.dtype(np.float32))
    window.free(2)
    window.free(1)
    assert window.put(Keyed(2, large.features.T)) == place._replace(key=2)


def test_clients_and_workers_do_not_import_pandas() -> None:
    """It would cost each process of a run half a second (`wire.numbers`)."""
    code = (
        "import sys, numpy as np\n"
        "from megahour.serve import wire\n"
        "request = wire.encode_request([wire.Keyed(1, np.ones((3, 2), np.float16))])\n"
        "(found,) = wire.decode_request(wire.from_bytes(wire.to_bytes(request)))\n"
        "reply, layout = wire.encode_reply([1], [{'sums': found.features}])\n"
        "((key, outputs),) = wire.decode_reply(wire.merge_replies([reply]), layout)\n"
        "assert key == 1 and outputs['sums'].tolist() == [[1, 1]] * 3\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- who waits for whom ----------------------------------------------------------------------------------------------


def pending(frames: int) -> Pending:
    return Pending(Keyed(frames, np.zeros((frames, 1), np.float32)), Stream(Batcher(SUMS, 0.0, 1, ServiceMeter())))


def test_producers_are_admitted_in_the_order_in_which_they_came() -> None:
    """A short sequence does not overtake a long one that waits for room."""
    batcher = Batcher(SUMS, 0.0, 10, ServiceMeter())
    batcher.admit(pending(10))
    order: list[int] = []

    def admit(frames: int) -> None:
        batcher.admit(pending(frames))
        order.append(frames)

    threads = [threading.Thread(target=admit, args=(frames,)) for frames in (8, 1)]
    for waiting, thread in enumerate(threads, 1):
        thread.start()
        until(lambda waiting=waiting: len(batcher._turns) == waiting)
    batcher.release(1)
    assert not order
    batcher.release(7)
    until(lambda: order == [8])
    assert batcher.waiting_frames == 10
    batcher.release(1)
    until(lambda: order == [8, 1])


def test_an_unfinished_batch_goes_ahead_only_when_nobody_can_fill_it() -> None:
    batcher = Batcher(SUMS, 0.0, 100, ServiceMeter())
    with batcher.sender():
        batcher.admit(pending(5))
        assert batcher.spare_batch() is None
    batch = batcher.spare_batch()
    assert batch is not None
    assert [item.frames for item in batch.items] == [5]
    assert batcher.spare_batch() is None


def test_held_replies_leave_before_the_client_runs_dry(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long replies may be held: a lone sequence, and the last ones, are answered at once."""
    monkeypatch.setattr(endpoint, "HELD_S", 1000.0)
    with serve(SUMS) as service, client(service.endpoint) as c:
        assert len(list(c.infer(sequences(1, 3)))) == 1
        assert len(list(c.infer(sequences(500, 3), window_frames=2000))) == 500
