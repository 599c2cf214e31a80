"""Words that all workers of a group can read, also where the connections between them are broken.

Of each key the first word stays, whoever wrote it: so workers that do not hear each other decide alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch._C._distributed_c10d import Store

from megahour.sync.group.base import WorkerLostError
from megahour.sync.group.survivors import in_time


class Ledger(Protocol):
    """The words of one group."""

    patience_s: float
    """How long to wait for the word of a worker that another one takes for lost."""

    def first(self, key: str, word: str) -> str:
        """The word under `key`: this one, unless another was there before."""

    def get(self, key: str) -> str | None:
        """The word under `key`, if there is one."""


class StoreLedger:
    """In the store of a process group.

    Parameters
    ----------
    store: of the process group; None where it has none.
    prefix: of the keys, another one for each group.
    timeout_s: in which the store must answer.
    patience_s: see `Ledger`.
    """

    def __init__(self, store: Store | None, prefix: str, timeout_s: float, patience_s: float) -> None:
        self._store, self._prefix, self._timeout_s, self.patience_s = store, prefix, timeout_s, patience_s

    def first(self, key: str, word: str) -> str:
        """See `Ledger`. Raises WorkerLostError: the store does not answer."""
        name = f"{self._prefix}/{key}"
        return self._ask(lambda store: store.compare_set(name, "", word).decode())

    def get(self, key: str) -> str | None:
        """See `Ledger`. Raises WorkerLostError: the store does not answer."""
        name = f"{self._prefix}/{key}"
        return self._ask(lambda store: store.get(name).decode() if store.check([name]) else "") or None

    def _ask(self, call: Callable[[Store], str]) -> str:
        store = self._store
        answer = None if store is None else in_time(lambda: call(store), self._timeout_s)
        if answer is None:
            raise WorkerLostError(
                "the store where workers agree how to go on does not answer, and with it the worker that hosts it",
                remedy="go back to the last checkpoint; start workers by torchrun, whose agent hosts the store",
            )
        return answer


class SharedLedger:
    """In a dictionary that virtual workers share."""

    patience_s = 0.0

    def __init__(self, words: dict[str, str]) -> None:
        self._words = words

    def first(self, key: str, word: str) -> str:
        """See `Ledger`."""
        return self._words.setdefault(key, word)

    def get(self, key: str) -> str | None:
        """See `Ledger`."""
        return self._words.get(key)
