"""An ARPA file that threads write together, a target at a time. A killed run goes on with the missing targets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from megahour.lm.arpa.read import Progress
from megahour.lm.scale.shard_lines import LineBlock, ModelFile
from megahour.lm.scale.shard_work import ShardWorker
from megahour.lm.scale.shards import ShardTree
from megahour.lm.scale.totals import Totals

R = TypeVar("R")
Lines = Callable[[ShardWorker, int, Sequence[int]], Iterable[LineBlock]]
"""lines(worker, target, places by order): the lines of a target."""


def each(
    numbers: Sequence[int], threads: int, new_worker: Callable[[], ShardWorker], call: Callable[[ShardWorker, int], R]
) -> Iterator[R]:
    """call(worker, number) for each number, in threads with one worker each; the results are in order."""
    own = threading.local()

    def work(number: int) -> R:
        if not hasattr(own, "worker"):
            own.worker = new_worker()
        return call(own.worker, number)

    with ThreadPoolExecutor(threads) as pool:
        yield from map(work, numbers) if threads == 1 else pool.map(work, numbers)


def write_whole(
    path: Path,
    folder: Path,
    tree: ShardTree,
    totals: Totals,
    unigrams: bytes,
    lines: Lines,
    *,
    threads: int,
    new_worker: Callable[[], ShardWorker],
    progress: Progress = lambda phase, done, total: None,
) -> None:
    """Write the file `path`. Its finished targets have marks in `folder`, and are kept if the file is still there.

    unigrams: their lines.
    """
    resumed = path.exists() and (folder / "begun").exists()
    for mark in folder.glob("written*") if not resumed else ():
        mark.unlink()
    file = ModelFile(path, resumed=resumed)
    file.begin(len(totals.sizes()), tree, totals.tallies, totals.sizes(), unigrams)
    (folder / "begun").touch()
    marks = [folder / f"written{target:06d}" for target in range(len(totals.tallies))]
    missing = [target for target, mark in enumerate(marks) if not mark.exists()]

    def write(worker: ShardWorker, target: int) -> None:
        file.write(lines(worker, target, file.places(target)))
        marks[target].touch()

    for done, _ in enumerate(each(missing, threads, new_worker, write), len(marks) - len(missing) + 1):
        progress("write", done, len(marks))
    file.close()
