"""Passes features through shared memory when client, service and workers run on one host.

A client whose call lasts a while asks the service for a segment. The service creates an anonymous in-memory file,
writes a random nonce at its start, and replies with its own descriptor of the file: a client that can open
``/proc/<pid>/fd/<number>`` and reads the nonce there is on the same host, under the same user. From then on it writes
its features into the segment and sends only their positions (`wire.Placed`). Any other client keeps sending features.
Workers open the same path, for one batch at a time.

The file is sealed against shrinking and growing, so no client can make the service or a worker fault, and its pages are
allocated before its address is sent, so no client faults for lack of memory. A segment belongs to one call, lasts until
its last sequence is answered, and is never shared with another call: a client can only name offsets within it.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import secrets
import stat
import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from megahour.serve.spec import AcceleratorError
from megahour.serve.wire import Keyed, Placed, SegmentPlace

NONCE_BYTES = 32  # at the start of a segment
SEGMENT_BYTES = 64 << 20  # of one call, at most
ALL_SEGMENTS_BYTES = 1 << 30  # of a service, at most; and no more than a sixteenth of the machine's memory


@dataclass(frozen=True)
class Handle:
    """Address of a segment: descriptor `number` of process `pid`; `nonce` proves that it is the right file."""

    pid: int
    number: int
    n_bytes: int
    nonce: str

    @property
    def path(self) -> str:
        return f"/proc/{self.pid}/fd/{self.number}"


def encode_handle(handle: Handle | None) -> bytes:
    """The reply to a request for a segment."""
    return json.dumps(None if handle is None else asdict(handle)).encode()


def decode_handle(data: bytes) -> Handle | None:
    """See `encode_handle`."""
    values = json.loads(data)
    return None if values is None else Handle(**values)


class Segments:
    """The service's side: creates segments within a memory limit."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        if limit_bytes is None:
            memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            limit_bytes = min(ALL_SEGMENTS_BYTES, memory_bytes // 16)
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def n_bytes(self) -> int:
        """Total bytes of the open segments."""
        with self._lock:
            return self._bytes

    def make(self, n_bytes: int) -> Segment | None:
        """Create a segment; None if memory is short or the system is not Linux."""
        if not hasattr(os, "memfd_create") or not NONCE_BYTES < n_bytes <= SEGMENT_BYTES:
            return None
        with self._lock:
            if self._bytes + n_bytes > self._limit_bytes:
                return None
            self._bytes += n_bytes
        number = -1
        try:
            number = os.memfd_create("megahour-accelerator", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.posix_fallocate(number, 0, n_bytes)
            fcntl.fcntl(number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            nonce = secrets.token_bytes(NONCE_BYTES)
            os.pwrite(number, nonce, 0)
        except OSError:  # no memory, or forbidden by the kernel: features then travel in messages
            if number >= 0:
                os.close(number)
            self._freed(n_bytes)
            return None
        return Segment(self, Handle(os.getpid(), number, n_bytes, nonce.hex()))

    def _freed(self, n_bytes: int) -> None:
        with self._lock:
            self._bytes -= n_bytes


@dataclass(frozen=True)
class Segment:
    """One open segment of the service."""

    segments: Segments
    handle: Handle

    def placed(self, places: Sequence[SegmentPlace]) -> list[Placed]:
        """Sequences at these positions.

        Raises
        ------
        AcceleratorError: a position outside the segment, or with an invalid shape.
        """
        return [self._placed(extent) for extent in places]

    def _placed(self, place: SegmentPlace) -> Placed:
        if place.frames < 1 or place.dim < 1 or place.width not in (2, 4):
            raise AcceleratorError(f"sequence {place.key}: {place.frames} x {place.dim} values of {place.width} bytes")
        end = place.offset + place.frames * place.dim * place.width
        if place.offset < NONCE_BYTES or place.offset % place.width or end > self.handle.n_bytes:
            raise AcceleratorError(
                f"sequence {place.key}: bytes {place.offset} to {end} are not within "
                f"the {self.handle.n_bytes} bytes of the call's segment"
            )
        return Placed(place, self.handle.path)

    def close(self) -> None:
        """Release the memory; a client that still maps it keeps its pages until it ends the call."""
        os.close(self.handle.number)
        self.segments._freed(self.handle.n_bytes)


class SharedWindow:
    """The client's side: the features in flight, in a segment of the service. For one thread."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._extents = Extents(NONCE_BYTES, len(memory))
        self._offsets: dict[int, int] = {}

    @classmethod
    def attach(cls, handle: Handle) -> SharedWindow | None:
        """Map the service's segment; None if it cannot be reached from this process."""
        try:
            # On another host the path may be anything: do not adopt a terminal or block on a pipe.
            number = os.open(handle.path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return None
        try:
            status = os.fstat(number)
            if not stat.S_ISREG(status.st_mode) or status.st_size != handle.n_bytes:
                return None
            if not secrets.compare_digest(os.pread(number, NONCE_BYTES, 0), bytes.fromhex(handle.nonce)):
                return None
            return cls(mmap.mmap(number, handle.n_bytes))
        except (OSError, ValueError):
            return None
        finally:
            os.close(number)

    def put(self, sequence: Keyed) -> SegmentPlace | None:
        """Copy a sequence's features into the segment; returns their position, or None if there is no room."""
        features = sequence.features
        if (offset := self._extents.take(features.nbytes)) is None:
            return None
        target = np.frombuffer(self._memory, features.dtype, features.size, offset)
        target.reshape(features.shape)[:] = features
        self._offsets[sequence.key] = offset
        return SegmentPlace(sequence.key, offset, sequence.frames, sequence.dim, features.itemsize)

    def free(self, key: int) -> None:
        """Free the space of an answered sequence; no effect if it is not in the segment."""
        if (offset := self._offsets.pop(key, None)) is not None:
            self._extents.give(offset)


def gather(sequences: Sequence[Keyed | Placed]) -> list[Keyed]:
    """The worker's side: features as views of their segments, which stay mapped as long as these live.

    Raises
    ------
    OSError: a segment is gone.
    """
    maps: dict[str, mmap.mmap] = {}
    return [s if isinstance(s, Keyed) else Keyed(s.key, _features(s, maps)) for s in sequences]


def _features(sequence: Placed, maps: dict[str, mmap.mmap]) -> np.ndarray:
    if sequence.path not in maps:
        number = os.open(sequence.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            maps[sequence.path] = mmap.mmap(number, 0, prot=mmap.PROT_READ)
        finally:
            os.close(number)
    extent = sequence.place
    values = np.frombuffer(maps[sequence.path], sequence.dtype, extent.frames * extent.dim, extent.offset)
    return values.reshape(extent.frames, extent.dim)


ALIGNMENT_BYTES = 64  # a cache line, so that no two sequences share one


class Extents:
    """First-fit allocator of the bytes [start, end). Not thread-safe."""

    def __init__(self, start: int, end: int) -> None:
        start = _aligned(start)
        self._free = [(start, end - start)] if end > start else []  # (offset, bytes), by offset, never touching
        self._taken: dict[int, int] = {}

    def take(self, n_bytes: int) -> int | None:
        """Allocate at least `n_bytes` >= 1; returns the offset, a multiple of 64, or None if there is no room."""
        due = _aligned(n_bytes)
        for index, (offset, size) in enumerate(self._free):
            if size >= due:
                self._free[index : index + 1] = [(offset + due, size - due)] if size > due else []
                self._taken[offset] = due
                return offset
        return None

    def give(self, offset: int) -> None:
        """Free an extent allocated by `take`; KeyError for any other offset."""
        size = self._taken.pop(offset)
        index = bisect_left(self._free, (offset, 0))
        if index < len(self._free) and self._free[index][0] == offset + size:
            size += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == offset:
            index -= 1
            offset, size = self._free[index][0], size + self._free.pop(index)[1]
        self._free.insert(index, (offset, size))


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
