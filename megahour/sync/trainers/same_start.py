"""Checks that all workers build the same trainer of the same model, before they exchange anything else."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from megahour.core.errors import ConfigError
from megahour.sync.group.base import Group

_COMPILED = "_orig_mod."  # in names of a compiled module's parameters


def check_same_start(model: nn.Module, options: str, group: Group) -> None:
    """Raises ConfigError on all workers if one has other options or another model than worker 0. A collective call.

    Models are equal if their parameters and buffers have the same names in the same order, shapes and dtypes, and the
    same ones are trained; values may differ. With different models, sums would add unrelated elements, and gloo aborts
    a process that receives more bytes than it expects.

    Parameters
    ----------
    options: the trainer and its options, as text.
    """
    if group.size == 1:
        return
    tensors = [*model.named_parameters(), *model.named_buffers()]
    lines = [f"{name.replace(_COMPILED, '')}: {_form(tensor)}" for name, tensor in tensors]
    heads = group.all_gather(torch.tensor([_hash(options), len(lines), _hash("\n".join(lines))])).wait()
    others = [rank for rank in range(group.size) if not torch.equal(heads[rank], heads[0])]
    if not others:
        return
    other_options, other_counts, _ = (heads != heads[0]).any(0).tolist()
    if other_options:
        what, remedy = f"have other options; here {options}", "give all workers the same options"
    else:
        what = f"have other models: {_difference(lines, heads[:, 1], group, same_count=not other_counts)}"
        remedy = "build the same model on all workers, with its parts in an order that no set or hash decides"
    raise ConfigError(f"workers 0 and {', '.join(map(str, others))} {what}", where=f"rank {group.rank}", remedy=remedy)


def _form(tensor: Tensor) -> str:
    shape = "lazy" if isinstance(tensor, UninitializedParameter) else tuple(tensor.shape)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} {shape}, {'trained' if tensor.requires_grad else 'not trained'}"


def _difference(lines: list[str], counts: Tensor, group: Group, *, same_count: bool) -> str:
    if not same_count:
        return f"they have {', '.join(map(str, counts.tolist()))} parameters and buffers"
    rows = group.all_gather(torch.tensor([_hash(line) for line in lines])).wait()
    return f"the first tensor that differs is here {lines[int((rows != rows[0]).any(0).nonzero()[0])]}"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
