"""A ledger of words that all workers of a group can read, even if the connections between them are broken.

For each key the first word written stays, so that workers that cannot reach each other reach the same decision.
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
    """How long to wait for the word of a worker that another one considers lost."""

    def first(self, key: str, word: str) -> str:
        """Write `word` under `key` unless there is one already; returns the word that stays."""

    def get(self, key: str) -> str | None:
        """The word under `key`, if there is one."""


class StoreLedger:
    """A ledger in the store of a process group.

    Parameters
    ----------
    store: of the process group; None if it has none.
    prefix: of the keys, different for each group.
    timeout_s: within which the store must respond.
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
                "the store in which workers agree how to continue does not respond, so its host is lost too",
                remedy="go back to the last checkpoint; start workers by torchrun, whose agent hosts the store",
            )
        return answer


class SharedLedger:
    """A ledger in a dictionary shared by virtual workers."""

    patience_s = 0.0

    def __init__(self, words: dict[str, str]) -> None:
        self._words = words

    def first(self, key: str, word: str) -> str:
        """See `Ledger`."""
        return self._words.setdefault(key, word)

    def get(self, key: str) -> str | None:
        """See `Ledger`."""
        return self._words.get(key)
