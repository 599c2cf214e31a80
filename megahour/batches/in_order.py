"""Maps a function over items in threads, a few items ahead, and keeps their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

LONGEST_S = 1.0  # of one wait: Python sees an interrupt that came just before a wait only when the wait ends
Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int, ahead: int
) -> Iterator[Iterator[Result]]:
    """Iterate over `function(item)` for each item. At most `ahead` results wait while one is in use.

    If the function raises, the iterator raises the error in place of the result. When the context ends, the remaining
    items are skipped.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ahead")
    todo = iter(items)

    def results() -> Iterator[Result]:
        waiting: deque[Future[Result]] = deque(pool.submit(function, item) for item in islice(todo, ahead))
        while waiting:
            first = waiting.popleft()
            waiting.extend(pool.submit(function, item) for item in islice(todo, 1))
            while not first.done():
                wait([first], LONGEST_S)
            yield first.result()

    try:
        yield results()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
