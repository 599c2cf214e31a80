"""A session with all services of a model: each sequence goes to the least loaded one.

Sequences in flight are kept here (the caller's window bounds them). If a service ends, restarts or hangs, its sequences
go to the others, or wait for a new service; the task is not lost. An idle service takes over half of the sequences of
silent ones; the first answer counts. In exact mode the bytes do not depend on which service answers, as long as the
machines' devices are of one kind.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Self, Unpack

import numpy as np

from megahour.core.surroundings import is_of_a_store
from megahour.serve import wire
from megahour.serve.call import Call
from megahour.serve.client import FlightSession, InferOptions, SendWindow, Sequences
from megahour.serve.registry import SAY_S, registry_of
from megahour.serve.spec import CLOSED, GIVEN_UP, AcceleratorError, ServiceAddress, ServicePool

LOG = logging.getLogger(__name__)
LOOK_S = 5.0  # between checks for new services
SILENCE_S = 1.0  # without an answer, after which idle services take over
PATIENCE_S = 900.0  # without a service or an answer: a machine may be restarting
AWAY_S = 1.0  # a service is retried this long after its first loss, twice as long after each further one …
LONGEST_AWAY_S = 60.0  # … up to this
# Services that were lost: (retry at, waiting time). Of the whole process, for each of its tasks has a session.
_away: dict[ServiceAddress, tuple[float, float]] = {}
COUNTERS = ("batches", "sequences", "frames", "shared", "failed", "worker_deaths")


class SpreadSession:
    """A `client.Session` with a changing set of services, for one thread."""

    def __init__(self, pool: ServicePool) -> None:
        self.url = pool.registry
        self._pool, self._registry = pool, registry_of(pool)
        self._sessions: dict[str, FlightSession] = {}
        self._silent = False  # the registry

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for session in self._sessions.values():
            session.close()

    def infer(self, sequences: Sequences, **options: Unpack[InferOptions]) -> Iterator[tuple[int, wire.Outputs]]:
        """See `client.Session.infer`. AcceleratorError: no service has answered for `PATIENCE_S`."""
        window, spread = SendWindow(**options), _Spread(self)
        try:
            yield from window.through(spread, sequences)
        finally:
            spread.close()

    def metrics(self) -> dict[str, float]:
        """Counters summed over all services."""
        total = dict.fromkeys(COUNTERS, 0.0)
        for session in self.present().values():
            counters = session.metrics()
            total = {name: total[name] + counters[name] for name in COUNTERS}
        return total

    def present(self) -> dict[str, FlightSession]:
        """Connections to the registered services that were not lost recently, by address."""
        now_s = time.monotonic()
        here = [s for s in self._registered() if now_s >= _away.get(s, (0.0, 0.0))[0]]
        return {service.address: self._session(service) for service in here}

    def _registered(self) -> list[ServiceAddress]:
        """While the registry's disk or store does not answer: the services that are connected."""
        try:
            services = self._registry.services(self._pool.model, self._pool.tls)
        except Exception as error:
            if not isinstance(error, OSError) and not is_of_a_store(error):
                raise
            if not self._silent:
                LOG.warning("%s does not answer (%s); asking again", self._pool.registry, error)
            self._silent = True
            return [session.service for session in self._sessions.values()]
        self._silent = False
        return services

    def lost(self, address: str, error: AcceleratorError) -> None:
        """Avoid a service for a while. One that starts at its address has another token."""
        session = self._sessions.pop(address)
        session.close()
        retry_s, before_s = _away.get(session.service, (0.0, 0.0))
        if not before_s:
            LOG.warning("lost a model service, its sequences go to others: %s: %s", address, error.message)
        if (now_s := time.monotonic()) >= retry_s:  # else another task has lost it, too
            away_s = min(max(AWAY_S, 2 * before_s), LONGEST_AWAY_S)
            _away[session.service] = (now_s + away_s, away_s)

    def answered(self, address: str) -> None:
        """A service works again."""
        _away.pop(self._sessions[address].service, None)

    def _session(self, service: ServiceAddress) -> FlightSession:
        known = self._sessions.get(service.address)
        if known is None or known.service != service:
            known = self._sessions[service.address] = FlightSession(service)
        return known


class _ServiceCall:
    """A call to one service, and the frames of the sequences sent to it, by key."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.held: dict[int, int] = {}

    @property
    def frames(self) -> int:
        return sum(self.held.values())


class _Spread:
    """The sequences in flight of one `infer`, and the services that have them."""

    def __init__(self, session: SpreadSession) -> None:
        self._session = session
        self._lanes: dict[str, _ServiceCall] = {}
        self._unanswered: dict[int, wire.Keyed] = {}
        self._waiting: deque[int] = deque()  # keys not sent to any service
        self._window_frames = 0
        self._dtype: np.dtype | None = None
        self._news = threading.Event()
        self._checked_s, self._heard_s = float("-inf"), time.monotonic()
        self._problem: Exception | None = None

    def send(self, sequence: wire.Keyed, window_frames: int) -> None:
        """Send a sequence to a service, or keep it until there is one.

        Raises AcceleratorError: the features' type is not accepted, or differs from the first sequence's.
        """
        if self._dtype is None:
            wire.request_schema(sequence.features.dtype)
            self._dtype = sequence.features.dtype
        if sequence.features.dtype != self._dtype:
            raise AcceleratorError(f"sequence {sequence.key}: its element type differs from the first sequence's")
        if not self._unanswered:
            self._heard_s = time.monotonic()
        self._window_frames = window_frames
        self._unanswered[sequence.key] = wire.Keyed(sequence.key, sequence.features.copy())
        self._waiting.append(sequence.key)
        self._hand_out()

    def done(self) -> None:
        """See `client.Link`. Calls stay open until `close`, since they may still get a lost service's sequences."""

    def receive(self, *, block: bool) -> Iterator[tuple[int, wire.Outputs | str]]:
        """Answers that have arrived; with `block`, waits for at least one."""
        said = False
        while True:
            self._news.clear()
            answers = [answer for address in list(self._lanes) for answer in self._answers(address)]
            yield from answers
            self._hand_out()
            if answers:
                self._heard_s = time.monotonic()
            if answers or not block:
                return
            if time.monotonic() - self._heard_s > PATIENCE_S:
                raise self._silence() from self._problem
            if not self._lanes and not said and time.monotonic() - self._heard_s > SAY_S:
                what = "no model service, waiting for %g s at most; check `megahour serve` and other runs of %s"
                LOG.warning(what, PATIENCE_S, self._session.url)
                said = True
            if not self._news.wait(SILENCE_S):
                self._take_over()

    def close(self) -> None:
        """Cancel all calls, including duplicate requests; a hanging service would not end them."""
        for lane in self._lanes.values():
            lane.call.cancel()
        self._lanes.clear()

    def _answers(self, address: str) -> list[tuple[int, wire.Outputs | str]]:
        lane, answers = self._lanes[address], list[tuple[int, wire.Outputs | str]]()
        try:
            for key, result in lane.call.receive(block=bool(lane.held) and lane.call.ended):
                if isinstance(result, str) and result.startswith((CLOSED, GIVEN_UP)):
                    raise AcceleratorError(result, where=address)
                lane.held.pop(key, None)
                if self._unanswered.pop(key, None) is not None:  # else another service was first
                    answers.append((key, result))
        except AcceleratorError as error:
            self._lose(address, error)
        else:
            if answers:
                self._session.answered(address)
        return answers

    def _lose(self, address: str, error: AcceleratorError) -> None:
        self._problem, lane = error, self._lanes.pop(address)
        lane.call.cancel()
        elsewhere = {key for other in self._lanes.values() for key in other.held}
        self._waiting.extendleft(key for key in lane.held if key in self._unanswered and key not in elsewhere)
        self._session.lost(address, error)

    def _hand_out(self) -> None:
        now_s = time.monotonic()
        if now_s - self._checked_s > (LOOK_S if self._lanes else SILENCE_S / 2):
            self._checked_s = now_s
            for address, session in self._session.present().items():
                if address not in self._lanes:
                    self._lanes[address] = _ServiceCall(session.call(self._news.set))
        while self._waiting and self._lanes:
            address = min(self._lanes, key=lambda name: self._lanes[name].frames)
            if self._give(address, self._waiting[0]):
                self._waiting.popleft()

    def _give(self, address: str, key: int) -> bool:
        """Send a sequence to a service; False if the service was lost."""
        lane, sequence = self._lanes[address], self._unanswered[key]
        try:
            lane.call.send(sequence, self._window_frames)
        except AcceleratorError as error:
            self._lose(address, error)
            return False
        lane.held[key] = sequence.frames
        return True

    def _take_over(self) -> None:
        """Idle services take over half of the others' sequences: the youngest, last in their queues."""
        holders = Counter(key for lane in self._lanes.values() for key in lane.held)
        alone = [key for key in self._unanswered if holders[key] == 1]  # in the order in which they were sent
        for address in [address for address, lane in self._lanes.items() if not lane.held]:
            older = len(alone) // 2
            for key in alone[older:]:
                if not self._give(address, key):
                    break
            alone = alone[:older]

    def _silence(self) -> AcceleratorError:
        last = f"; last error: {self._problem}" if self._problem else ""
        return AcceleratorError(
            f"no model service has answered for {PATIENCE_S:g} s{last}",
            where=self._session.url,
            remedy="check `megahour serve` on the machines with devices",
        )
