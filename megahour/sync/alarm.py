"""An alarm for runs that nobody watches: the loss diverges, or no step has ended for long.

The alarm tells; it does not stop the run. Its hook is any function of the message, or a command that gets it as its
last argument (mail, chat, pager).
"""

from __future__ import annotations

import logging
import math
import shlex
import statistics
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable

LOG = logging.getLogger(__name__)
HOOK_TIMEOUT_S = 60.0


def command_hook(command: str) -> Callable[[str], None]:
    """A hook that runs `command MESSAGE`, without a shell."""
    words = shlex.split(command)

    def run(message: str) -> None:
        subprocess.run([*words, message], timeout=HOOK_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL)

    return run


class Alarm:
    """Watches steps; calls `tell(message)` once for each trouble, and again only after it was over.

    Parameters
    ----------
    tell: called from the training's thread (divergence) or the alarm's own (stall); what it raises is logged.
    factor: the loss diverges when it exceeds this many times the median of the last `window` steps, or is not finite.
    stall_s: no step for so long, or for `stall_factor` times the median step, whichever is longer.
    """

    def __init__(
        self,
        tell: Callable[[str], None] = LOG.error,
        *,
        factor: float = 3.0,
        window: int = 100,
        stall_s: float = 60.0,
        stall_factor: float = 20.0,
    ) -> None:
        self.tell, self.factor, self.stall_s, self.stall_factor = tell, factor, stall_s, stall_factor
        self._losses: deque[float] = deque(maxlen=window)
        self._durations_s: deque[float] = deque(maxlen=window)
        self._last_s, self._step = time.monotonic(), 0
        self._diverged = self._stalled = False
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="alarm").start()

    def step(self, step: int, loss: float | None) -> None:
        """A step has ended, with this loss."""
        now_s = time.monotonic()
        self._durations_s.append(now_s - self._last_s)
        self._last_s, self._step, self._stalled = now_s, step, False
        if loss is not None:
            self._check(loss)

    def _check(self, loss: float) -> None:
        usual = statistics.median(self._losses) if len(self._losses) >= 10 else math.inf
        # A loss may be negative (a log likelihood): then it diverges by its distance from the usual one.
        diverges = not math.isfinite(loss) or loss > usual + (self.factor - 1) * abs(usual)
        if diverges and not self._diverged:
            self.call(f"step {self._step}: the loss is {loss:.4g}, the median of the last steps {usual:.4g}")
        self._diverged = diverges
        if not diverges:
            self._losses.append(loss)

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self.stall_s / 4)):
            usual_s = statistics.median(tuple(self._durations_s) or (0.0,))
            waited_s = time.monotonic() - self._last_s
            if waited_s > max(self.stall_s, self.stall_factor * usual_s) and not self._stalled:
                self._stalled = True
                self.call(f"no step has ended for {waited_s:.0f} s after step {self._step} (usual: {usual_s:.2g} s)")

    def call(self, message: str) -> None:
        """Tell something, whatever it is."""
        try:
            self.tell(message)
        except Exception:  # whatever the hook is, training is worth more than it
            LOG.exception("the alarm's hook failed; its message was: %s", message)

    def close(self) -> None:
        """Stops watching."""
        self._closed.set()
