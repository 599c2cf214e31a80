"""The plan by which tensors travel between workers: who sums which part, in which order, and the cost in bytes.

A sum over N workers has two phases: every worker gets one of N chunks from all others, sums it in the order of ranks,
and sends the sum to all others. Each sends 2 (N-1)/N of the tensor, as a ring does. Each element is summed once, in one
order, so all workers hold the same bits, whether they are processes or virtual. Short tensors, where latency dominates,
go whole to all workers in one phase, and each sums them in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megahour.core.errors import ConfigError

WHOLE_BYTES = 8192  # up to this size wake-ups take the time, not bytes, and one phase needs only one


def travels_whole(tensor: Tensor, size: int) -> bool:
    """Whether a sum over `size` workers takes one phase; the same on all workers."""
    return tensor.numel() * tensor.element_size() <= WHOLE_BYTES or tensor.numel() < size


def chunk_bounds(numel: int, size: int) -> list[int]:
    """(size + 1) bounds: the chunk of rank r is [bounds[r], bounds[r + 1])."""
    return [numel * rank // size for rank in range(size + 1)]


def sum_in_order(parts: Sequence[Tensor], total: Tensor, spare: int) -> None:
    """total ← parts[0] + parts[1] + …, from left to right; overwrites the parts.

    `total` may be parts[`spare`], the only part that is not overwritten before it has been added.
    """
    running = parts[0]
    last = len(parts) - 1
    for rank in range(1, last + 1):
        target = total if rank == last else parts[rank] if rank != spare else running
        torch.add(running, parts[rank], out=target)
        running = target
    if last == 0 and total is not parts[0]:
        total.copy_(parts[0])


def reduce_bytes(tensor: Tensor, rank: int, size: int) -> int:
    """Bytes that rank `rank` sends, and as many receives, in a sum of `tensor` over `size` workers."""
    if travels_whole(tensor, size):
        return gather_bytes(tensor, size)
    bounds = chunk_bounds(tensor.numel(), size)
    own = bounds[rank + 1] - bounds[rank]
    return (tensor.numel() - own + (size - 1) * own) * tensor.element_size()


def gather_bytes(tensor: Tensor, size: int) -> int:
    """Bytes that each worker sends, and as many receives, to give `tensor` to all others."""
    return (size - 1) * tensor.numel() * tensor.element_size()


def broadcast_bytes(tensor: Tensor, rank: int, source: int, size: int) -> tuple[int, int]:
    """Bytes that rank `rank` sends and receives when `tensor` is broadcast from `source` by way of the others."""
    if size == 1 or rank == source:
        return (size > 1) * tensor.nbytes, 0
    others = [other for other in range(size) if other != source]
    bounds = chunk_bounds(tensor.numel(), len(others))
    position = others.index(rank)
    return (len(others) - 1) * (bounds[position + 1] - bounds[position]) * tensor.element_size(), tensor.nbytes


def check_parts(groups: Sequence[Sequence[int]], size: int) -> None:
    """Raises ConfigError unless `groups` are disjoint, non-empty parts of `size` ranks."""
    ranks = [rank for group in groups for rank in group]
    if len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(size)) or not all(groups):
        raise ConfigError(f"groups {groups} are not disjoint parts of ranks 0 to {size - 1}")
