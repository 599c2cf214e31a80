"""Detects a loss that jumps and stays high, relative to recent steps of the same kind."""

from __future__ import annotations

import math
import statistics
from collections import deque


class Divergence:
    """Tracks the losses of one kind of step.

    In a healthy run, the loss of a single batch may be several times the usual one (hard speaker, short batch), so only
    the median of the last `patience` losses counts. The usual loss is the median of the `window` before them. A loss
    that is not finite counts at once, until `patience` finite ones have followed.

    Parameters
    ----------
    factor: the loss diverges when that median exceeds `factor` times the usual loss u or, if u is negative (log
        likelihoods), u + (`factor` - 1) |u|.
    window: number of losses for the usual loss; with fewer than `patience` so far, it is undefined.
    patience: number of losses for the current median, so about how many steps a jump must last to count.
    """

    def __init__(self, factor: float, window: int, patience: int) -> None:
        self.factor, self.patience = factor, patience
        self._usual: deque[float] = deque(maxlen=window)
        self._now: deque[float] = deque(maxlen=patience)
        self._diverged = False

    def step(self, loss: float) -> str:
        """Add a loss; returns the message to send, empty if none or if the last problem persists."""
        before, self._diverged = self._diverged, self._diverges(loss)
        return self._describe(loss) if self._diverged and not before else ""

    def _diverges(self, loss: float) -> bool:
        if len(self._now) == self.patience and not self._diverged:
            self._usual.append(self._now[0])
        self._now.append(loss)
        if not all(map(math.isfinite, self._now)):
            return True
        usual = self._median()
        if usual is None or len(self._now) < self.patience:
            return False
        return statistics.median_low(self._now) > usual + (self.factor - 1) * abs(usual)

    def _median(self) -> float | None:
        return statistics.median(self._usual) if len(self._usual) >= self.patience else None

    def _describe(self, loss: float) -> str:
        usual = self._median()
        known = "" if usual is None else f", usually {usual:.4g} (median of {len(self._usual)} steps)"
        if not math.isfinite(loss):
            return f"the loss is {loss:.4g}{known}: look for NaN in the features, lower the learning rate or clip"
        now = f"{statistics.median_low(self._now):.4g} over the last {len(self._now)} steps"
        return (
            f"the loss diverges: {now}{known}; up to {self.factor:g} times that would be normal. If it stays there, "
            "go back to a checkpoint and lower the learning rate or clip"
        )
