"""The network side of the service: streams of requests in, replies out, and the token at the door.

While the queue is full a client's sequences are not read, gRPC's flow control fills, and its writes block: that is the
back-pressure.
"""

from __future__ import annotations

import hmac
import json
import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from megahour.engine.accelerator import wire
from megahour.engine.accelerator.batcher import Batcher, Pending
from megahour.engine.accelerator.spec import AcceleratorError

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Stream:
    """One client's call: replies wait here until its writer thread has sent them."""

    batcher: Batcher
    asked: int = 0
    sent: int = 0
    finished: bool = False  # the client has asked for everything it wants
    broken: bool = False
    _outbox: queue.SimpleQueue[tuple[Sequence[Pending], pa.RecordBatch, bytes] | None] = field(
        default_factory=queue.SimpleQueue
    )

    def deliver(self, items: Sequence[Pending], reply: pa.RecordBatch, layout: bytes) -> None:
        self._outbox.put((items, reply, layout))

    def refuse(self, sequence: wire.Keyed, reason: str) -> None:
        """Answer a sequence that was never admitted."""
        self._outbox.put(((), *wire.encode_failures([sequence.key], reason)))

    def finish(self) -> None:
        self.finished = True
        self._outbox.put(None)

    def write_all(self, writer: flight.MetadataRecordBatchWriter) -> None:
        """Thread: send replies until every sequence of a finished stream is answered."""
        while not (self.finished and self.sent == self.asked):
            message = self._outbox.get()
            if message is None:
                continue
            items, reply, layout = message
            self.sent += len(reply)
            try:
                if not self.broken:
                    writer.write_with_metadata(reply, layout)
            except (pa.ArrowException, OSError) as error:
                self.broken = True
                log.warning("a client went away before it took its replies: %s", error)
            finally:
                self.batcher.release(sum(item.frames for item in items))


class Endpoint(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """The Flight server: one DoExchange per stream of requests, and the action `metrics`."""

    def __init__(self, batcher: Batcher, host: str, port: int, token: str) -> None:
        self._batcher, self._meter = batcher, batcher.meter
        super().__init__(f"grpc://{host}:{port}", middleware={"token": TokenCheck(token)})

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        stream = Stream(self._batcher)
        writer.begin(wire.REPLY_SCHEMA)
        sender = threading.Thread(target=stream.write_all, args=(writer,), daemon=True)
        sender.start()
        try:
            for chunk in reader:
                for sequence in wire.decode_request(chunk.data):
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

    def _admit(self, stream: Stream, sequence: wire.Keyed) -> None:
        try:
            self._batcher.admit(Pending(sequence, stream))
        except AcceleratorError as error:
            self._meter.failure(1)
            stream.refuse(sequence, str(error))

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        if action.type != "metrics":
            raise flight.FlightServerError(f"unknown action {action.type!r}; there is: metrics")
        return [json.dumps(self._meter.snapshot()).encode()]

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [("metrics", "counters of the service as JSON")]


class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Refuses every call whose `authorization` header is not the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode() if token else b""

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        given = headers.get("authorization", [""])[0].encode()
        if self._expected and not hmac.compare_digest(given, self._expected):
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")
