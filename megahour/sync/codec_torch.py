"""The threshold codec in torch's own operations, for gradients on an accelerator: the messages and bits of `codec`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megahour.core.errors import ConfigError
from megahour.sync.codec import BAD, Encoded

_INDEX = 0x7FFFFFFF
_SIGN = 2**31


def encode_on_device(
    gradient: Tensor, residual: Tensor, threshold: float, message: Tensor, scale: float, start: int
) -> Encoded:
    """`codec.encode` of (n,) vectors on any device."""
    residual.add_(gradient.mul_(scale))  # as two roundings: `add` with a factor may be fused into one
    gradient.zero_()
    beyond = (residual.abs() <= threshold).logical_not_().nonzero().view(-1)
    if start:
        before = int(torch.searchsorted(beyond, start))
        beyond = torch.cat([beyond[before:], beyond[:before]])
    values = residual[beyond]
    if not bool(values.isfinite().all()):
        message[0] = BAD
        return Encoded(BAD, start)
    room = message.numel() - 1
    taken, negative = beyond[:room], values[:room] < 0
    residual[taken] = values[:room] - torch.where(negative, -threshold, threshold).to(values.dtype)
    message[0] = beyond.numel()
    # Two's complement: the word of a negative element, read as int32, is its index - 2³¹.
    message[1 : 1 + taken.numel()] = (taken - _SIGN * negative).to(torch.int32)
    return Encoded(beyond.numel(), int(beyond[room]) if beyond.numel() > room else start)


def decode_on_device(messages: Tensor, counts: Sequence[int], threshold: float, total: Tensor) -> None:
    """`codec.decode` of messages (N, 1 + c) into a vector (n,) on any device; `counts` says how many each holds."""
    for worker, count in enumerate(counts):
        words = messages[worker, 1 : count + 1]
        at = (words & _INDEX).long()
        if count and int(at.max()) >= total.numel():
            raise ConfigError(f"the message of worker {worker} has an index beyond the {total.numel()} elements")
        values = torch.where(words < 0, -threshold, threshold).to(total.dtype)
        total[at] += values  # an index occurs once in a message
