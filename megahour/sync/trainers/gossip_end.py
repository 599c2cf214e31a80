"""How workers that went their own ways end with one model: the mean of all, or of those that are left.

A sum over all workers may reach some and not others when one is lost in it, and a worker that stood still for too long
takes the others for lost as they take it. So no worker returns a model before it knows that all others that return one
have the same:

1. All sum, and then show each other a digest of the sum. Who has seen all digests knows that everybody has the mean.
2. Each says whether it has seen them ("all") or could not ("survivors"). The first word counts for all (`Ledger`). If
   it is "all", who could not see the others' digests has shown its own, and so has the mean too.
3. If it is "survivors", no one keeps that mean. Who is there says so; the first list of those that are there counts.
   Who is not in it, as it came too late, has an error. The others sum along the list, each writes down the digest of
   what it has, and returns it when the digests of all are there and equal. Otherwise all have an error.

Workers without a ledger that answers (its host is lost) have an error: they cannot know what the others do.
"""

from __future__ import annotations

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
    """The ends of training of one ring.

    Parameters
    ----------
    group: the workers on it. ledger: theirs.
    names: what they are called in messages.
    """

    def __init__(self, group: Forking, ledger: Ledger, names: Sequence[str]) -> None:
        self._group, self._ledger, self._names = group, ledger, names
        self._ends = 0

    def mean(self, own: Sequence[Tensor], lost: set[int]) -> list[Tensor]:
        """The mean over workers of each of the vectors `own`, the same bits on all that return. A collective call.

        Parameters
        ----------
        lost: ranks that this worker takes for lost.

        Raises `WorkerLostError`: others may have ended, but not with another model that they share with this one.
        """
        end, self._ends = self._ends, self._ends + 1
        means: list[Tensor] = []
        try:
            means = [self._group.all_reduce(vector.clone().div_(self._group.size)).wait() for vector in own]
            self._check(means)
            found_by = "all"
        except WorkerLostError as error:
            lost, found_by = lost | set(error.ranks), "survivors"
            LOG.warning("the mean of all workers is not known to be theirs: %s", error.message)
        if self._ledger.first(f"{end}/mean", found_by) == "all":
            return means
        members = self._members(end, lost)
        LOG.warning("the final model is the mean of those that are left: %s", self._named(members))
        return self._mean_of(members, end, own)

    def _check(self, found: list[Tensor]) -> None:
        """All show what they have: behind this call each has the same, or has shown so and did not see the others."""
        digests = self._group.all_gather(torch.tensor([digest(found)])).wait().flatten().tolist()
        if len(set(digests)) > 1:
            raise MegahourError(f"workers have different sums of the same: digests {digests}", remedy=_REMEDY)

    def _members(self, end: int, lost: set[int]) -> list[int]:
        """Ranks of those who end together; all who are asked get the same answer."""
        group, ledger = self._group, self._ledger
        ledger.first(f"{end}/here/{group.rank}", json.dumps(sorted(lost)))
        began_s = time.monotonic()

        def complete() -> bool:
            """Whether all are there but those who are lost to another one, who have had time to come."""
            here = self._here(end)
            missed = set(range(group.size)) - here.keys()
            known = {rank for said in here.values() for rank in said}
            return not missed or (missed <= known and time.monotonic() - began_s > ledger.patience_s)

        try:
            group.wait_until(complete, "the end of training on all workers", poll_s=_POLL_S)
        except WorkerLostError as error:
            LOG.warning("not all workers have come to the end: %s", error.message)
        members: list[int] = json.loads(ledger.first(f"{end}/members", json.dumps(sorted(self._here(end)))))
        if group.rank not in members:
            raise WorkerLostError(
                f"{self._named(members)} have ended training without {self._names[group.rank]}, which came too late",
                where=self._names[group.rank],
                remedy="take their model; give the group a longer timeout_s",
            )
        return members

    def _here(self, end: int) -> dict[int, list[int]]:
        """Who has come to the end, and whom each takes for lost."""
        said = {rank: self._ledger.get(f"{end}/here/{rank}") for rank in range(self._group.size)}
        return {rank: json.loads(word) for rank, word in said.items() if word is not None}

    def _mean_of(self, members: list[int], end: int, own: Sequence[Tensor]) -> list[Tensor]:
        """The mean over `members`, which each of them has got."""
        rank, ledger = self._group.rank, self._ledger
        try:
            tag = _TAG + 2 * end * len(own)
            sums = [self._sum_along(members, vector, tag + 2 * i) for i, vector in enumerate(own)]
            means = [total / len(members) for total in sums]
        except WorkerLostError as error:
            ledger.first(f"{end}/model/{rank}", f"none, {error.message}")
            raise
        ledger.first(f"{end}/model/{rank}", str(digest(means)))
        said: dict[int, str] = {}

        def complete() -> bool:
            said.update({m: word for m in members if (word := ledger.get(f"{end}/model/{m}")) is not None})
            return len(said) == len(members) or any(word.startswith("none") for word in said.values())

        self._group.wait_until(complete, f"the final model on {self._named(members)}", poll_s=_POLL_S)
        others = {m: word for m, word in said.items() if word != said[rank]}
        if others:
            what = "; ".join(f"{self._names[m]} has {word}" for m, word in others.items())
            raise WorkerLostError(
                f"workers do not end with one model: {what}; here is {said[rank]}",
                where=self._names[rank],
                remedy=_REMEDY,
            )
        return means

    def _sum_along(self, members: list[int], vector: Tensor, tag: int) -> Tensor:
        """The sum goes from worker to worker in the order of ranks, and comes back whole: the same bits on each."""
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
