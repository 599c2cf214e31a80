"""Alerts for unattended runs: the loss diverges, steps stall, or the run fails.

The alarm does not stop the run. Its hook is a function of the message, or a command (mail, chat, pager) that takes the
message as its last argument. Hooks run in a separate thread, so training does not wait for them.
"""

from __future__ import annotations

import atexit
import logging
import math
import shlex
import shutil
import statistics
import subprocess
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from types import TracebackType

from megahour.core.errors import ConfigError

LEAST_RISE = 0.05
"""Share of the loss at the start by which it must rise to diverge: what has been learnt by heart has losses near zero,
and one hard batch makes them many times as large."""


class Divergence:
    """Tracks the losses of one kind of step.

    In a healthy run, the loss of a single batch may be several times the usual one (hard speaker, short batch), so only
    the median of the last `patience` losses counts. The usual loss is the median of the `window` before them. A loss
    that is not finite counts at once, until `patience` finite ones have followed.

    Parameters
    ----------
    factor: the loss diverges when that median exceeds `factor` times the usual loss u or, if u is negative (log
        likelihoods), u + (`factor` - 1) |u|; and when it exceeds u by `LEAST_RISE` of the first usual loss.
    window: number of losses for the usual loss; with fewer than `patience` so far, it is undefined.
    patience: number of losses for the current median, so about how many steps a jump must last to count.
    """

    def __init__(self, factor: float, window: int, patience: int) -> None:
        self.factor, self.patience = factor, patience
        self._usual: deque[float] = deque(maxlen=window)
        self._now: deque[float] = deque(maxlen=patience)
        self._diverged = False
        self._first: float | None = None  # the usual loss at the start

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
        if self._first is None:
            self._first = usual
        rise = max((self.factor - 1) * abs(usual), LEAST_RISE * abs(self._first))
        return statistics.median_low(self._now) > usual + rise

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


LOG = logging.getLogger(__name__)
HOOK_TIMEOUT_S = 60.0
EXIT_S = 5.0
"""How long an exiting process waits for its hooks; a command already started keeps running."""
MAX_UNTOLD = 20


def command_hook(command: str, *, timeout_s: float = HOOK_TIMEOUT_S) -> Callable[[str], None]:
    """A hook that runs `command MESSAGE`, without a shell, and kills it after `timeout_s`.

    The hook raises OSError when the command cannot be run, fails, or takes too long. Its message is logged, so it omits
    the command's arguments: they may hold secrets.

    Raises
    ------
    ConfigError: `command` is empty, or has an unclosed quote.
    """
    words = _words(command)

    def run(message: str) -> None:
        try:
            done = subprocess.run([*words, message], timeout=timeout_s, check=False, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{words[0]} was killed after {timeout_s:g} s") from None
        if done.returncode:
            raise OSError(f"{words[0]} failed with exit code {done.returncode}")

    return run


def check_command(command: str) -> None:
    """Check, before a long run, that `command` can be run when it is needed.

    Raises
    ------
    ConfigError: `command` is empty, has an unclosed quote, or its program is not on this machine.
    """
    program = _words(command)[0]
    if shutil.which(program) is None:
        raise ConfigError(
            f"the alarm's command {program} does not exist, or is not executable",
            where="alarm",
            remedy="give its full path, and chmod +x it",
        )


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"the alarm's command cannot be parsed: {error}", where="alarm") from None
    if not words:
        raise ConfigError("the alarm's command is empty", where="alarm")
    return words


class Teller:
    """Passes messages to a hook one at a time, in threads, so that callers do not wait.

    Parameters
    ----------
    tell: the hook; an exception it raises is logged with the message.
    timeout_s: a hook that takes longer is abandoned, and the next message is sent.
    """

    def __init__(self, tell: Callable[[str], None], *, timeout_s: float = HOOK_TIMEOUT_S) -> None:
        self._tell, self._timeout_s = tell, timeout_s
        self._untold: deque[str] = deque()
        self._changed = threading.Condition()

    def say(self, message: str) -> None:
        """Queue a message; returns at once. If `MAX_UNTOLD` messages are waiting, it is only logged."""
        with self._changed:
            if len(self._untold) == MAX_UNTOLD:
                LOG.error("the alarm's hook is too slow; message not delivered: %s", message)
                return
            self._untold.append(message)
            if len(self._untold) == 1:
                atexit.register(self.wait, EXIT_S)
                threading.Thread(target=self._tell_all, daemon=True, name="alarm-hooks").start()

    def wait(self, timeout_s: float = HOOK_TIMEOUT_S) -> bool:
        """Wait until all messages have been delivered; False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._untold, timeout_s)

    def _tell_all(self) -> None:
        left = 1
        while left:
            message = self._untold[0]
            hook = threading.Thread(target=self._call, args=(message,), daemon=True, name="alarm-hook")
            hook.start()
            hook.join(self._timeout_s)
            if hook.is_alive():
                LOG.error("the alarm's hook has not returned after %g s; message: %s", self._timeout_s, message)
            with self._changed:
                self._untold.popleft()
                left = len(self._untold)
                if not left:
                    atexit.unregister(self.wait)
                    self._changed.notify_all()

    def _call(self, message: str) -> None:
        try:
            self._tell(message)
        except Exception:  # a failing hook must not stop training
            LOG.exception("the alarm's hook failed; message: %s", message)


class Alarm:
    """Watches steps and reports each problem once; again only if it ended and came back.

    As a context manager, it also reports an error that ends the block:

        with Alarm(command_hook("/usr/local/bin/page-me")) as alarm:
            for step, batch in enumerate(batches):
                …
                alarm.step(step, loss)

    Parameters
    ----------
    tell: see `Teller`.
    factor, window, patience: see `Divergence`; a non-finite loss is reported at once.
    stall_s: report a stall after this long without a step, or `stall_factor` times the median step if longer.
    hook_timeout_s: how long `tell` may take.
    """

    def __init__(
        self,
        tell: Callable[[str], None] = LOG.error,
        *,
        factor: float = 3.0,
        window: int = 100,
        patience: int = 10,
        stall_s: float = 60.0,
        stall_factor: float = 20.0,
        hook_timeout_s: float = HOOK_TIMEOUT_S,
    ) -> None:
        self.stall_s, self.stall_factor = stall_s, stall_factor
        self._teller = Teller(tell, timeout_s=hook_timeout_s)
        self._losses: defaultdict[str, Divergence] = defaultdict(lambda: Divergence(factor, window, patience))
        self._durations_s: deque[float] = deque(maxlen=window)
        self._last_s, self._step = time.monotonic(), 0
        self._stalled = False
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="alarm").start()

    def step(self, step: int, loss: float | None, kind: str = "") -> None:
        """Record a finished step; its loss is compared with steps of the same `kind` (e.g. of data)."""
        now_s = time.monotonic()
        self._durations_s.append(now_s - self._last_s)
        self._last_s, self._step, self._stalled = now_s, step, False
        if loss is not None and (alarm := self._losses[kind].step(loss)):
            self.call(f"step {step}{f' ({kind})' if kind else ''}: {alarm}")

    def alive(self) -> None:
        """Report that a long operation within the step, such as an evaluation, is making progress."""
        self._last_s, self._stalled = time.monotonic(), False

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self.stall_s / 4)):
            usual_s = statistics.median(tuple(self._durations_s) or (0.0,))
            waited_s = time.monotonic() - self._last_s
            if waited_s > max(self.stall_s, self.stall_factor * usual_s) and not self._stalled:
                self._stalled = True
                self.call(f"no step has finished for {waited_s:.0f} s after step {self._step} (usual: {usual_s:.2g} s)")

    def __enter__(self) -> Alarm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):  # not Ctrl-C: the user knows
            self.call(f"training ended after step {self._step}: {type(error).__name__}: {error}")
        self.close()

    def call(self, message: str) -> None:
        """Send any message. Returns at once."""
        self._teller.say(message)

    def wait(self, timeout_s: float = HOOK_TIMEOUT_S) -> bool:
        """Block until every queued alert has been delivered; False on timeout."""
        return self._teller.wait(timeout_s)

    def close(self) -> None:
        """Stop watching. Messages queued before or after this are still delivered."""
        self._closed.set()
