"""The network side of the service: receives streams of requests, sends replies, and checks the token.

Back-pressure: while the queue is full a client's sequences are not read, so gRPC's flow control blocks its writes.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import json
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from megahour.core.errors import ConfigError
from megahour.serve import wire
from megahour.serve.batcher import Batcher, Pending
from megahour.serve.segment import Segment, Segments, encode_handle
from megahour.serve.spec import AcceleratorError

log = logging.getLogger(__name__)


HELD_SHARE = 8  # replies are sent once they are an eighth of what the client has in flight …
HELD_S = 0.2  # … or after this time: each message wakes a process and costs the models CPU time
EVERYWHERE = ("", "0.0.0.0", "::", "[::]")
OWN_ADDRESS = "set engine.host (--host) to an address of this machine that the tasks' machines can reach"
Answer = tuple[Sequence[Pending], pa.RecordBatch, bytes]


@dataclass(eq=False)
class Stream:
    """One client's call: queues replies for its writer thread."""

    batcher: Batcher
    asked: int = 0
    sent: int = 0
    finished: bool = False  # the client has sent all of its requests
    broken: bool = False
    _outbox: queue.SimpleQueue[Answer | bytes | None] = field(default_factory=queue.SimpleQueue)

    def deliver(self, items: Sequence[Pending], reply: pa.RecordBatch, layout: bytes) -> None:
        self._outbox.put((items, reply, layout))

    def refuse(self, sequence: wire.Keyed | wire.Placed, reason: str) -> None:
        """Answer a sequence that was never admitted."""
        self._outbox.put(((), *wire.encode_failures([sequence.key], reason)))

    def tell(self, message: bytes) -> None:
        """Send a message without a batch."""
        self._outbox.put(message)

    def finish(self) -> None:
        self.finished = True
        self._outbox.put(None)

    def write_all(self, writer: flight.MetadataRecordBatchWriter) -> None:
        """Thread: send replies until every sequence of a finished stream is answered."""
        while not (self.finished and self.sent == self.asked):
            message = self._outbox.get()
            if isinstance(message, bytes):
                self._write(writer.write_metadata, message)
            elif message is not None:
                self._send(writer, self._together(writer, message))

    def _together(self, writer: flight.MetadataRecordBatchWriter, first: Answer) -> list[Answer]:
        """The replies to send together with this one."""
        messages, rows = [first], len(first[1])
        until_s = time.monotonic() + HELD_S
        while HELD_SHARE * rows < self.asked - self.sent:
            try:
                message = self._outbox.get(timeout=max(until_s - time.monotonic(), 0))
            except queue.Empty:
                break
            if isinstance(message, tuple):
                messages.append(message)
                rows += len(message[1])
            elif message is not None:
                self._write(writer.write_metadata, message)
        return messages

    def _send(self, writer: flight.MetadataRecordBatchWriter, answers: Sequence[Answer]) -> None:
        for layout, group in itertools.groupby(answers, key=lambda answer: answer[2]):
            alike = list(group)
            reply = wire.merge_replies([reply for _, reply, _ in alike])
            self.sent += len(reply)
            try:
                self._write(writer.write_with_metadata, reply, layout)
            finally:
                self.batcher.release(sum(item.frames for items, _, _ in alike for item in items))

    def _write(self, function: Callable[..., None], *arguments: Any) -> None:
        if self.broken:
            return
        try:
            function(*arguments)
        except (pa.ArrowException, OSError) as error:
            self.broken = True
            log.warning("a client disconnected before it had read its replies: %s", error)


def try_listening(host: str, port: int) -> None:
    """Raises OSError if this process cannot listen there, before gRPC, which would first print lines of its own."""
    failure = OSError(f"{host} has no address")
    for family, _, _, _, place in socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM):
        try:
            return socket.create_server(place[:2], family=family).close()
        except OSError as error:
            failure = error
    raise failure


def check_host(host: str, port: int = 0) -> None:
    """Raise ConfigError unless tasks can connect to this address, and this machine can listen at it."""
    if host in EVERYWHERE:
        raise ConfigError(f"host {host}: tasks cannot connect to this address", remedy=OWN_ADDRESS)
    try:
        try_listening(host, port)
    except OSError as error:
        what = f"host {host}: the model service cannot listen there: {error.strerror or error}"
        raise ConfigError(what, remedy=OWN_ADDRESS) from None


class Endpoint(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """The Flight server: one DoExchange per stream of requests, and the action `metrics`."""

    def __init__(
        self, batcher: Batcher, segments: Segments, host: str, port: int, token: str, keys: Mapping[str, Any]
    ) -> None:
        self._batcher, self._meter, self._segments = batcher, batcher.meter, segments
        check_host(host, port)
        try:
            scheme = "grpc+tls" if keys else "grpc"
            super().__init__(f"{scheme}://{host}:{port}", middleware={"token": TokenCheck(token)}, **keys)
        except (pa.ArrowException, OSError) as error:
            raise ConfigError(f"host {host}: the model service cannot listen there", remedy=OWN_ADDRESS) from error

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        stream = Stream(self._batcher)
        writer.begin(wire.REPLY_SCHEMA)
        sender = threading.Thread(target=stream.write_all, args=(writer,), daemon=True)
        sender.start()
        with contextlib.ExitStack() as segments:  # closed after the last reply, when no worker reads them any more
            try:
                with self._batcher.sender():
                    for sequence in self._requests(reader, stream, segments):
                        if stream.broken:
                            return
                        stream.asked += 1
                        self._admit(stream, sequence)
            except AcceleratorError as error:
                raise flight.FlightServerError(str(error)) from error
            finally:
                if context.is_cancelled():
                    stream.broken = True
                if stream.broken:
                    stream.asked -= self._batcher.forget(stream)
                stream.finish()
                sender.join()

    def _requests(
        self, reader: Any, stream: Stream, segments: contextlib.ExitStack
    ) -> Iterator[wire.Keyed | wire.Placed]:
        """The sequences of a call. A requested segment is created, announced to the client, and added to `segments`."""
        segment: Segment | None = None
        for chunk in reader:
            if chunk.data is not None:
                yield from wire.decode_request(chunk.data)
                continue
            message = wire.decode_message(chunk.app_metadata.to_pybytes() if chunk.app_metadata else b"")
            if isinstance(message, list):
                if segment is None:
                    raise AcceleratorError("the call refers to rows in a segment, but has no segment")
                yield from segment.placed(message)
            elif segment is not None:
                raise AcceleratorError("the call already has a segment")
            else:
                if (segment := self._segments.make(message)) is not None:
                    segments.callback(segment.close)
                stream.tell(encode_handle(segment.handle if segment is not None else None))

    def _admit(self, stream: Stream, sequence: wire.Keyed | wire.Placed) -> None:
        try:
            self._batcher.admit(Pending(sequence, stream))
        except AcceleratorError as error:
            self._meter.failure(1)
            stream.refuse(sequence, str(error))

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        if action.type != "metrics":
            raise flight.FlightServerError(f"unknown action {action.type!r}; available: metrics")
        return [json.dumps(self._meter.snapshot()).encode()]

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [("metrics", "counters of the service as JSON")]


class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Rejects calls whose `authorization` header is not the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode() if token else b""

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        given = headers.get("authorization", [""])[0].encode()
        if self._expected and not hmac.compare_digest(given, self._expected):
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")
