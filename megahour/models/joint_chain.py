"""Models that compute their own loss and can be cut into consecutive parts, for pipelines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn


class ChainBatch(NamedTuple):
    """What each link may need of a batch, besides the output of the link before it.

    features: (B, T, F), with `lengths` (B,) frames. generator: of dropout and all else that is drawn.
    """

    features: Tensor
    lengths: Tensor
    generator: torch.Generator | None
    targets: Mapping[str, Tensor]


class JointChain(nn.Module):
    """A chain of links, entry first and loss last, of which a worker may hold and run only some."""

    joint = True
    """The model computes the loss itself, not the caller from logits."""
    width: int
    """Units of what passes from link to link."""

    def forward(
        self,
        features: Tensor,
        lengths: Tensor,
        generator: torch.Generator | None = None,
        targets: Mapping[str, Tensor] | None = None,
        keys: Sequence[object] | None = None,
    ) -> Tensor:
        """Loss (B,) of `features` (B, T, F) with `lengths` (B,) frames, as `through` all links."""
        assert targets is not None
        return self.through(range(len(self.chain())), None, ChainBatch(features, lengths, generator, targets))

    @abstractmethod
    def chain(self) -> list[list[nn.Module]]:
        """The modules of the entry, of each layer, and of the head."""

    @abstractmethod
    def rows(self, link: int, frames: int, targets: Mapping[str, Tensor]) -> int:
        """N of the tensor (B, N, width) that `link` takes from the one before, for features of T = `frames`."""

    @abstractmethod
    def through(self, links: range, x: Tensor | None, batch: ChainBatch) -> Tensor:
        """Run `links` on the output `x` (B, N, width) of the one before them, None for the first.

        Returns the input of the next link, or after the last one the loss (B,), summed over the frames of each
        utterance. Without a generator there is no dropout, and what else is drawn is the same in every call. Each part
        of the chain needs a generator in the same state.
        """
