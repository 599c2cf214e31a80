"""Which worker is lost: those who notice say so, and whoever says nothing is it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from torch._C._distributed_c10d import Store

_POLL_S = 0.05


def lost_ranks(store: Store | None, name: str, rank: int, size: int, suspect: int | None, grace_s: float) -> list[int]:
    """Ranks of those who are lost, as far as can be known after `grace_s`; empty: all answer, or nobody can be asked.

    Each who calls this writes its rank to `store` under `name`. The suspect, to whom the broken connection led, is lost
    unless it says in time that it is a victim itself; then those are who say nothing. Without a store, or where its
    host is lost too, the suspect is named.
    """
    suspected = [] if suspect is None else [suspect]
    if store is None:
        return suspected
    answered: set[int] = set()
    asking = threading.Thread(target=_ask, args=(store, name, rank, range(size), grace_s, answered), daemon=True)
    asking.start()
    asking.join(grace_s + 1.0)
    if rank not in answered or (suspect is not None and suspect not in answered):
        return suspected
    return [other for other in range(size) if other not in answered]


def _ask(store: Store, name: str, rank: int, ranks: Sequence[int], grace_s: float, answered: set[int]) -> None:
    ends_s = time.monotonic() + grace_s
    try:
        store.set(f"{name}/{rank}", "here")
        while len(answered) < len(ranks) and time.monotonic() < ends_s:
            answered.update(other for other in ranks if other not in answered and store.check([f"{name}/{other}"]))
            time.sleep(_POLL_S)
    except RuntimeError:
        answered.clear()  # the store's host is gone: what it knew says nothing of the others
