"""How fast the links between workers are: for a sum of all, and for swaps of neighbours on a ring."""

from __future__ import annotations

import statistics
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor

from megahour.clock.machines import FLOAT_BYTES, GBIT
from megahour.clock.rounds import MEETINGS, meanwhile, times
from megahour.sync.group.base import Group
from megahour.sync.trainers.gossip_ring import Forking

# Sums of four workers on a wire of 100 Mbit/s took 0.54 to 0.89 s, as messages of several that arrive together make
# queues overflow. The median of seven was off by 10 %; and it is the mean that a training pays.
TURNS, EXCHANGES_S, LEAST, MOST = 3, 18.0, 4, 15


class LinkSpeed(NamedTuple):
    """`latency_s` of a message; Gbit/s of a sum of all workers, and of a swap with all neighbours on the ring."""

    latency_s: float
    gbit: float
    ring_gbit: float


def network(group: Group | None, parameters: int) -> LinkSpeed | None:
    """The link of a worker of `group`; None for a single worker, and on workers outside the group.

    Sums and swaps take turns for `EXCHANGES_S`, so that a link that changes its speed does so for both.
    """
    if group is None or group.size == 1:
        return None
    short, vector = torch.zeros(1), torch.zeros(parameters)
    peers = sorted({(group.rank + 1) % group.size, (group.rank - 1) % group.size})

    def sums(count: int) -> list[float]:
        return times(lambda: group.all_reduce(vector).wait(), count)

    def swaps(count: int) -> list[float]:
        return _on_all_edges(cast(Forking, group), vector, peers, count)

    hops = 2 * (group.size - 1)
    latency_s = statistics.median(times(lambda: group.all_reduce(short).wait(), MEETINGS + 1)[1:]) / hops
    both_s = float(meanwhile(group, [statistics.mean(sums(1)) + statistics.mean(swaps(1))]).mean())
    count = min(MOST, max(LEAST, round(EXCHANGES_S / TURNS / both_s)))
    own = torch.tensor([[sums(count), swaps(count)] for _ in range(TURNS)], dtype=torch.float64)
    sum_s, swap_s = meanwhile(group, own.mean((0, 2)).tolist()).mean(0).tolist()
    vector_gbit = parameters * FLOAT_BYTES / GBIT
    return LinkSpeed(
        latency_s,
        hops / group.size * vector_gbit / max(sum_s - hops * latency_s, 1e-9),
        len(peers) * vector_gbit / max(swap_s - latency_s, 1e-9),
    )


def _on_all_edges(group: Forking, vector: Tensor, peers: list[int], count: int) -> list[float]:
    """Mean seconds of `count` swaps of `vector` with each peer, of all peers: one after the other, as often.

    As in gossip, no edge of the ring waits for another: the mean is not that of the slowest.
    """

    def swapped(peer: int) -> list[float]:
        return times(lambda: group.exchange(vector, peer).wait(), count)

    edges = [group.fork(partial(swapped, peer)) for peer in peers]
    return torch.tensor([edge.wait() for edge in edges]).mean(0).tolist()
