"""`sync.bmuf` of N workers as a matrix of N rows, for experiments at the speed of their gradients.

The filter at a block's edge and its momentum are those of `megahour.sync`; what is spared is threads that take turns.
`convergence` checks at the start of every run that real synchronisers make the same weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from megahour.sync.params import BmufOptions
from megahour.sync.trainers.block_momentum import FORMS, UpdateFilter
from megahour.sync.trainers.bmuf import momentum


class StackedBmuf:
    """Workers with plain SGD inside their blocks, clipped; no warm-up of blocks, weights of steps all 1."""

    def __init__(self, model: Tensor, workers: int, options: BmufOptions) -> None:
        self.weights = model.repeat(workers, 1)
        """(N, D): every worker's model."""
        self._clip_norm, self._options = options.clip_norm, options
        self._filter: UpdateFilter = FORMS[options.form](model)
        self._eta = momentum(options, workers, tell=False)
        self._steps = 0
        self.metrics = {"block_momentum": self._eta, "consensus_distance": 0.0}

    def step(self, gradients: Tensor, rate: float) -> None:
        """One local step of all workers on (N, D), which is overwritten; at a block's edge the filtered mean."""
        if self._clip_norm is not None:
            norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            gradients.mul_((self._clip_norm / (norms + 1e-6)).clamp_(max=1.0))
        self.weights.add_(gradients, alpha=-rate)
        self._steps += 1
        if self._steps % self._options.block_steps == 0:
            self._end_block()

    def finish(self) -> Tensor:
        """The global model (D,)."""
        if self._steps % self._options.block_steps:
            self._end_block()
        return self._filter.model

    def _end_block(self) -> None:
        mean = torch.zeros_like(self.weights[0])
        for own in self.weights * (1 / len(self.weights)):  # in the order of ranks, as a group sums
            mean += own
        self.metrics["consensus_distance"] = float(torch.linalg.vector_norm(self.weights[0] - mean))
        self._filter.advance(mean, self._eta, self._eta, self._options.zeta)
        self.weights.copy_(self._filter.start.expand_as(self.weights))
