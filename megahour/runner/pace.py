"""Estimates the remaining time of work: from its own pace, else from the last run, else unknown."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence


class Pace:
    """Pace and remaining time of one step.

    Parameters
    ----------
    last_s: seconds that the whole step took last time; None if it was never timed.
    clock: seconds; a monotonic clock by default.
    """

    def __init__(self, last_s: float | None = None, clock: Callable[[], float] | None = None) -> None:
        self._last_s, self._clock = last_s, clock or time.monotonic
        self.begin(0.0, 0.0)

    def begin(self, done: float, total: float) -> None:
        """Work begins where an earlier session stopped."""
        self._first = self.done = done
        self.total = total
        self._started = self._updated = self._clock()

    def update(self, done: float, total: float) -> None:
        self.done, self.total, self._updated = done, total, self._clock()

    @property
    def spent_s(self) -> float:
        """Seconds since `begin`."""
        return self._clock() - self._started

    @property
    def rate(self) -> float:
        """Units a second, in this session."""
        return (self.done - self._first) / max(self._updated - self._started, 1e-6)

    def left_s(self) -> float | None:
        """Estimated seconds left; None if there is no basis for an estimate."""
        if not self.total:
            return None
        if self.done > self._first:
            left = (self.total - self.done) / self.rate - (self._clock() - self._updated)
            return max(left, 0.0)
        if self._last_s is None:
            return None
        left = self._last_s * (1 - self._first / self.total) - self.spent_s
        return left if left > 0 else None  # slower than last time, by an unknown amount


def run_left(left_s: float | None, later_s: Sequence[float | None], at_once: int = 1) -> tuple[float | None, bool]:
    """Estimated seconds left of a run, and whether the estimate covers all steps.

    Parameters
    ----------
    left_s: of the current step. later_s: of each other step that has not ended. None: unknown.
    at_once: how many steps run at the same time.

    It is None if no other step is known, and a lower bound if one part is unknown, or if several steps run at once: one
    may have to wait for another.
    """
    parts = [left_s, *later_s]
    known = [part for part in parts if part is not None]
    complete = len(known) == len(parts)
    if not complete and all(later is None for later in later_s):
        return None, False
    return max(sum(known) / at_once, *known, 0.0), complete and at_once == 1
