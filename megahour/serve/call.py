"""The client's side of one DoExchange call: sends features, through shared memory once that works, and gets replies.

Three threads share a call so that none blocks another: the caller's, a writer and a reader. The writer sends all
available places (see `wire.SegmentPlace`) in one message, without waiting for more.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from megahour.serve import wire
from megahour.serve.segment import SEGMENT_BYTES, SharedWindow, decode_handle
from megahour.serve.spec import AcceleratorError

SHARE_AFTER_BYTES = 1 << 20  # shorter calls end before shared memory pays off
ITEMS_AT_ONCE = 32  # at most in one message: the first must not wait for a producer that never pauses
SHARE_TIMEOUT_S = 0.25  # the service answers within milliseconds, unless its queue is full
UNREACHED = "check that the service runs, and set engine.host to an address of its machine that this one can reach"


class Call:
    """A call that opens at the first `send` and ends with `finish` or `cancel`."""

    def __init__(self, connection: Any, options: Any, address: str, arrived: Callable[[], None] = lambda: None) -> None:
        self._arrived = arrived
        self._connection, self._options, self._address = connection, options, address
        self._dtype: Any = None
        self._shared: SharedWindow | None = None
        self._sent_bytes = 0
        self._answered = threading.Event()  # the service has replied to the request for a segment
        self._outbox: queue.SimpleQueue[wire.Keyed | wire.SegmentPlace | bytes | None] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[tuple[pa.RecordBatch, bytes] | Exception | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._write_error: Exception | None = None
        self._ended = threading.Event()  # cancelled, or read to its end

    @property
    def ended(self) -> bool:
        """Whether the service has stopped sending; received messages may still be queued."""
        return self._ended.is_set()

    def send(self, sequence: wire.Keyed, window_frames: int) -> None:
        """Queue a sequence; the caller keeps at most `window_frames` frames in flight.

        Raises
        ------
        AcceleratorError: the features' type is not accepted, or differs from the first sequence's.
        """
        features = sequence.features
        if self._dtype is None:
            self._open(wire.request_schema(features.dtype))
            self._dtype = features.dtype
        if features.dtype != self._dtype:
            raise AcceleratorError(f"sequence {sequence.key}: its element type differs from the first sequence's")
        segment = self._shared.put(sequence) if self._shared is not None else None
        # A copy for the writer thread, since the caller may reuse the array.
        self._outbox.put(wire.Keyed(sequence.key, features.copy()) if segment is None else segment)
        before, self._sent_bytes = self._sent_bytes, self._sent_bytes + features.nbytes
        if before <= SHARE_AFTER_BYTES < self._sent_bytes:
            window_bytes = window_frames * sequence.dim * features.itemsize
            self._outbox.put(wire.encode_ask(min(window_bytes * 9 // 8, SEGMENT_BYTES)))  # an eighth for gaps
            self._answered.wait(SHARE_TIMEOUT_S)

    def done(self) -> None:
        """Nothing more will be sent."""
        self._outbox.put(None)

    def receive(self, *, block: bool) -> Iterator[tuple[int, wire.Outputs | str]]:
        """Results that have arrived; with `block`, waits for at least one message.

        Raises
        ------
        AcceleratorError: the service failed the call, or ended it while the caller was waiting.
        """
        while True:
            try:
                message = self._inbox.get(block)
            except queue.Empty:
                return
            if message is None and not block:
                self._inbox.put(None)  # the end may be expected; a blocking call will report it
                return
            if message is None or isinstance(message, Exception):
                raise self._broken(message) from message
            block = False
            for key, result in wire.decode_reply(*message):
                if self._shared is not None:
                    self._shared.free(key)
                yield key, result

    def finish(self) -> None:
        """The ordinary end, after the last reply."""
        if self._threads:
            self._join()
            self._writer.close()

    def cancel(self) -> None:
        """Give up; the service drops what is still in flight."""
        if self._threads:
            self._ended.set()
            self._reader.cancel()
            self._outbox.put(None)
            self._join()
            with contextlib.suppress(pa.ArrowException, OSError):  # closing a cancelled call reports the cancellation
                self._writer.close()

    def _open(self, schema: pa.Schema) -> None:
        with translated(self._address):
            descriptor = flight.FlightDescriptor.for_command(b"infer")
            self._writer, self._reader = self._connection.do_exchange(descriptor, self._options)
        bodies = (self._read_all, ()), (self._write_all, (schema,))
        self._threads = [threading.Thread(target=body, args=arguments, daemon=True) for body, arguments in bodies]
        for thread in self._threads:
            thread.start()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _broken(self, error: Exception | None) -> AcceleratorError:
        # The reader knows the server's reason, the writer only that the stream is closed.
        cause = error or self._write_error
        if cause is None:
            return AcceleratorError("the service ended the stream before all replies", where=self._address)
        return translate(cause, self._address)

    def _write_all(self, schema: pa.Schema) -> None:
        try:
            self._writer.begin(schema)
            done = False
            while not done:
                places: list[wire.SegmentPlace] = []
                for item in self._available():
                    if isinstance(item, wire.SegmentPlace):
                        places.append(item)
                    elif isinstance(item, wire.Keyed):
                        self._writer.write_batch(wire.encode_request([item]))
                    elif item is not None:
                        self._writer.write_metadata(item)
                    else:
                        done = True
                if places:
                    self._writer.write_metadata(wire.encode_places(places))
            # The reader closes a call that has ended; gRPC aborts the process if both sides close it.
            if not self._ended.is_set():
                self._writer.done_writing()
        except (pa.ArrowException, OSError) as error:
            self._write_error = error

    def _available(self) -> Iterator[wire.Keyed | wire.SegmentPlace | bytes | None]:
        """Available items; waits for the first only."""
        yield self._outbox.get()
        with contextlib.suppress(queue.Empty):
            for _ in range(ITEMS_AT_ONCE - 1):
                yield self._outbox.get_nowait()

    def _read_all(self) -> None:
        try:
            for chunk in self._reader:
                text = chunk.app_metadata.to_pybytes()
                if chunk.data is not None:
                    self._inbox.put((chunk.data, text))
                    self._arrived()
                    continue
                handle = decode_handle(text)
                self._shared = SharedWindow.attach(handle) if handle is not None else None
                self._answered.set()
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:  # the last two: not a segment handle
            self._inbox.put(error)
        self._ended.set()
        self._inbox.put(None)
        self._arrived()


def translate(error: Exception, address: str) -> AcceleratorError:
    if isinstance(error, flight.FlightUnauthenticatedError):
        return AcceleratorError(
            "the service rejected the token", where=address, remedy="pass the token that serve() returned"
        )
    reason = str(error).partition(" gRPC client debug context")[0]
    if isinstance(error, flight.FlightUnavailableError):
        return AcceleratorError(
            f"{socket.gethostname()} cannot reach the model service: {reason}", where=address, remedy=UNREACHED
        )
    return AcceleratorError(f"the service failed the call: {reason}", where=address)


@contextlib.contextmanager
def translated(address: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise translate(error, address) from error
