"""An engine without processes, for tests that count what stages ask of a store."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import pyarrow as pa

Call = Callable[..., Any]


class EngineHere:
    """Runs tasks one after the other in this process; `first_s` is when the first task of a `map` began."""

    workers = 1
    first_s = 0.0

    def map(self, call: Call, items: Iterable[Any], *, on_done: Any = None) -> Iterator[tuple[int, Any]]:
        self.first_s = time.monotonic()
        for index, item in enumerate(items):
            yield index, call(item)

    def exchange(
        self, split: Call, items: Iterable[Any], merge: Call, partitions: int, *, spill: str
    ) -> Iterator[tuple[int, Any]]:
        batches: dict[int, list[pa.RecordBatch]] = defaultdict(list)
        for item in items:
            for partition, batch in split(item):
                batches[partition].append(batch)
        for partition in range(partitions):
            yield partition, merge(partition, iter(batches[partition]))

    def reduce(self, call: Call, items: Iterable[Any], combine: Call) -> Any:
        raise NotImplementedError

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...
