"""The client side: stream sequences in, get keyed outputs as they complete, with a bounded number in flight."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from megahour.engine.accelerator import wire
from megahour.engine.accelerator.spec import AcceleratorError, SequenceFailedError, ServiceAddress

WINDOW_FRAMES = 65_536
Sequences = Iterable[tuple[int, np.ndarray]]
OnFailure = Callable[[int, str], None]


class Session(Protocol):
    """What tasks program against: a connection to a service, or a model in this process (`local.serve_in_process`)."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def infer(
        self,
        sequences: Sequences,
        *,
        ordered: bool = False,
        window_frames: int = WINDOW_FRAMES,
        on_failure: OnFailure | None = None,
    ) -> Iterator[tuple[int, wire.Outputs]]:
        """Outputs {name: array (T', ...)} of each (key, features (T, F) float16 or float32), in order of completion.

        The iterable is read in the caller's thread, as far ahead as `window_frames` allow: they bound the memory.

        Parameters
        ----------
        ordered: yield in the order of `sequences`.
        on_failure: called with (key, reason) for a sequence that failed for good; the others go on.

        Raises
        ------
        SequenceFailedError: a sequence failed and `on_failure` is None.
        AcceleratorError: the service is gone or refuses the request; a key is already in flight.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Counters of the service, see `metrics.Meter.snapshot`."""
        ...


def client(service: ServiceAddress | str, token: str = "") -> FlightSession:
    """Connect to a service by its `ServiceAddress`, or by address and token."""
    return FlightSession(service if isinstance(service, ServiceAddress) else ServiceAddress(service, token))


class Window:
    """What is in flight: bounds it, and restores the order when asked."""

    def __init__(self, *, ordered: bool, limit_frames: int, on_failure: OnFailure | None) -> None:
        self.limit_frames, self._ordered, self._on_failure = limit_frames, ordered, on_failure
        self._frames: dict[int, int] = {}  # in order of departure
        self._early: dict[int, wire.Outputs | str] = {}
        self._total = 0

    def __bool__(self) -> bool:
        return bool(self._frames)

    def has_room(self, frames: int) -> bool:
        return not self._frames or self._total + frames <= self.limit_frames

    def depart(self, sequence: wire.Keyed) -> None:
        if sequence.key in self._frames:
            raise AcceleratorError(f"key {sequence.key} is already in flight", remedy="give every sequence its own key")
        self._frames[sequence.key] = sequence.frames
        self._total += sequence.frames

    def arrive(self, key: int, result: wire.Outputs | str) -> Iterator[tuple[int, wire.Outputs]]:
        """Results that may be yielded now that this one is here."""
        self._early[key] = result
        ready = [key] if not self._ordered else list(self._in_order())
        for next_key in ready:
            self._total -= self._frames.pop(next_key)
            outcome = self._early.pop(next_key)
            if not isinstance(outcome, str):
                yield next_key, outcome
            elif self._on_failure is None:
                raise SequenceFailedError(next_key, outcome)
            else:
                self._on_failure(next_key, outcome)

    def _in_order(self) -> Iterator[int]:
        for key in self._frames:
            if key not in self._early:
                return
            yield key


def as_sequence(key: int, features: np.ndarray) -> wire.Keyed:
    """Raises AcceleratorError unless features are (T, F) with T, F >= 1."""
    if features.ndim != 2 or 0 in features.shape:
        raise AcceleratorError(
            f"sequence {key}: features of shape {features.shape}", remedy="pass (T, F), both at least 1"
        )
    return wire.Keyed(key, features)


class FlightSession:
    """See `Session`. Several `infer` calls may run at the same time, from several threads."""

    def __init__(self, service: ServiceAddress) -> None:
        self.service = service
        self._client = flight.connect(service.address)
        headers = [(b"authorization", f"Bearer {service.token}".encode())]
        self._options = flight.FlightCallOptions(headers=headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def infer(
        self,
        sequences: Sequences,
        *,
        ordered: bool = False,
        window_frames: int = WINDOW_FRAMES,
        on_failure: OnFailure | None = None,
    ) -> Iterator[tuple[int, wire.Outputs]]:
        """See `Session.infer`."""
        window = Window(ordered=ordered, limit_frames=window_frames, on_failure=on_failure)
        call = _Call(self._client, self._options, self.service.address)
        try:
            for key, features in sequences:
                sequence = as_sequence(key, features)
                while not window.has_room(sequence.frames):
                    yield from call.receive(window, block=True)
                window.depart(sequence)
                call.send(sequence)
                yield from call.receive(window, block=False)
            call.done()
            while window:
                yield from call.receive(window, block=True)
        except BaseException:  # GeneratorExit too: the caller may stop early
            call.cancel()
            raise
        call.finish()

    def metrics(self) -> dict[str, float]:
        """See `Session.metrics`."""
        with _translated(self.service.address):
            (result,) = self._client.do_action(flight.Action("metrics", b""), self._options)
        return dict(json.loads(result.body.to_pybytes()))


class _Call:
    """One DoExchange: written by the caller's thread, read by its own, so that neither side can block the other."""

    def __init__(self, connection: Any, options: Any, address: str) -> None:
        self._address = address
        with _translated(address):
            descriptor = flight.FlightDescriptor.for_command(b"infer")
            self._writer, self._reader = connection.do_exchange(descriptor, options)
        self._schema: pa.Schema | None = None
        self._inbox: queue.SimpleQueue[tuple[pa.RecordBatch, bytes] | Exception | None] = queue.SimpleQueue()
        self._reading: threading.Thread | None = None

    def send(self, sequence: wire.Keyed) -> None:
        """Blocks while the service's queue is full."""
        batch = wire.encode_request([sequence])
        if self._schema is None:
            self._schema = batch.schema
            self._write(self._writer.begin, batch.schema)
            self._reading = threading.Thread(target=self._read_all, daemon=True)
            self._reading.start()
        if batch.schema != self._schema:
            raise AcceleratorError(f"sequence {sequence.key}: its element type differs from the first sequence's")
        self._write(self._writer.write_batch, batch)

    def done(self) -> None:
        if self._schema is not None:
            self._write(self._writer.done_writing)

    def receive(self, window: Window, *, block: bool) -> Iterator[tuple[int, wire.Outputs]]:
        """Results that have come; waits for at least one message when `block`."""
        while True:
            try:
                message = self._inbox.get(block)
            except queue.Empty:
                return
            block = False
            if message is None and not window:
                return
            if message is None:
                raise AcceleratorError("the service ended the stream before all replies", where=self._address)
            if isinstance(message, Exception):
                raise _translate(message, self._address) from message
            for key, result in wire.decode_reply(*message):
                yield from window.arrive(key, result)

    def finish(self) -> None:
        """The ordinary end, after the last reply."""
        if self._reading is not None:
            self._reading.join()
            self._writer.close()

    def cancel(self) -> None:
        """Give up; the service drops what is still in flight."""
        self._reader.cancel()
        if self._reading is not None:
            self._reading.join()
        with contextlib.suppress(pa.ArrowException, OSError):  # closing a cancelled call reports the cancellation
            self._writer.close()

    def _write(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except (pa.ArrowException, OSError) as error:
            # The reading side knows the server's reason; the writing side only that the stream is closed.
            words = self._last_words() if self._reading is not None else None
            raise _translate(words or error, self._address) from error

    def _last_words(self) -> Exception | None:
        while (message := self._inbox.get()) is not None:
            if isinstance(message, Exception):
                return message
        return None

    def _read_all(self) -> None:
        try:
            for chunk in self._reader:
                self._inbox.put((chunk.data, chunk.app_metadata.to_pybytes()))
        except (pa.ArrowException, OSError) as error:
            self._inbox.put(error)
        self._inbox.put(None)


def _translate(error: Exception, address: str) -> AcceleratorError:
    if isinstance(error, flight.FlightUnauthenticatedError):
        return AcceleratorError(
            "the service refuses the token", where=address, remedy="pass the token that serve() made"
        )
    reason = str(error).partition(" gRPC client debug context")[0]
    return AcceleratorError(f"the service failed the call: {reason}", where=address)


@contextlib.contextmanager
def _translated(address: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise _translate(error, address) from error
