"""Prepares batches ahead of the steps that need them, and opens windows while the previous one is in use.

Threads prepare the next batches, which are returned in the order of the requests. A request determines its batch by
arithmetic (`plan`), so threads have no state: batches are bit-identical to those made one by one, and training can
resume at any batch at no cost.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple

from megahour.batches.in_order import in_order
from megahour.batches.loader import Batch, Loader

REMEMBERED = 4096  # number of recently requested windows to remember


class Request(NamedTuple):
    """Identifies a batch of a loader."""

    loader: Loader
    epoch: int
    number: int
    offset: int
    chunk: int

    @property
    def window(self) -> tuple[object, ...]:
        """A key that identifies the window of the batch."""
        index, _, _ = self.loader.plan(self.epoch).locate(self.number)
        return id(self.loader), self.epoch, index, self.offset, self.chunk

    def open(self) -> None:
        self.loader.window(self.epoch, self.number, offset=self.offset, chunk=self.chunk)

    def batch(self) -> Batch:
        return self.loader.batch(self.epoch, self.number, offset=self.offset, chunk=self.chunk)


class Ahead:
    """Batches by their number in a schedule. Use as a context manager, in one thread.

    Parameters
    ----------
    request: maps a number to its request. It must be a pure function, since threads call it.
    numbers: the numbers that will be requested, in order; their batches are prepared ahead. Iterated twice.
    following: replaces `numbers` if the assignment to workers is unknown: the numbers that may follow a given one. Only
        windows are then opened ahead.
    prefetch: largest number of ready batches that wait; 0 makes each batch on request, in the caller's thread.
    """

    def __init__(
        self,
        request: Callable[[int], Request],
        *,
        prefetch: int,
        numbers: Iterable[int] | None = None,
        following: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        self._request, self._prefetch, self._numbers, self._following = request, prefetch, numbers, following
        self._made: Iterator[tuple[int, Batch]] | None = None
        self._stack = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._asked: OrderedDict[tuple[object, ...], None] = OrderedDict()
        self._next: tuple[object, ...] | None = None  # the window that was opened ahead and is not used yet
        self._coming: Iterator[int] = iter(numbers or ())
        self._opening = False

    def __enter__(self) -> Ahead:
        if self._prefetch:
            self._opener = ThreadPoolExecutor(1, thread_name_prefix="window")
            self._stack.callback(self._opener.shutdown, wait=False, cancel_futures=True)
            if self._numbers is not None:
                threads = min(2, self._prefetch)
                self._made = self._stack.enter_context(
                    in_order(self._make, self._numbers, threads=threads, ahead=self._prefetch)
                )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._numbers = self._following = None
        self._coming = iter(())
        self._stack.close()

    def batch(self, number: int) -> Batch:
        """Batch `number`. Errors in the thread that prepares it are raised here.

        Raises
        ------
        ValueError: `number` is not the next of `numbers`.
        """
        if self._made is None:
            return self._make(number)[1]
        made, batch = next(self._made, (None, None))
        if made != number or batch is None:
            raise ValueError(f"batch {number} is asked for, {made} is the next")
        return batch

    def _make(self, number: int) -> tuple[int, Batch]:
        request = self._request(number)
        if self._prefetch:
            self._note(request.window, number)
        return number, request.batch()

    def _note(self, window: tuple[object, ...], number: int) -> None:
        """Open the next window once the one opened ahead is in use."""
        with self._lock:
            self._asked[window] = None
            self._asked.move_to_end(window)
            while len(self._asked) > REMEMBERED:
                self._asked.popitem(last=False)
            if self._next == window:
                self._next = None
            if self._next is None and not self._opening:
                self._opening = True
                if self._following is not None:
                    self._coming = iter(self._following(number))
                with contextlib.suppress(RuntimeError):  # the context has ended
                    self._opener.submit(self._open_ahead)

    def _open_ahead(self) -> None:
        for number in self._coming:
            request = self._request(number)
            window = request.window
            with self._lock:
                if window in self._asked:
                    continue
                self._next = window
            with contextlib.suppress(Exception):  # the error recurs, and is raised, when the window is needed
                request.open()
            with self._lock:
                if self._next is not None:  # `_note` opens another once this one is in use
                    self._opening = False
                    return
        with self._lock:
            self._opening = self._following is None  # there are no more
