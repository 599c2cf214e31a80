"""Gradient threshold compression: synchronous SGD that sends a thousandth of the gradient. Form `gradient`.

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

**Clipping** is of the local gradient, before it meets the residual: what waits was clipped once, and what arrives is
never cut. **Momentum**, weight decay and whatever else the optimiser does see G, as if it were the gradient, on all
workers with the same bits.

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
    sender's elements that were sent, and that were beyond τ; they differ where messages were full), `room` (words on
    the wire, a share of the elements) and, of every hundredth step, `residual_norm` and `backlog`: the most quanta ±v
    that an element waits for, and so the steps that it needs at least.
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
            gradient.zero_()  # it may be of anything: 0·∞ is no 0
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
        """The mean over workers of what their gradients call for. A collective call."""
        own = torch.tensor(scale * estimate_threshold(gradient, density), dtype=torch.float64)
        return float(self._group.all_gather(own).wait().sum())

    def state(self) -> dict[str, Tensor]:
        """Copies: `threshold` (2,) with the steps and τ, and the residual with its lane and messages' rooms."""
        return {"threshold": self._threshold.state(), "steps": torch.tensor(self._steps), **self._sum.state()}

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Goes on from all workers' states, with the same bits where workers are as many as before.

        Otherwise residuals are handed over, their sum unrounded: node a's go to node a mod the number of nodes now, new
        nodes begin with zeros, and the first step adds what a worker got in float32. As v = τ/N is what changes, not τ,
        no other value needs scaling.
        """
        own = own_state("gtc", states, self._group.rank, ("threshold", "steps", "rows", "lane", "starts", "rooms"))
        self._threshold.restore(own["threshold"])
        self._steps = int(own["steps"])
        self._sum.restore(states)

    def rejoin(self, own: Mapping[str, Tensor], peer: Mapping[str, Tensor] | None) -> None:
        """Keeps its residual; τ is common. See `regrouping`."""
        common = own if peer is None else peer
        self._threshold.restore(common["threshold"])
        self._steps = int(common["steps"])
        self._sum.rejoin(own)
