"""Length-bucketed dynamic batching across clients: what waits, what goes next, and who must wait.

Sequences wait in a bucket per padded length. When a worker asks, it gets, in this order: a batch that a dead worker
left; a head that was passed over `MAX_PASSED` times (so that a rare length cannot starve); a full batch, the longest
waiting first; and, once nothing has arrived for `max_wait_s` while the worker was idle (or something has, for
`PATIENCE` times as long), the fullest bucket. Frames are counted from
admission until the reply has left for the client: at `queue_frames` producers block.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from megahour.engine.accelerator.metrics import Meter
from megahour.engine.accelerator.spec import AcceleratorError, ModelSpec, bucket_frames, too_long
from megahour.engine.accelerator.wire import Keyed

MAX_PASSED = 256  # far above the number of buckets: each is passed over until its own turn comes
PATIENCE = 20


class Owner(Protocol):
    """Who asked: gets a reply (see `wire`) with one row per item, from a worker's thread. Must not block."""

    def deliver(self, items: Sequence[Pending], reply: pa.RecordBatch, layout: bytes) -> None: ...


@dataclass(eq=False)
class Pending:
    """A sequence on its way through the service."""

    sequence: Keyed
    owner: Owner
    arrived_s: float = 0.0
    passed: int = 0

    @property
    def frames(self) -> int:
        return self.sequence.frames


@dataclass
class Batch:
    """Sequences of one padded length and one feature dimension; `attempts` counts the workers that died on it."""

    items: list[Pending]
    attempts: int = 0


@dataclass
class Batcher:
    """The queue between the clients' threads and the workers' threads."""

    spec: ModelSpec
    max_wait_s: float
    queue_frames: int
    meter: Meter
    _buckets: dict[tuple[int, int], deque[Pending]] = field(default_factory=dict)
    _retries: deque[Batch] = field(default_factory=deque)
    _frames: int = 0
    _last_arrival_s: float = 0.0
    _closed: str = ""
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def admit(self, pending: Pending) -> None:
        """Queue one sequence; blocks while the queue is full.

        Raises
        ------
        AcceleratorError: the sequence is too long for any batch, or the service is closed.
        """
        if pending.frames > min(self.spec.max_batch_frames, self.queue_frames):
            raise AcceleratorError(too_long(pending.frames, min(self.spec.max_batch_frames, self.queue_frames)))
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._frames + pending.frames <= self.queue_frames)
            if self._closed:
                raise AcceleratorError(self._closed)
            self._frames += pending.frames
            self.meter.queued(self._frames)
            pending.arrived_s = self._last_arrival_s = time.monotonic()
            key = (bucket_frames(pending.frames), pending.sequence.features.shape[1])
            self._buckets.setdefault(key, deque()).append(pending)
            self._changed.notify_all()

    @property
    def waiting_frames(self) -> int:
        """Frames between admission and reply."""
        with self._changed:
            return self._frames

    def release(self, frames: int) -> None:
        """Frames whose reply has left, or will never be read."""
        with self._changed:
            self._frames -= frames
            self._changed.notify_all()

    def retry(self, batch: Batch) -> bool:
        """Put a batch back in front, as it was, so that it cannot take others down with it; False once closed."""
        with self._changed:
            if not self._closed:
                self._retries.append(batch)
                self._changed.notify_all()
            return not self._closed

    def forget(self, owner: Owner) -> int:
        """Drop what a client that went away still has in the buckets; the number of its sequences."""
        dropped = 0
        with self._changed:
            for key in list(self._buckets):
                gone = [item for item in self._buckets[key] if item.owner is owner]
                dropped += len(gone)
                self._frames -= sum(item.frames for item in gone)
                self._buckets[key] = deque(item for item in self._buckets[key] if item.owner is not owner)
                self._drop_if_empty(key)
            self._changed.notify_all()
        return dropped

    def close(self, reason: str) -> list[Pending]:
        """Refuse new sequences, wake everyone; returns what was still waiting."""
        with self._changed:
            self._closed = self._closed or reason
            waiting = [item for bucket in self._buckets.values() for item in bucket]
            waiting += [item for batch in self._retries for item in batch.items]
            self._buckets.clear()
            self._retries.clear()
            self._changed.notify_all()
            return waiting

    @property
    def closed(self) -> bool:
        with self._changed:
            return bool(self._closed)

    def full_batch(self) -> Batch | None:
        """A batch that need not wait for company, or None; does not block."""
        with self._changed:
            key = None if self._retries else self._choose(hurry=False)
            return None if key is None else self._take(key)

    def next_batch(self) -> Batch | None:
        """The next batch for an idle worker; blocks; None once the batcher is closed."""
        idle_since_s = time.monotonic()
        with self._changed:
            while not self._closed:
                if self._retries:
                    return self._retries.popleft()
                quiet_s = max(idle_since_s, self._last_arrival_s) + self.max_wait_s
                patience_s = min(quiet_s, idle_since_s + PATIENCE * self.max_wait_s) - time.monotonic()
                if (key := self._choose(hurry=patience_s <= 0)) is not None:
                    return self._take(key)
                self._changed.wait(patience_s if self._buckets else None)
                if not self._buckets:
                    idle_since_s = time.monotonic()  # the wait for company starts when there is someone to wait
        return None

    def _full_rows(self, key: tuple[int, int]) -> int:
        return self.spec.rows(key[0])

    def _choose(self, *, hurry: bool) -> tuple[int, int] | None:
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

    def _take(self, key: tuple[int, int]) -> Batch:
        bucket = self._buckets[key]
        items = [bucket.popleft() for _ in range(min(len(bucket), self._full_rows(key)))]
        self._drop_if_empty(key)
        if not self.spec.exact:
            items += self._fill(key, items)
        for waiting in self._buckets.values():
            waiting[0].passed += 1
        now_s = time.monotonic()
        self.meter.waited([now_s - item.arrived_s for item in items])
        return Batch(items)

    def _fill(self, key: tuple[int, int], items: list[Pending]) -> list[Pending]:
        """Without exactness, an unfinished batch takes the next shorter sequences as well."""
        longest = max(item.frames for item in items)
        room = self.spec.max_batch_frames // longest - len(items)
        more: list[Pending] = []
        for shorter in sorted((k for k in self._buckets if k[1] == key[1] and k[0] < key[0]), reverse=True):
            bucket = self._buckets[shorter]
            while bucket and len(more) < room:
                more.append(bucket.popleft())
            self._drop_if_empty(shorter)
        return more

    def _drop_if_empty(self, key: tuple[int, int]) -> None:
        if not self._buckets[key]:
            del self._buckets[key]
