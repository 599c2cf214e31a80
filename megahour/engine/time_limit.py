"""A time limit on one attempt of a cluster's worker."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def time_limit(limit_s: float | None) -> Iterator[None]:
    """End this process at the limit: unlike a Python handler, SIGALRM's default action also stops calls into C."""
    if limit_s is None:
        yield
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
