"""What every engine does: `map`, `exchange`, `reduce` over small items, and the errors and helpers that engines share.

Both engines run the same worker-side functions (`attempt`, `Tree`, `megahour.engine.blocks`), so that a stage gives the
same bytes on either: batches are cut at the same rows and sums are added in the same order.
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

# Libraries that start threads read these when they are imported. One thread a task: the sum of a matrix product must
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
        """Tasks that run at the same time."""

    def map(self, call: Call, items: Iterable[Any], *, on_done: OnDone | None = None) -> Iterator[tuple[int, Any]]:
        """(index of the item, `call(item)`) in order of completion; `on_done` hears each result first.

        Raises TaskFailed when `call` raised, or when a task's worker died or ran out of time on every attempt.
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
        """`combine` over `call(item)` in a balanced binary tree whose shape depends on the number of items only."""

    def close(self) -> None:
        """Stop the workers."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class EngineBase:
    """What all engines do in the same way: report results, and close at the end of `with`."""

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
    """An engine cannot start or go on."""


class TaskFailed(EngineError):
    """One task failed for good.

    Attributes
    ----------
    item: the item of the task.
    traceback: text of the traceback in the worker; empty when the worker died or ran out of time.
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
    """An exception of a task, on its way back from a worker. `error` is there when it is one for the user to read."""

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
        """Raises TaskFailed; from the error itself when that has its own explanation, else with its traceback.

        MissingPackage is raised as it is: it is about the installation, not about a task.
        """
        if isinstance(self.error, MissingPackage):
            raise self.error
        if self.error is not None:
            message, remedy = f"{self.kind}: {self.error}", ""
        else:
            message, remedy = f"{self.kind}: {self.message}\n{self.traceback}", "mend the stage or its input"
        raise TaskFailed(
            message, where=f"{self.task} ({shown(self.item)})", remedy=remedy, item=self.item, traceback=self.traceback
        ) from self.error


Outcome = Success | Failure


def attempt(call: Call, *arguments: Any, task: str, item: Any) -> Outcome:
    """Run a call in a worker. What it raises becomes a value, because an exception is an answer: it is not retried."""
    try:
        return Success(call(*arguments))
    except (Exception, SystemExit) as error:
        return Failure.of(error, task, item)


def packed(outcome: Outcome, *, task: str, item: Any) -> bytes:
    """Pickle an outcome for the pipe back to the driver; a result that cannot be pickled is a failure of its task."""
    try:
        return pickle.dumps(outcome)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        return pickle.dumps(Failure.of(error, task, item))


def shown(item: Any) -> str:
    """An item as text, cut to a length that fits an error message."""
    text = repr(item)
    return text if len(text) <= ITEM_CHARACTERS else text[: ITEM_CHARACTERS - 1] + "…"


class Tree:
    """Combines values in a balanced binary tree while they arrive in order, holding log2(n) of them.

    The tree over n values has the first 2^k in its left half, 2^k the largest power of two below n. So a tree over
    the results of aligned blocks of 2^j values is the same tree: work can be cut anywhere between such blocks.
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
        """The root. Raises ValueError when nothing was added."""
        if not self._parts:
            raise ValueError("nothing to reduce: there are no items")
        value = self._parts[-1][1]
        for _, left in reversed(self._parts[:-1]):
            value = self._combine(left, value)
        return value


def in_order(results: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    """Values of (index, value) pairs that come in any order, in order of index from 0; early ones wait."""
    waiting: dict[int, Any] = {}
    following = 0
    for index, value in results:
        waiting[index] = value
        while following in waiting:
            yield waiting.pop(following)
            following += 1


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Start a process with SIGINT blocked, so that Ctrl-C cannot hit it before it ignores the signal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
