"""Fetches slow values, such as those from a store or another program, in the background so scrapes do not wait."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
LOG = logging.getLogger(__name__)
EVERY_S = 15.0


class Fetched(Generic[T]):
    """The last result of `fetch`, which is called every `every_s` seconds after the first `look`.

    Attributes
    ----------
    value: result of the last successful call; None before the first.
    failed: whether the last call raised.
    """

    def __init__(self, fetch: Callable[[], T], every_s: float = EVERY_S) -> None:
        self._fetch, self._every_s = fetch, every_s
        self.value: T | None = None
        self.failed = False
        self._took_s, self._began_s = 0.0, 0.0
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def look(self) -> None:
        """Start fetching, unless an earlier call has."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="metrics")
            self._thread.start()

    def seconds(self) -> float:
        """Duration of the last call, or of the current one so far if that is longer."""
        began_s = self._began_s
        return max(self._took_s, time.monotonic() - began_s) if began_s else self._took_s

    def close(self) -> None:
        """Stop calling `fetch`, without waiting for a call that hangs."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._began_s = time.monotonic()
            try:
                self.value, self.failed = self._fetch(), False
            except Exception as error:
                if not self.failed:
                    LOG.warning("for the metrics: %s: %s", type(error).__name__, error)
                self.failed = True
            self._took_s, self._began_s = time.monotonic() - self._began_s, 0.0
            self._closed.wait(self._every_s)
