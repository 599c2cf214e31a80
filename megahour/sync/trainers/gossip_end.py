"""Ends gossip training with one model on all workers: the mean of all, or of the survivors.

If a worker is lost during a sum, only some of the others may get the sum. And a worker that hangs for too long
considers the others lost, while they consider it lost. So no worker returns a model before it knows that every other
worker that returns one has the same:

1. All workers compute the sum, and then exchange digests of it. One that sees all digests knows that all have the mean.
2. Each writes to the `Ledger` whether it has seen them ("all") or not ("survivors"). The first word decides for all. If
   it is "all", even a worker that has not seen the others' digests has sent its own, and so has the mean.
3. If it is "survivors", that mean is discarded. Present workers register; the first list of those present decides. A
   worker that is not on it came too late and gets an error. The others sum along the list, each writes the digest of
   its result, and returns the result once all digests are present and equal. Otherwise all get an error.
4. A worker that is done meets the others once more before its process may end: it may host the ledger that they read.

Workers whose ledger does not respond (its host is lost) get an error: they cannot know what the others do.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from megahour.core.errors import MegahourError
from megahour.sync.group.base import WorkerLostError
from megahour.sync.group.ledger import Ledger
from megahour.sync.trainers.gossip_ring import Forking
from megahour.sync.trainers.replicas import digest

LOG = logging.getLogger(__name__)
_POLL_S = 0.05
_TAG = 16  # above those of a ring
_REMEDY = "go back to the last checkpoint; the weights of this worker alone are in its model"


class Ending:
    """Ends the training of one ring.

    Parameters
    ----------
    group: the workers of the ring. ledger: their shared ledger.
    names: their names in messages.
    """

    def __init__(self, group: Forking, ledger: Ledger, names: Sequence[str]) -> None:
        self._group, self._ledger, self._names = group, ledger, names
        self._ends = 0

    def mean(self, own: Sequence[Tensor], lost: set[int]) -> list[Tensor]:
        """The mean over workers of each vector in `own`; all workers that return get the same bits. A collective call.

        Parameters
        ----------
        lost: ranks that this worker considers lost.

        Raises `WorkerLostError` if this worker cannot verify that it has the others' model; they may have ended.
        """
        end, self._ends = self._ends, self._ends + 1
        means: list[Tensor] = []
        try:
            means = [self._group.all_reduce(vector.clone().div_(self._group.size)).wait() for vector in own]
            self._check(means)
            found_by = "all"
        except WorkerLostError as error:
            lost, found_by = lost | set(error.ranks), "survivors"
            LOG.warning("cannot confirm that all workers have the same mean: %s", error.message)
        if self._ledger.first(f"{end}/mean", found_by) == "all":
            with contextlib.suppress(WorkerLostError):  # see the module, 4
                self._group.all_gather(torch.zeros(1)).wait()
            return means
        members = self._members(end, lost)
        LOG.warning("the final model is the mean of the remaining workers: %s", self._named(members))
        return self._mean_of(members, end, own)

    def _check(self, sums: list[Tensor]) -> None:
        """Exchange digests and check that all are equal. A worker that fails here has still sent its own."""
        digests = self._group.all_gather(torch.tensor([digest(sums)])).wait().flatten().tolist()
        if len(set(digests)) > 1:
            raise MegahourError(
                f"workers computed different sums of the same weights: digests {digests}", remedy=_REMEDY
            )

    def _members(self, end: int, lost: set[int]) -> list[int]:
        """Ranks of the workers that end together; the same on all of them."""
        group, ledger = self._group, self._ledger
        ledger.first(f"{end}/here/{group.rank}", json.dumps(sorted(lost)))
        began_s = time.monotonic()

        def complete() -> bool:
            """Whether all have registered, apart from workers that another considers lost and whose time is over."""
            here = self._here(end)
            missed = set(range(group.size)) - here.keys()
            known = {rank for ranks in here.values() for rank in ranks}
            return not missed or (missed <= known and time.monotonic() - began_s > ledger.patience_s)

        try:
            group.wait_until(complete, "the end of training on all workers", poll_s=_POLL_S)
        except WorkerLostError as error:
            LOG.warning("not all workers have reached the end: %s", error.message)
        members: list[int] = json.loads(ledger.first(f"{end}/members", json.dumps(sorted(self._here(end)))))
        if group.rank not in members:
            raise WorkerLostError(
                f"{self._named(members)} have ended training without {self._names[group.rank]}, which came too late",
                where=self._names[group.rank],
                remedy="use their model; give the group a longer timeout_s",
            )
        return members

    def _here(self, end: int) -> dict[int, list[int]]:
        """The workers that have registered at the end, and the ranks that each considers lost."""
        words = {rank: self._ledger.get(f"{end}/here/{rank}") for rank in range(self._group.size)}
        return {rank: json.loads(word) for rank, word in words.items() if word is not None}

    def _mean_of(self, members: list[int], end: int, own: Sequence[Tensor]) -> list[Tensor]:
        """The mean over `members`, confirmed to be the same on each of them."""
        rank, ledger = self._group.rank, self._ledger
        try:
            tag = _TAG + 2 * end * (len(own) + 1)
            sums = [self._sum_along(members, vector, tag + 2 * i) for i, vector in enumerate(own)]
            means = [total / len(members) for total in sums]
        except WorkerLostError as error:
            ledger.first(f"{end}/model/{rank}", f"none, {error.message}")
            raise
        ledger.first(f"{end}/model/{rank}", str(digest(means)))
        results: dict[int, str] = {}

        def complete() -> bool:
            results.update({m: word for m in members if (word := ledger.get(f"{end}/model/{m}")) is not None})
            return len(results) == len(members) or any(word.startswith("none") for word in results.values())

        self._group.wait_until(complete, f"the final model on {self._named(members)}", poll_s=_POLL_S)
        others = {m: word for m, word in results.items() if word != results[rank]}
        if others:
            what = "; ".join(f"{self._names[m]} has {word}" for m, word in others.items())
            raise WorkerLostError(
                f"workers do not end with one model: {what}; here is {results[rank]}",
                where=self._names[rank],
                remedy=_REMEDY,
            )
        with contextlib.suppress(WorkerLostError):  # see the module, 4
            self._sum_along(members, torch.zeros(1), tag + 2 * len(own))
        return means

    def _sum_along(self, members: list[int], vector: Tensor, tag: int) -> Tensor:
        """Sum from worker to worker in the order of ranks, then pass the sum back: the same bits on each."""
        position = members.index(self._group.rank)
        total = vector.cpu().clone()
        if position > 0:
            total += self._send(torch.zeros_like(total), members[position - 1], tag)
        if position < len(members) - 1:
            self._send(total, members[position + 1], tag)
            total = self._send(total, members[position + 1], tag + 1)
        if position > 0:
            self._send(total, members[position - 1], tag + 1)
        return total.to(vector.device)

    def _send(self, tensor: Tensor, peer: int, tag: int) -> Tensor:
        return self._group.exchange(tensor, peer, tag).wait()

    def _named(self, ranks: Sequence[int]) -> str:
        return ", ".join(self._names[rank] for rank in ranks)
