"""`in_order`: maps a function over items in threads, a few items ahead, keeping their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int, ahead: int
) -> Iterator[Iterator[Result]]:
    """`function(item)` for each item; at most `ahead` results wait while one is in use.

    An error of the function is raised in place of its result. Items not computed when the context ends are skipped.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ahead")
    todo = iter(items)

    def results() -> Iterator[Result]:
        waiting: deque[Future[Result]] = deque(pool.submit(function, item) for item in islice(todo, ahead))
        while waiting:
            first = waiting.popleft()
            waiting.extend(pool.submit(function, item) for item in islice(todo, 1))
            yield first.result()

    try:
        yield results()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
