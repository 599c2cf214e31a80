"""A scheduler of threads that take turns: exactly one runs, and their virtual clocks and ranks decide which is next.

A turn runs until it waits for something or its clock passes that of another; then the one with the earliest clock
runs, the lower rank first among equals. So interactions happen in the order of virtual time (a discrete event
simulation), the same in every run. Each worker has its own state of torch's random generator.

An effect without cost still follows its cause: besides seconds, clocks count cycles (the delta cycles of hardware
simulators), and a call without cost ends in the cycle after its last arrival. So equally fast workers act
simultaneously, and none sees the effect of its message on another before that one has sent its own.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch

from megahour.sync.group.base import WorkerLostError


class Stopped(BaseException):
    """Unwinds the remaining turns after another has failed; not an Exception, so that handlers let it pass."""


class Moment(NamedTuple):
    """A virtual time: seconds, and the cycle within them."""

    seconds: float = 0.0
    cycle: int = 0

    def after(self, seconds: float) -> Moment:
        """The moment `seconds` later; the next cycle if that is 0."""
        return Moment(self.seconds + seconds) if seconds > 0 else Moment(self.seconds, self.cycle + 1)


class Turn:
    """One thread: the worker it belongs to, its clock, and the call in which it waits."""

    def __init__(self, rank: int, number: int, now: Moment) -> None:
        self.rank, self.number, self.now = rank, number, now
        self.call = ""
        self.ended = False
        self.lost: WorkerLostError | None = None
        self.woken = threading.Semaphore(0)

    @property
    def now_s(self) -> float:
        """The clock's seconds."""
        return self.now.seconds


class TurnScheduler:
    """Decides which turn runs, and ends all turns after an error."""

    def __init__(self, workers: int, seed: int) -> None:
        torch.manual_seed(seed)
        self._random = [torch.get_rng_state() for _ in range(workers)]
        self._queue: list[tuple[Moment, int, int, Turn]] = []
        self._conditions: list[tuple[Turn, Callable[[], bool]]] = []
        self._over = threading.Event()
        self._stopping = False
        self.turns: list[Turn] = []
        self.running: Turn | None = None
        self.error: BaseException | None = None

    @property
    def turn(self) -> Turn:
        """The running turn, which is the caller's."""
        assert self.running is not None
        if self._stopping:
            raise Stopped
        return self.running

    def add(self, rank: int, now: Moment, play: Callable[[], None]) -> Turn:
        """Add a turn of worker `rank`, which begins at `now`."""
        turn = Turn(rank, len(self.turns), now)
        self.turns.append(turn)
        self._push(turn)
        threading.Thread(target=self._play, args=(turn, play), name=f"worker-{rank}", daemon=True).start()
        return turn

    def play(self) -> None:
        """Run all turns to their ends; raises the first error, naming its worker."""
        self._pass_on()
        try:
            self._over.wait()
        finally:
            self._stopping = True
        if self.error is not None:
            raise self.error

    def wait(self, call: str) -> None:
        """Let others run until another turn wakes this one; `call` names it in messages."""
        turn = self.turn
        turn.call = call
        self._pass_on()
        self._resume(turn)

    def wait_until(self, condition: Callable[[], bool], call: str) -> None:
        """Let others run until `condition()` is true; it is evaluated whenever a turn ends or a clock moves."""
        turn = self.turn
        if not condition():
            self._conditions.append((turn, condition))
            self.wait(call)

    def wake(self, turn: Turn, now: Moment) -> None:
        """Let the waiting `turn` continue at `now`."""
        turn.now = max(turn.now, now)
        self._push(turn)

    def advance(self, now: Moment) -> None:
        """Advance this turn's clock to `now`; turns with earlier clocks run first."""
        turn = self.turn
        self._meet_conditions(turn.now)
        turn.now = max(turn.now, now)
        if self._queue and self._queue[0][:2] < (turn.now, turn.rank):
            self._push(turn)
            self._pass_on()
            self._resume(turn)

    def _push(self, turn: Turn) -> None:
        heapq.heappush(self._queue, (turn.now, turn.rank, turn.number, turn))

    def _resume(self, turn: Turn) -> None:
        turn.woken.acquire()
        if self._stopping:
            raise Stopped
        turn.call = ""
        lost, turn.lost = turn.lost, None
        if lost is not None:
            raise lost

    def _pass_on(self) -> None:
        """Choose the next turn and let it run; called by the running one."""
        last = self.running
        if last is not None and not self._stopping:
            self._meet_conditions(last.now)
        if not self._queue and not self._stopping:
            self._lose()
        chosen = self._next()
        if chosen is None:
            self._over.set()
            return
        if last is None or last.rank != chosen.rank:
            if last is not None:
                self._random[last.rank] = torch.get_rng_state()
            torch.set_rng_state(self._random[chosen.rank])
        self.running = chosen
        chosen.woken.release()

    def _meet_conditions(self, now: Moment) -> None:
        """Let turns whose conditions hold continue after `now`, the clock of the turn that changed them."""
        met = [pair for pair in self._conditions if pair[1]()]
        self._conditions = [pair for pair in self._conditions if pair not in met]
        for turn, _ in met:
            self.wake(turn, now.after(0.0))

    def _next(self) -> Turn | None:
        if self._stopping:
            return next((turn for turn in self.turns if not turn.ended), None)
        return heapq.heappop(self._queue)[3] if self._queue else None

    def _lose(self) -> None:
        """No turn can continue: raise an error in the waiting ones."""
        waiting = [turn for turn in self.turns if not turn.ended]
        self._conditions.clear()
        gone = sorted({turn.rank for turn in self.turns} - {turn.rank for turn in waiting})
        why = f"ranks {gone} have ended" if gone else "; ".join(f"rank {t.rank} waits in {t.call}" for t in waiting)
        for turn in waiting:
            turn.lost = WorkerLostError(
                f"{turn.call} cannot end: {why}",
                where=f"rank {turn.rank}",
                remedy="all workers of a group must make the same calls; give weight 0 where there is no batch",
            )
            self._push(turn)

    def _play(self, turn: Turn, play: Callable[[], None]) -> None:
        turn.woken.acquire()
        try:
            with contextlib.suppress(Stopped):
                if not self._stopping:
                    play()
        except BaseException as error:
            if self.error is None:
                error.add_note(f"in virtual worker {turn.rank}")
                self.error = error
            self._stopping = True
        finally:
            turn.ended = True
            self._pass_on()
