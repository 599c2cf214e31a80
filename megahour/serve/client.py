"""The client side: streams sequences in and yields keyed outputs as they complete, with bounded frames in flight."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, Self, TypedDict, Unpack

import numpy as np
import pyarrow.flight as flight

from megahour.serve import wire
from megahour.serve.call import Call, translated
from megahour.serve.spec import AcceleratorError, SequenceFailedError, ServiceAddress
from megahour.serve.tls import client_options

WINDOW_FRAMES = 65_536
Sequences = Iterable[tuple[int, np.ndarray]]
OnFailure = Callable[[int, str], None]


class InferOptions(TypedDict, total=False):
    """Options of `Session.infer`."""

    ordered: bool
    window_frames: int
    on_failure: OnFailure | None


class Session(Protocol):
    """The interface for tasks: a connection to a service, or a model in this process (`local.serve_in_process`)."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def infer(self, sequences: Sequences, **options: Unpack[InferOptions]) -> Iterator[tuple[int, wire.Outputs]]:
        """Outputs {name: array (T', ...)} for each (key, features (T, F) float16 or float32), in order of completion.

        The iterable is read in the caller's thread, as far ahead as `window_frames` allows, which bounds the memory.

        Parameters
        ----------
        ordered: yield in the order of `sequences`; default False.
        window_frames: how many frames may be in flight; default WINDOW_FRAMES.
        on_failure: called with (key, reason) for each sequence that failed for good; the others continue.

        Raises
        ------
        SequenceFailedError: a sequence failed and `on_failure` is None.
        AcceleratorError: the service is gone or refused the request, or a key is already in flight.
        """

    def metrics(self) -> dict[str, float]:
        """Counters of the service, see `metrics.Meter.snapshot`."""


def client(service: ServiceAddress | str, token: str = "") -> FlightSession:
    """Connect to a service by its `ServiceAddress`, or by address and token."""
    return FlightSession(service if isinstance(service, ServiceAddress) else ServiceAddress(service, token))


class Link(Protocol):
    """A connection to one or several services, for one thread."""

    def send(self, sequence: wire.Keyed, window_frames: int) -> None:
        """Send a sequence."""

    def done(self) -> None:
        """Nothing more will be sent."""

    def receive(self, *, block: bool) -> Iterator[tuple[int, wire.Outputs | str]]:
        """Results that have arrived; with `block`, waits for at least one."""


class SendWindow:
    """Bounds the frames in flight, and restores the order of results if asked."""

    def __init__(
        self, *, ordered: bool = False, window_frames: int = WINDOW_FRAMES, on_failure: OnFailure | None = None
    ) -> None:
        self.limit_frames, self._ordered, self._on_failure = window_frames, ordered, on_failure
        self._frames: dict[int, int] = {}  # in order of departure
        self._early: dict[int, wire.Outputs | str] = {}
        self._total = 0

    def __bool__(self) -> bool:
        return bool(self._frames)

    def has_room(self, frames: int) -> bool:
        return not self._frames or self._total + frames <= self.limit_frames

    def through(self, link: Link, sequences: Sequences) -> Iterator[tuple[int, wire.Outputs]]:
        """Send sequences as room permits; yields the results that arrive meanwhile, then the rest."""
        for key, features in sequences:
            sequence = as_sequence(key, features)
            while not self.has_room(sequence.frames):
                yield from self._arrived(link, block=True)
            self.depart(sequence)
            link.send(sequence, self.limit_frames)
            yield from self._arrived(link, block=False)
        link.done()
        while self:
            yield from self._arrived(link, block=True)

    def _arrived(self, link: Link, *, block: bool) -> Iterator[tuple[int, wire.Outputs]]:
        for key, result in link.receive(block=block):
            yield from self.arrive(key, result)

    def depart(self, sequence: wire.Keyed) -> None:
        if sequence.key in self._frames:
            raise AcceleratorError(f"key {sequence.key} is already in flight", remedy="give every sequence its own key")
        self._frames[sequence.key] = sequence.frames
        self._total += sequence.frames

    def arrive(self, key: int, result: wire.Outputs | str) -> Iterator[tuple[int, wire.Outputs]]:
        """Results that can be yielded once this one has arrived."""
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
    """A `Session` with one service. Several threads may run `infer` at the same time.

    Raises ConfigError: key files that the service's `tls` names are missing.
    """

    def __init__(self, service: ServiceAddress) -> None:
        self.service = service
        self._client = flight.connect(service.address, **client_options(service.tls))
        headers = [(b"authorization", f"Bearer {service.token}".encode())]
        self._options = flight.FlightCallOptions(headers=headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def infer(self, sequences: Sequences, **options: Unpack[InferOptions]) -> Iterator[tuple[int, wire.Outputs]]:
        """See `Session.infer`."""
        window = SendWindow(**options)
        call = Call(self._client, self._options, self.service.address)
        try:
            yield from window.through(call, sequences)
        except BaseException:  # GeneratorExit too: the caller may stop early
            call.cancel()
            raise
        call.finish()

    def call(self, arrived: Callable[[], None]) -> Call:
        """A separate call; `arrived` is called at each message, in a thread of the call."""
        return Call(self._client, self._options, self.service.address, arrived)

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def metrics(self) -> dict[str, float]:
        """See `Session.metrics`."""
        with translated(self.service.address):
            (result,) = self._client.do_action(flight.Action("metrics", b""), self._options)
        return dict(json.loads(result.body.to_pybytes()))
