"""Gradient threshold compression, form `gradient`: synchronous SGD that sends a thousandth of the gradient.

    N. Ström, "Scalable distributed DNN training using commodity GPU cloud computing", Interspeech 2015;
    S. H. K. Parthasarathi et al., "Realizing petabyte scale acoustic modeling", 2019, section VI.A (synchronous).

With worker i's clipped gradient g_i, its share s_i = w_i / Σ w of the mean, its residual r_i and threshold τ, a step is

    r_i ← r_i + s_i·g_i
    q_i = ±v where |r_i| > v = τ/N, else 0        (element by element; v of eight significant bits)
    r_i ← r_i - q_i
    G   = Σ_i q_i                                 one all-gather of words of index and sign
    W   ← optimiser(W, G)

**Mean, not sum.** Ström adds all ±τ to the weights, times the learning rate. Here a step sees the mean over workers, as
with dense averaging, so that a learning rate means the same with any trainer and number of workers; τ is still in units
of one worker's gradient. Ström's update is that with N times the learning rate.

**Clipping** applies to the local gradient, before it is added to the residual: every gradient is clipped once, and G
never. **Momentum**, weight decay and the rest of the optimiser take G as the gradient, with the same bits on all
workers.

Σ over steps of G plus Σ_i r_i is the sum of all mean gradients: see `codec` for how exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from megahour.sync.compress.threshold import estimate_threshold, schedule
from megahour.sync.compress.threshold_sum import Sent, ThresholdSum
from megahour.sync.group.base import Group
from megahour.sync.params import GtcOptions
from megahour.sync.trainers.base import own_state, update
from megahour.sync.trainers.compressed import Compressed
from megahour.sync.trainers.gtc_update import GtcUpdate


def make(model: nn.Module, optimiser: torch.optim.Optimizer, group: Group, options: GtcOptions) -> Compressed:
    """The trainer of the options' form."""
    return (GtcUpdate if options.form == "update" else Gtc)(model, optimiser, group, options)


class Gtc(Compressed):
    """Gradient threshold compression of any model and optimiser; see the module and `Compressed`.

    `metrics` of the last step: `gradient_norm` before clipping, `threshold` τ, `density` and `beyond` (shares of a
    sender's elements that were sent, and that exceeded τ; they differ if messages were full), `room` (words on the wire
    per element) and, every hundredth step, `residual_norm` and `backlog`: the largest number of quanta ±v that an
    element still has to send, and so the least number of steps that it needs.
    """

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer, group: Group, options: GtcOptions) -> None:
        super().__init__(model, optimiser, group, options)
        self._threshold = schedule(options)
        self._sum: ThresholdSum = ThresholdSum(self._flat.numel, group, options, device=self._flat.device)

    def _norm(self) -> float:
        return float(torch.linalg.vector_norm(self._flat.gradient(self._vector)))

    def _exchange(self, share: float, norm: float, scaler: GradScaler | None) -> Sent:
        scale, gradient = share * self._clip(norm), self._vector
        if not share:
            gradient.zero_()  # it may hold anything, and 0·∞ is not 0
            scale = 0.0
        threshold = self._threshold.now(partial(self._estimate, gradient, scale))
        sent = self._sum.sum_(gradient, threshold / self._sum.senders, scale)
        self._threshold.step(sent.beyond if self._sum.senders > 1 else None)
        self._flat.set_gradient(gradient)
        update(self._optimiser, scaler)
        self.metrics |= {"threshold": threshold, "beyond": sent.beyond}
        return sent

    def _alone(self) -> None:
        self._threshold.step(None)
        self.metrics |= {"threshold": 0.0, "beyond": 1.0}

    def _estimate(self, gradient: Tensor, scale: float, density: float) -> float:
        """The mean over workers of the thresholds that give `density`. A collective call."""
        own = torch.tensor(scale * estimate_threshold(gradient, density), dtype=torch.float64)
        return float(self.group.all_gather(own).wait().sum())

    def state(self) -> dict[str, Tensor]:
        """Copies of `threshold` (2,), with the steps and τ, and of the residual with its lane and messages' rooms."""
        return {"threshold": self._threshold.state(), "steps": torch.tensor(self._steps), **self._sum.state()}

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Resume from all workers' states, with the same bits if the number of workers is unchanged.

        Otherwise residuals are redistributed without rounding their sum: those of node a go to node a mod the new
        number of nodes, new nodes start from zeros, and a worker's first step adds what it got in float32. Only v = τ/N
        changes, not τ, so no other value needs scaling.
        """
        own = own_state("gtc", states, self.group.rank, ("threshold", "steps", "rows", "lane", "starts", "rooms"))
        self._threshold.restore(own["threshold"])
        self._steps = int(own["steps"])
        self._sum.restore(states)

    def rejoin(self, own: Mapping[str, Tensor], peer: Mapping[str, Tensor] | None) -> None:
        """Keep this worker's residual; τ is shared. See `regrouping`."""
        common = own if peer is None else peer
        self._threshold.restore(common["threshold"])
        self._steps = int(common["steps"])
        self._sum.rejoin(own)
