"""What workers that train models of their own hold beside the weights: buffers and the optimisers' memories."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from megahour.sync.flat import unique
from megahour.sync.group import Group


@torch.no_grad()
def average_buffers(model: nn.Module, group: Group) -> None:
    """Floating-point buffers (running means and variances) become the workers' mean; others stay. A collective call.

    The sum is in float64: one of float32 that is the same on all workers (a window, a constant) keeps its bits.

    Raises `WorkerLostError` as `Group.all_reduce`.
    """
    if group.size > 1:
        buffers = unique(b for b in model.buffers() if b.is_floating_point())
        _average(buffers, group, 1.0 / group.size, torch.float64)


@torch.no_grad()
def average_memories(optimiser: torch.optim.Optimizer, group: Group, share: float) -> None:
    """The optimiser's tensors of a parameter's shape (momenta, second moments) become Σ share · theirs; a collective.

    Where workers hold different numbers of them, as one that has had no batch yet does, all keep their own.
    """
    tensors = [
        optimiser.state[parameter][name]
        for settings in optimiser.param_groups
        for parameter in settings["params"]
        for name in sorted(optimiser.state.get(parameter, {}))
        if name != "step" and _like(optimiser.state[parameter][name], parameter)
    ]
    counts = group.all_gather(torch.tensor([len(tensors)])).wait()
    if tensors and bool((counts == len(tensors)).all()):
        _average(tensors, group, share, torch.float32)


def _like(value: object, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point()


def _average(tensors: Sequence[Tensor], group: Group, share: float, dtype: torch.dtype) -> None:
    """Each becomes Σ over workers of share · theirs, summed in `dtype`, as one message."""
    if not tensors:
        return
    vector = torch.cat([tensor.detach().reshape(-1).to(dtype) for tensor in tensors]).mul_(share)
    group.all_reduce(vector).wait()
    parts = torch.split_with_sizes(vector, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))
