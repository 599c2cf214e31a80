"""Gradient threshold compression, form `update`: each worker runs its own optimiser and sends compressed updates.

With worker i's clipped gradient g_i, its own optimiser with moments m_i, learning rate η, weight decay λ, its share
s_i = w_i / Σ w of the mean and its residual r_i, a step is

    u_i ← optimiser(g_i; m_i)         its change of the weights, with η but without weight decay
    r_i ← r_i + s_i·u_i
    q_i = the largest share ρ of each parameter's r_i, as signs and one scale; 1-D and small ones whole (`largest_sum`)
    r_i ← r_i - q_i
    W   ← (1 - η λ) W + Σ_i q_i       one all-gather of half words of index and sign

Why: gradient elements may differ by orders of magnitude, as in transformers. With one threshold for all, small ones
would wait for hundreds of steps, and Adam would treat the sums that arrive at last as noise. An optimiser's updates are
similar in size, and each block has its own threshold. Local moments and a residual on the update are also used by the
family of 1-bit Adam and by MicroAdam (Modoranu et al., 2024).

**Clipping** applies to the local gradient, before the optimiser. **Moments**, momentum and Adam's step count are local
to each worker: they are never sent, and a worker without a batch (weight 0) leaves its own unchanged. Adam sees the
noise of one worker's batch, which is larger than that of the mean, so its updates are smaller: with N workers use a
learning rate up to twice that of `dense`. **Weight decay** is decoupled and the same on all workers, for any optimiser.
With SGD this is SGDW; torch's SGD instead sends λW through the momentum, so multiply λ by 1 / (1 - momentum) for the
same decay. The learning rate must be the same on all workers.

**SGD's momentum** is reset to zero at the elements that are sent (`mask_momentum`; Lin et al., "Deep gradient
compression", ICLR 2018). Otherwise it would continue in a direction that is a hundred steps old. Adam's is kept, unless
the option asks for a reset.

To get the update alone, the optimiser steps from weights of zero. So optimisers whose step depends on the weights other
than by decay (Adafactor, LAMB, LARS) are refused; unknown ones of this kind give wrong results. Hooks of the
optimiser's step see the zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from megahour.core.errors import ConfigError
from megahour.sync.compress.largest_sum import LargestSum
from megahour.sync.compress.threshold import TargetDensity
from megahour.sync.compress.threshold_sum import Sent
from megahour.sync.group.base import Group
from megahour.sync.params import GtcOptions
from megahour.sync.trainers.base import own_state, update
from megahour.sync.trainers.compressed import Compressed
from megahour.sync.trainers.flat import gradient_norm

_BY_WEIGHTS = {"Adafactor", "ASGD", "LAMB", "Lamb", "LARS", "Lars"}
_MOMENTA = {"momentum_buffer", "exp_avg"}


class GtcUpdate(Compressed):
    """Threshold compression of updates, for optimisers whose step does not depend on the weights; see the module.

    `metrics` of the last step: `gradient_norm` before clipping, `density` (share of elements that a sender sent,
    including small parameters), `room` (words on the wire per element) and, every hundredth step, `residual_norm` and
    `backlog`: steps needed to send the residual at the rate of the last message, for the slowest parameter.

    Raises ConfigError for an optimiser that is known to scale its step by the weights.
    """

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer, group: Group, options: GtcOptions) -> None:
        super().__init__(model, optimiser, group, options)
        name = type(optimiser).__name__
        if name in _BY_WEIGHTS:
            raise ConfigError(f"{name}'s step depends on the weights", remedy="use AdamW or SGD, or form=gradient")
        assert options.density is not None
        self._density = TargetDensity(options.density, options.warmup_steps, options.warmup_from)
        shapes = [parameter.shape for parameter in self._flat.parameters]
        self._sum: LargestSum = LargestSum(shapes, group, options.node_size, self._flat.device)
        maskable = torch.optim.SGD if options.mask_momentum is None else (torch.optim.SGD, torch.optim.Adam)
        self._mask = options.mask_momentum is not False and isinstance(optimiser, maskable)

    def _norm(self) -> float:
        return float(gradient_norm(self._flat.parameters))

    def _exchange(self, share: float, norm: float, scaler: GradScaler | None) -> Sent:
        self._own_update(share, norm, scaler)
        density = self._density.target()
        self._density.steps += 1
        sent = self._sum.sum_(self._vector, density)
        self._apply()
        if self._mask:
            self._forget()
        return sent

    def _alone(self) -> None:
        self._density.steps += 1

    def _own_update(self, share: float, norm: float, scaler: GradScaler | None) -> None:
        """vector ← share · the optimiser's change of the weights, taken by a step from weights of zero."""
        gradients = [p.grad for p in self._flat.parameters if p.grad is not None]
        if not share:
            for parameter in self._flat.parameters:
                parameter.grad = None  # may be left over from anything
        elif self._clip(norm) < 1:
            torch._foreach_mul_(gradients, self._clip(norm))
        views = self._flat.views(self._vector.zero_())
        weights = [parameter.data for parameter in self._flat.parameters]
        places = [_place(weight, view) for weight, view in zip(weights, views, strict=True)]
        try:
            for parameter, place in zip(self._flat.parameters, places, strict=True):
                parameter.data = place
            update(self._optimiser, scaler)
        finally:
            for parameter, weight in zip(self._flat.parameters, weights, strict=True):
                parameter.data = weight
        torch._foreach_copy_(views, places)
        self._vector.mul_(share)

    def _apply(self) -> None:
        """W ← (1 - η λ) W + vector, for parameters that are not frozen."""
        rates = {
            id(parameter): 1 - settings["lr"] * settings.get("weight_decay", 0.0)
            for settings in self._optimiser.param_groups
            for parameter in settings["params"]
        }
        for parameter, view in zip(self._flat.parameters, self._flat.views(self._vector), strict=True):
            if parameter.requires_grad:
                parameter.mul_(rates.get(id(parameter), 1.0)).add_(view)

    def _forget(self) -> None:
        """Set the optimiser's momentum to zero at elements that the last step sent."""
        self._sum.forget(self._vector.fill_(1.0))
        for parameter, view in zip(self._flat.parameters, self._flat.views(self._vector), strict=True):
            for name in _MOMENTA & self._optimiser.state.get(parameter, {}).keys():
                momentum = self._optimiser.state[parameter][name]
                if momentum is not None:
                    momentum.mul_(view)

    def state(self) -> dict[str, Tensor]:
        """Copies of `steps` (2,), those measured and those of the warm-up, and of the residual with its lane.

        A worker's own moments are in its optimiser: keep each worker's, as `train` does.
        """
        return {"steps": torch.tensor([self._steps, self._density.steps]), **self._sum.state()}

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Resume from all workers' states; with as many workers as before, with the same bits.

        Otherwise residuals are handed over, their sum unrounded: those of node a go to node a mod the present number of
        nodes. They are in units of the weights and need no scaling.
        """
        own = own_state('gtc of form "update"', states, self.group.rank, ("steps", "rows", "lane"))
        self._steps, self._density.steps = map(int, own["steps"].tolist())
        self._sum.restore(states)

    def rejoin(self, own: Mapping[str, Tensor], peer: Mapping[str, Tensor] | None) -> None:
        """Keep this worker's residual; see `regrouping`."""
        common = own if peer is None else peer
        self._steps, self._density.steps = map(int, common["steps"].tolist())
        self._sum.rejoin(own)


def _place(weight: Tensor, view: Tensor) -> Tensor:
    """A tensor in the weight's type and memory layout, as fused optimisers require: `view` if it fits, else zeros."""
    same = view.dtype == weight.dtype and view.stride() == weight.stride()
    return view if same else torch.zeros_like(weight)
