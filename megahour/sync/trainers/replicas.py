"""Averages the buffers and optimiser states of replicas, and checks that their models are equal."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from megahour.core.errors import MegahourError
from megahour.sync.group.base import Group
from megahour.sync.trainers.flat import unique


def average_buffers(model: nn.Module, group: Group) -> None:
    """Replace floating-point buffers (running means and variances) by the workers' mean. A collective call.

    Raises `WorkerLostError` as `Group.all_reduce`.
    """
    buffers = buffers_of(model)
    if group.size > 1 and buffers.numel():
        set_buffers(model, group.all_reduce(buffers.div_(group.size)).wait())


def end_with_one_model(model: nn.Module, group: Group) -> None:
    """The end of `finish`: `average_buffers`, and a check that all workers hold the same model. A collective call.

    Raises MegahourError on all workers if a parameter or a floating-point buffer differs on one of them.
    """
    average_buffers(model, group)
    if group.size == 1:
        return
    floating = {id(tensor) for tensor in _floating(model)}
    named = [*model.named_parameters(), *((n, buffer) for n, buffer in model.named_buffers() if id(buffer) in floating)]
    digests = group.all_gather(torch.tensor([digest([tensor]) for _, tensor in named], dtype=torch.int64)).wait()
    apart = (digests != digests[0]).tolist()
    if others := [rank for rank, row in enumerate(apart) if any(row)]:
        where = next(name for position, (name, _) in enumerate(named) if any(row[position] for row in apart))
        raise MegahourError(
            f"workers {', '.join(map(str, others))} end with another model than worker 0: {where} differs",
            where=f"rank {group.rank}",
            remedy="change weights only by the trainer's steps, on machines of one kind; go back to a checkpoint",
        )


@torch.no_grad()
def buffers_of(model: nn.Module) -> Tensor:
    """The floating-point buffers as one vector (B,), empty if there are none.

    In float64: the mean of float32 values that are equal on all workers (a window, a constant) keeps their bits.
    """
    parts = [buffer.detach().reshape(-1).to(torch.float64) for buffer in _floating(model)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)


@torch.no_grad()
def set_buffers(model: nn.Module, vector: Tensor) -> None:
    """Copy `vector` (B,) into the floating-point buffers."""
    _copy_parts(_floating(model), vector)


def digest(tensors: Sequence[Tensor]) -> int:
    """A 64-bit hash of all tensors' bytes."""
    hashed = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return int.from_bytes(hashed.digest(), "little", signed=True)


def _floating(model: nn.Module) -> list[Tensor]:
    return unique(buffer for buffer in model.buffers() if buffer.is_floating_point())


@torch.no_grad()
def average_memories(optimiser: torch.optim.Optimizer, group: Group, share: float) -> None:
    """Replace the optimiser's tensors of a parameter's shape (moments) by Σ share · theirs; a collective call.

    If workers hold different numbers of them, for example before a worker's first batch, or one has an infinity or
    NaN, all keep their own.
    """
    tensors = [
        optimiser.state[parameter][name]
        for settings in optimiser.param_groups
        for parameter in settings["params"]
        for name in sorted(optimiser.state.get(parameter, {}))
        if name != "step" and _like(optimiser.state[parameter][name], parameter)
    ]
    finite = all(bool(tensor.isfinite().all()) for tensor in tensors)
    counts = group.all_gather(torch.tensor([len(tensors) if finite else -1])).wait()
    if tensors and bool((counts == len(tensors)).all()):
        _average(tensors, group, share)


def _like(value: object, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point()


def _average(tensors: Sequence[Tensor], group: Group, share: float) -> None:
    """Replace each tensor by the sum over workers of share · tensor, in float32 and as one message."""
    vector = torch.cat([tensor.detach().reshape(-1).to(torch.float32) for tensor in tensors]).mul_(share)
    group.all_reduce(vector).wait()
    _copy_parts(tensors, vector)


def _copy_parts(tensors: Sequence[Tensor], vector: Tensor) -> None:
    parts = torch.split_with_sizes(vector, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))
