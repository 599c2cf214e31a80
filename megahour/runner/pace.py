"""How long work will still take: from its own pace, else from the last run, else unknown."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence


class Pace:
    """The pace of one step.

    Parameters
    ----------
    last_s: seconds that the whole step took last time; None when it was never timed.
    clock: seconds; a monotonic clock by default.
    """

    def __init__(self, last_s: float | None = None, clock: Callable[[], float] | None = None) -> None:
        self._last_s, self._clock = last_s, clock or time.monotonic
        self.begin(0.0, 0.0)

    def begin(self, done: float, total: float) -> None:
        """Work begins where an earlier session stopped."""
        self._first = self.done = done
        self.total = total
        self._started = self._heard = self._clock()

    def update(self, done: float, total: float) -> None:
        self.done, self.total, self._heard = done, total, self._clock()

    @property
    def spent_s(self) -> float:
        """Seconds since `begin`."""
        return self._clock() - self._started

    @property
    def rate(self) -> float:
        """Units a second, in this session."""
        return (self.done - self._first) / max(self._heard - self._started, 1e-6)

    def left_s(self) -> float | None:
        """Seconds that are left, None when nothing is known."""
        if self.done > self._first:
            left = (self.total - self.done) / self.rate - (self._clock() - self._heard)
            return max(left, 0.0)
        if self._last_s is None or not self.total:
            return None
        left = self._last_s * (1 - self._first / self.total) - self.spent_s
        return left if left > 0 else None  # it is slower than last time; by how much is unknown


def run_left(left_s: float | None, later_s: Sequence[float | None]) -> tuple[float | None, bool]:
    """Seconds that a run still takes, and whether they are all of it.

    Parameters
    ----------
    left_s: of the step at work. later_s: of each that comes after it. None: not known.

    The sum is a lower bound where a part is not known, and None where nothing is known of the later steps.
    """
    parts = [left_s, *later_s]
    known = [part for part in parts if part is not None]
    if len(known) == len(parts):
        return sum(known), True
    if all(later is None for later in later_s):
        return None, False
    return sum(known), False
