"""An engine without processes, for tests that count what stages ask of a store."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa

from megahour.core.stage import Stage
from megahour.core.store import Artifact
from megahour.engine.blocks import sliced
from megahour.runner.runner import run_stage

Call = Callable[..., Any]


class EngineHere:
    """Runs tasks one after the other in this process; `first_s` is when the first task of a `map` began, and
    `first_cpu_s` the CPU time of this process by then; `blocks` is how many blocks exchanges sent, of all engines.
    """

    workers = 1
    first_s = first_cpu_s = 0.0
    blocks: ClassVar[int] = 0

    def map(self, call: Call, items: Iterable[Any], *, on_done: Any = None) -> Iterator[tuple[int, Any]]:
        self.first_s, self.first_cpu_s = time.monotonic(), time.process_time()
        for index, item in enumerate(items):
            yield index, call(item)

    def exchange(
        self, split: Call, items: Iterable[Any], merge: Call, partitions: int, *, spill: str
    ) -> Iterator[tuple[int, Any]]:
        batches: dict[int, list[pa.RecordBatch]] = defaultdict(list)
        for item in items:
            for partition, batch in split(item):
                for piece in sliced(batch):
                    batches[partition].append(piece)
                    EngineHere.blocks += 1
        for partition in range(partitions):
            yield partition, merge(partition, iter(batches[partition]))

    def reduce(self, call: Call, items: Iterable[Any], combine: Call) -> Any:
        raise NotImplementedError

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


def with_layouts(stage: Stage[Any], p: Any, inputs: Mapping[str, Artifact], folder: Path) -> dict[str, Artifact]:
    """The inputs, and what the stage lays out for its tasks, for tests that call `Stage.run` themselves."""
    found = dict(inputs)
    for role, laid_out in stage.layouts(p, inputs).items():
        own = {name: found[here] for name, here in laid_out.roles.items()}
        found[role] = Artifact(folder / role)
        run_stage(laid_out.stage, laid_out.params, own, found[role], EngineHere(), work=folder / "work")
    return found
