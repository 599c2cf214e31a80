"""Length-bucketed dynamic batching across clients, with a bounded queue.

Sequences wait in one bucket per padded length. A worker that asks for work gets, in this order: a batch left by a dead
worker; a bucket passed over `MAX_PASSED` times (so that rare lengths do not starve); a full batch, the longest waiting
first; and, after `max_wait_s` without arrivals while the worker was idle (or `PATIENCE` times as long with arrivals),
the fullest bucket. A busy worker gets its next batch in advance: a full one, or the fullest bucket if no client is left
that could fill it. Frames count from admission until the reply has left for the client: at `queue_frames` producers
block, and are admitted in order of arrival.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from megahour.serve.metrics import ServiceMeter
from megahour.serve.spec import AcceleratorError, ModelSpec, bucket_frames, too_long
from megahour.serve.wire import Keyed, Placed

Shape = tuple[int, int, str]  # padded frames, feature dimension, element type: equal within a batch
MAX_PASSED = 256  # far above the number of buckets: each is passed over until its own turn comes
PATIENCE = 20


class Owner(Protocol):
    """A sequence's client; it gets a reply (see `wire`) with a row per item in a worker's thread. Must not block."""

    def deliver(self, items: Sequence[Pending], reply: pa.RecordBatch, layout: bytes) -> None: ...


@dataclass(eq=False)
class Pending:
    """A sequence on its way through the service."""

    sequence: Keyed | Placed
    owner: Owner
    arrived_s: float = 0.0
    passed: int = 0

    @property
    def frames(self) -> int:
        return self.sequence.frames

    @property
    def shape(self) -> Shape:
        return bucket_frames(self.sequence.frames), self.sequence.dim, self.sequence.dtype.char


@dataclass
class RequestBatch:
    """Sequences of one `Shape`; `attempts` counts the workers that died on it."""

    items: list[Pending]
    attempts: int = 0


@dataclass(eq=False)
class RequestTurn:
    """A producer waiting for room in the queue."""

    frames: int
    changed: threading.Condition
    granted: bool = False


@dataclass
class Batcher:
    """The queue between the clients' threads and the workers' threads."""

    spec: ModelSpec
    max_wait_s: float
    queue_frames: int
    meter: ServiceMeter
    _buckets: dict[Shape, deque[Pending]] = field(default_factory=dict)
    _retries: deque[RequestBatch] = field(default_factory=deque)
    _frames: int = 0
    _last_arrival_s: float = 0.0
    _closed: str = ""
    _turns: deque[RequestTurn] = field(default_factory=deque)
    _senders: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._work = threading.Condition(self._lock)

    def admit(self, pending: Pending) -> None:
        """Queue one sequence; blocks while the queue is full.

        Raises
        ------
        AcceleratorError: the sequence is too long for any batch, or the service is closed.
        """
        if pending.frames > min(self.spec.max_batch_frames, self.queue_frames):
            raise AcceleratorError(too_long(pending.frames, min(self.spec.max_batch_frames, self.queue_frames)))
        with self._lock:
            self._make_room(pending.frames)
            if self._closed:
                raise AcceleratorError(self._closed)
            self.meter.queued(self._frames)
            pending.arrived_s = self._last_arrival_s = time.monotonic()
            self._buckets.setdefault(pending.shape, deque()).append(pending)
            self._work.notify()

    def _make_room(self, frames: int) -> None:
        if not self._turns and self._frames + frames <= self.queue_frames:
            self._frames += frames
            return
        turn = RequestTurn(frames, threading.Condition(self._lock))
        self._turns.append(turn)
        turn.changed.wait_for(lambda: self._closed or turn.granted)

    def _grant(self) -> None:
        """Admit waiting producers in order while there is room."""
        while self._turns and self._frames + self._turns[0].frames <= self.queue_frames:
            turn = self._turns.popleft()
            self._frames += turn.frames
            turn.granted = True
            turn.changed.notify()

    @contextmanager
    def sender(self) -> Iterator[None]:
        """Registers a client that may send more: within the block, partial batches may still fill up."""
        with self._lock:
            self._senders += 1
        try:
            yield
        finally:
            with self._lock:
                self._senders -= 1

    @property
    def waiting_frames(self) -> int:
        """Frames between admission and reply."""
        with self._lock:
            return self._frames

    def release(self, frames: int) -> None:
        """Release frames whose reply has left, or will never be read."""
        with self._lock:
            self._frames -= frames
            self._grant()

    def retry(self, batch: RequestBatch) -> bool:
        """Put a batch back at the front, unchanged, so that it cannot bring down others; False once closed."""
        with self._lock:
            if not self._closed:
                self._retries.append(batch)
                self._work.notify()
            return not self._closed

    def forget(self, owner: Owner) -> int:
        """Drop the queued sequences of a disconnected client; returns their number."""
        dropped = 0
        with self._lock:
            for key in list(self._buckets):
                gone = [item for item in self._buckets[key] if item.owner is owner]
                dropped += len(gone)
                self._frames -= sum(item.frames for item in gone)
                self._buckets[key] = deque(item for item in self._buckets[key] if item.owner is not owner)
                self._drop_if_empty(key)
            self._grant()
        return dropped

    def close(self, reason: str) -> list[Pending]:
        """Refuse new sequences and wake all threads; returns the sequences that were still waiting."""
        with self._lock:
            self._closed = self._closed or reason
            waiting = [item for bucket in self._buckets.values() for item in bucket]
            waiting += [item for batch in self._retries for item in batch.items]
            self._buckets.clear()
            self._retries.clear()
            self._work.notify_all()
            for turn in self._turns:
                turn.changed.notify()
            return waiting

    @property
    def closed(self) -> bool:
        with self._lock:
            return bool(self._closed)

    def spare_batch(self) -> RequestBatch | None:
        """A full batch, or a partial one that no client can fill any more, else None; does not block."""
        with self._lock:
            no_more = not self._senders and time.monotonic() >= self._last_arrival_s + self.max_wait_s
            key = None if self._retries else self._choose(hurry=no_more)
            return None if key is None else self._take(key)

    def next_batch(self) -> RequestBatch | None:
        """The next batch for an idle worker; blocks; None once the batcher is closed."""
        idle_since_s = time.monotonic()
        with self._lock:
            while not self._closed:
                if self._retries:
                    return self._retries.popleft()
                quiet_s = max(idle_since_s, self._last_arrival_s) + self.max_wait_s
                patience_s = min(quiet_s, idle_since_s + PATIENCE * self.max_wait_s) - time.monotonic()
                if (key := self._choose(hurry=patience_s <= 0)) is not None:
                    return self._take(key)
                self._work.wait(patience_s if self._buckets else None)
                if not self._buckets:
                    idle_since_s = time.monotonic()  # the wait for a fuller batch starts with the first sequence
        return None

    def room(self, batch: RequestBatch) -> int:
        """Rows of a full batch of this batch's length."""
        return max(self._full_rows(batch.items[0].shape), len(batch.items))

    def _full_rows(self, key: Shape) -> int:
        return self.spec.rows(key[0])

    def _choose(self, *, hurry: bool) -> Shape | None:
        if not self._buckets:
            return None
        starved = max(self._buckets, key=lambda key: self._buckets[key][0].passed)
        if self._buckets[starved][0].passed >= MAX_PASSED:
            return starved
        full = [key for key, bucket in self._buckets.items() if len(bucket) >= self._full_rows(key)]
        if full:
            return min(full, key=lambda key: self._buckets[key][0].arrived_s)
        if hurry:
            return max(self._buckets, key=lambda key: len(self._buckets[key]) / self._full_rows(key))
        return None

    def _take(self, key: Shape) -> RequestBatch:
        bucket = self._buckets[key]
        items = [bucket.popleft() for _ in range(min(len(bucket), self._full_rows(key)))]
        self._drop_if_empty(key)
        if not self.spec.exact:
            items += self._fill(key, items)
        for waiting in self._buckets.values():
            waiting[0].passed += 1
        now_s = time.monotonic()
        self.meter.waited([now_s - item.arrived_s for item in items])
        return RequestBatch(items)

    def _fill(self, key: Shape, items: list[Pending]) -> list[Pending]:
        """In inexact mode, fill up a partial batch with the next shorter sequences."""
        longest = max(item.frames for item in items)
        room = self.spec.max_batch_frames // longest - len(items)
        more: list[Pending] = []
        for shorter in sorted((k for k in self._buckets if k[1:] == key[1:] and k[0] < key[0]), reverse=True):
            bucket = self._buckets[shorter]
            while bucket and len(more) < room:
                more.append(bucket.popleft())
            self._drop_if_empty(shorter)
        return more

    def _drop_if_empty(self, key: Shape) -> None:
        if not self._buckets[key]:
            del self._buckets[key]
