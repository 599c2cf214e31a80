"""Averages the buffers and optimiser states of replicas, and checks that their models are equal."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from megahour.core.errors import MegahourError
from megahour.sync.group.base import Group
from megahour.sync.trainers.flat import unique

_WHOLE = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_HALF = 2**32  # a float64 holds an int64 in two parts


def average_buffers(model: nn.Module, group: Group) -> None:
    """Replace buffers (running means and variances, counts of batches) by the workers' mean. A collective call.

    That of whole numbers is rounded. Raises `WorkerLostError` as `Group.all_reduce`.
    """
    buffers = buffers_of(model)
    if group.size > 1 and buffers.numel():
        set_buffers(model, group.all_reduce(buffers.div_(group.size)).wait())


def end_with_one_model(model: nn.Module, group: Group) -> None:
    """The end of `finish`: `average_buffers`, and a check that all workers hold the same model. A collective call.

    Raises MegahourError on all workers if a parameter or a buffer differs on one of them.
    """
    average_buffers(model, group)
    if group.size == 1:
        return
    named = [*model.named_parameters(), *((n, buffer) for n, buffer in model.named_buffers() if _has_mean(buffer))]
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
    """The buffers as one vector, empty if there are none; the mean of several is that of `average_buffers`.

    In float64: the mean of float32 values that are equal on all workers (a window, a constant) keeps their bits.
    A whole number is in it as two, its remainder by 2³² and the quotient, so that equal ones are exact, too.
    """
    floating = [buffer.reshape(-1).to(torch.float64) for buffer in _floating(model)]
    whole = [buffer.reshape(-1).to(torch.int64) for buffer in _whole(model)]
    parts = [values.fmod(_HALF).double() for values in whole]
    parts += [values.div(_HALF, rounding_mode="trunc").double() for values in whole]
    return torch.cat([*floating, *parts]) if floating or whole else torch.empty(0, dtype=torch.float64)


@torch.no_grad()
def set_buffers(model: nn.Module, vector: Tensor) -> None:
    """Copy a `vector` of `buffers_of` into the buffers."""
    whole = _whole(model)
    count = sum(buffer.numel() for buffer in whole)
    floating, low, high = torch.split_with_sizes(vector, [vector.numel() - 2 * count, count, count])
    _copy_parts(_floating(model), floating)
    _copy_parts(whole, low.round().long() + high.round().long() * _HALF)


def digest(tensors: Sequence[Tensor]) -> int:
    """A 64-bit hash of all tensors' bytes."""
    hashed = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return int.from_bytes(hashed.digest(), "little", signed=True)


def _floating(model: nn.Module) -> list[Tensor]:
    real = (torch.view_as_real(buffer) if buffer.is_complex() else buffer for buffer in unique(model.buffers()))
    return [buffer for buffer in real if buffer.is_floating_point()]


def _has_mean(buffer: Tensor) -> bool:
    return buffer.is_floating_point() or buffer.is_complex() or buffer.dtype in _WHOLE


def _whole(model: nn.Module) -> list[Tensor]:
    return [buffer for buffer in unique(model.buffers()) if buffer.dtype in _WHOLE]


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
