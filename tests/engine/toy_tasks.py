"""Task functions of the engine tests, in a module of their own because workers import them by name.

Dozens of workers start for them: arrays and tables are imported by the few functions that have any.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megahour.core.errors import StageError

if TYPE_CHECKING:
    import pyarrow as pa


def square(number: int) -> int:
    return number * number


def worker_pid(_: int) -> int:
    time.sleep(0.05)
    return os.getpid()


def nap_and_name(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


class Awkward:
    """A call that cannot be unpickled the first time, as if its module did not exist yet."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__dict__.update(state)
        marker = Path(self.folder) / "tried"
        if not marker.exists():
            marker.touch()
            raise ImportError("no such module yet")

    def __call__(self, number: int) -> int:
        return number + 1


class Noted:
    """A call that leaves a file each time that it is unpickled."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__dict__.update(state)
        (Path(self.folder) / uuid.uuid4().hex).touch()

    def __call__(self, number: int) -> int:
        return number


def leave_a_note_at_the_end(path: str) -> int:
    """The worker's own end writes a file; a kill does not."""
    Finalize(None, Path(path).touch, exitpriority=0)
    return 0


def touch(folder: str, number: int) -> int:
    (Path(folder) / str(number)).touch()
    return number


def end_worker(code: int) -> int:
    os._exit(code)


def hang_up_and_stay(_: int) -> None:
    """Closes its sockets, the pipe to the driver among them."""
    for file in list(Path("/proc/self/fd").iterdir()):
        if file.is_symlink() and str(file.readlink()).startswith("socket:"):
            os.close(int(file.name))
    time.sleep(60)


def blocked_signals(_: int) -> set[int]:
    return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])}


def threads_allowed(_: int) -> tuple[str, str]:
    return os.environ["OMP_NUM_THREADS"], os.environ["NUMBA_NUM_THREADS"]


def bracket(left: Any, right: Any) -> str:
    """Not associative: its result shows the shape of the tree."""
    return f"({left} {right})"


def fail_on(bad: int, number: int) -> int:
    if number == bad:
        raise ValueError(f"{number} is the bad one")
    return number


def refuse(number: int) -> int:
    raise StageError(f"{number} shards", where="toy", remedy="ask for fewer")


def die_on(bad: int, number: int) -> int:
    if number == bad:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_by(number: int) -> int:
    os.kill(os.getpid(), number)
    return number


def die_always(folder: str, number: int) -> int:
    """Leaves a file for each attempt."""
    (Path(folder) / uuid.uuid4().hex).touch()
    return die_by(signal.SIGKILL)


def die_first(folder: str, number: int) -> int:
    """Every task's first attempt kills its worker half-way; the second finds the marker and ends."""
    marker = Path(folder) / f"{number}.tried"
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def hang_first(folder: str, number: int) -> int:
    marker = Path(folder) / f"{number}.tried"
    if number == 1 and not marker.exists():
        marker.touch()
        time.sleep(600)
    return number


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def announce_and_stay(folder: str, number: int) -> int:
    """Writes its process id, then stays in one long call into C that never gives up the interpreter's lock."""
    (Path(folder) / f"{os.getpid()}.pid").touch()
    return sum(range(10**13)) + number


def eat_memory(size_bytes: int) -> int:
    import numpy as np

    block = np.ones(size_bytes, np.uint8)
    time.sleep(240)  # until it is stopped
    return int(block.sum())


def split_numbers(partitions: int, item: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of various sizes, to partitions in no order; the last partition gets none."""
    import numpy as np
    import pyarrow as pa

    numbers = np.random.Generator(np.random.PCG64(item))
    for position in range(7):
        values = numbers.integers(0, 1000, size=int(numbers.integers(0, 50)))
        batch = pa.record_batch({"task": [item] * len(values), "position": [position] * len(values), "value": values})
        yield int(numbers.integers(0, partitions - 1)), batch


def merge_rows(partition: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, list[dict[str, int]]]:
    return partition, [row for batch in batches for row in batch.to_pylist()]


def merge_to_file(folder: str, partition: int, batches: Iterator[pa.RecordBatch]) -> str:
    """Writes what it gets as it gets it, batch boundaries included; the digest of the file."""
    path = Path(folder) / f"{partition:05d}.arrow"
    path.write_bytes(b"".join(bytes(batch.serialize()) for batch in batches))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def split_fails(bad: int, item: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    import pyarrow as pa

    yield 0, pa.record_batch({"item": [item]})
    if item == bad:
        raise ValueError(f"{item} is the bad one")
    time.sleep(0.3)


def merge_leaves_trace(folder: str, partition: int, batches: Iterator[pa.RecordBatch]) -> int:
    (Path(folder) / f"{partition}.merged").touch()
    return sum(batch.num_rows for batch in batches)


def split_wide(rows: int, width_bytes: int, item: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """One batch of incompressible rows, all to partition 0."""
    import numpy as np
    import pyarrow as pa

    noise = np.random.Generator(np.random.PCG64(item)).bytes(rows * width_bytes)
    cells = [noise[row * width_bytes : (row + 1) * width_bytes] for row in range(rows)]
    yield 0, pa.record_batch({"cell": pa.array(cells, pa.large_binary())})


def merge_measured(partition: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, int, int]:
    """(rows, largest batch in bytes, growth of the process's own memory in bytes while merging)."""
    import psutil

    process = psutil.Process()
    before = process.memory_full_info().uss  # without what it maps of Ray's store
    rows = largest = growth = 0
    for batch in batches:
        rows += batch.num_rows
        largest = max(largest, batch.nbytes)
        growth = max(growth, process.memory_full_info().uss - before)
    return rows, largest, growth


def slow_split(partitions: int, item: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    time.sleep(0.1)
    yield from split_numbers(partitions, item)


def slow_merge(folder: str, partition: int, batches: Iterator[pa.RecordBatch]) -> str:
    time.sleep(1.0)
    return merge_to_file(folder, partition, batches)


def straggle_first(folder: str, number: int) -> int:
    """The first attempt at task 3 leaves a note and takes ten minutes, as one on a sick machine; a second is quick."""
    attempts = Path(folder) / f"{number}"
    attempts.mkdir(exist_ok=True)
    first = not any(attempts.iterdir())
    (attempts / uuid.uuid4().hex).touch()
    time.sleep(600.0 if first and number == 3 else 0.5)
    return number


def noted_split(folder: str, partitions: int, item: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """`split_numbers` that leaves a file each time that it is made."""
    (Path(folder) / f"{item}-{uuid.uuid4().hex}").touch()
    yield from slow_split(partitions, item)


def late_merge(folder: str, partition: int, batches: Iterator[pa.RecordBatch]) -> str:
    """Partition 0 is merged at once, the others begin to read after twenty seconds."""
    time.sleep(20.0 if partition else 0.0)
    return merge_to_file(folder, partition, batches)


def executor_folder(_: int) -> str:
    """The working directory of a Spark executor, which is its own."""
    time.sleep(0.3)
    return str(Path.cwd())
