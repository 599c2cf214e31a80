"""The engine interface (`map`, `exchange`, `reduce` over small items), with the errors and helpers that engines share.

All engines run the same worker-side functions (`attempt`, `Tree`, `megahour.engine.blocks`), so a stage gives the same
bytes on each: batches are cut at the same rows and sums are added in the same order.
"""

from __future__ import annotations

import pickle
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, Self

from megahour.core.errors import MegahourError
from megahour.core.extras import MissingPackage
from megahour.core.surroundings import explained

Call = Callable[..., Any]
OnDone = Callable[[int, Any], None]

# Threaded libraries read these when they are imported. One thread per task, since the sum of a matrix product must
# not depend on how many workers share the machine.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
ITEM_CHARACTERS = 300  # of an item's repr in an error message


class Engine(Protocol):
    """Runs picklable calls over small items; `Call`s are top-level functions, or partials of them."""

    @property
    def workers(self) -> int:
        """The number of concurrent tasks."""

    def map(self, call: Call, items: Iterable[Any], *, on_done: OnDone | None = None) -> Iterator[tuple[int, Any]]:
        """(index of the item, `call(item)`) in order of completion; `on_done` gets each result first.

        Raises TaskFailed if `call` raised, or if a task's worker died or timed out on every attempt.
        Closing the iterator stops the tasks that are still running.
        """

    def exchange(
        self, split: Call, items: Iterable[Any], merge: Call, partitions: int, *, spill: str
    ) -> Iterator[tuple[int, Any]]:
        """(partition, `merge(partition, batches)`) in order of completion, for every partition.

        `split(item)` yields (partition, pyarrow.RecordBatch); `merge` gets an iterator over the batches of its
        partition in order of (index of the item, position in what its split yielded), cut to `blocks.BLOCK_BYTES`.
        A merge starts after all splits. `spill` is a local directory that belongs to this call.
        """

    def reduce(self, call: Call, items: Iterable[Any], combine: Call) -> Any:
        """Reduce the `call(item)` with `combine`, in a balanced tree shaped only by the number of items."""

    def close(self) -> None:
        """Stop the workers."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class EngineBase:
    """The behaviour that all engines share: `on_done`, and closing at the end of `with`."""

    def map(self, call: Call, items: Iterable[Any], *, on_done: OnDone | None = None) -> Iterator[tuple[int, Any]]:
        """See `Engine.map`."""
        for index, result in self._each(call, items):
            if on_done is not None:
                on_done(index, result)
            yield index, result

    def close(self) -> None:
        """See `Engine.close`."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _each(self, call: Call, items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        raise NotImplementedError


class EngineError(MegahourError):
    """An engine cannot start or continue."""


class TaskFailed(EngineError):
    """One task failed for good.

    Attributes
    ----------
    item: the item of the task.
    traceback: text of the traceback in the worker; empty if the worker died or timed out.
    """

    def __init__(
        self, message: str, *, where: str = "", remedy: str = "", item: Any = None, traceback: str = ""
    ) -> None:
        super().__init__(message, where=where, remedy=remedy)
        self.item = item
        self.traceback = traceback


@dataclass(frozen=True)
class Success:
    """The result of a task, on its way back from a worker."""

    value: Any


@dataclass(frozen=True)
class Failure:
    """An exception of a task, on its way back from a worker. `error` is set if it has a message for users."""

    task: str
    item: Any
    kind: str
    message: str
    traceback: str
    error: MegahourError | None

    @staticmethod
    def of(error: BaseException, task: str, item: Any) -> Failure:
        text = "".join(traceback.format_exception(error))
        return Failure(task, item, type(error).__qualname__, str(error), text, explained(error))

    def throw(self) -> NoReturn:
        """Raise TaskFailed with the error's own explanation if it has one, else with its traceback.

        MissingPackage is raised unchanged: it concerns the installation, not a task.
        """
        if isinstance(self.error, MissingPackage):
            raise self.error
        if self.error is not None:
            message, remedy = f"{self.kind}: {self.error}", ""
        else:
            message, remedy = f"{self.kind}: {self.message}\n{self.traceback}", "fix the stage or its input"
        raise TaskFailed(
            message, where=f"{self.task} ({shown(self.item)})", remedy=remedy, item=self.item, traceback=self.traceback
        ) from self.error


Outcome = Success | Failure


def attempt(call: Call, *arguments: Any, task: str, item: Any) -> Outcome:
    """Run a call in a worker. An exception becomes a value, since exceptions are results that are not retried."""
    try:
        return Success(call(*arguments))
    except (Exception, SystemExit) as error:
        return Failure.of(error, task, item)


def packed(outcome: Outcome, *, task: str, item: Any) -> bytes:
    """Pickle an outcome for the pipe to the driver; a result that cannot be pickled makes its task a failure."""
    try:
        return pickle.dumps(outcome)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        return pickle.dumps(Failure.of(error, task, item))


def shown(item: Any) -> str:
    """An item as text, cut to fit an error message."""
    text = repr(item)
    return text if len(text) <= ITEM_CHARACTERS else text[: ITEM_CHARACTERS - 1] + "…"


class Tree:
    """Combines values in a balanced binary tree as they arrive in order, holding log2(n) of them.

    The left half of a tree over n values has the first 2^k, the largest power of two below n. So a tree over the
    results of aligned blocks of 2^j values is the same tree, and work can be split between any such blocks.
    """

    def __init__(self, combine: Callable[[Any, Any], Any]) -> None:
        self._combine = combine
        self._parts: list[tuple[int, Any]] = []  # (values below it: a power of two, combined value), largest first

    def add(self, value: Any) -> None:
        size = 1
        while self._parts and self._parts[-1][0] == size:
            value = self._combine(self._parts.pop()[1], value)
            size *= 2
        self._parts.append((size, value))

    def result(self) -> Any:
        """The root. Raises ValueError if nothing was added."""
        if not self._parts:
            raise ValueError("nothing to reduce: there are no items")
        value = self._parts[-1][1]
        for _, left in reversed(self._parts[:-1]):
            value = self._combine(left, value)
        return value


def in_order(results: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    """Sort (index, value) pairs that arrive in any order: yields the values from index 0 on, buffering early ones."""
    waiting: dict[int, Any] = {}
    next_index = 0
    for index, value in results:
        waiting[index] = value
        while next_index in waiting:
            yield waiting.pop(next_index)
            next_index += 1


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Block SIGINT while a process starts, so that Ctrl-C cannot reach it before it ignores the signal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
