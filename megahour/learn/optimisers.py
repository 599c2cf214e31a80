"""Builds torch's optimisers, selected by the parameter `optimiser`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from megahour.learn.options import AdamWOptions, MuonOptions, SgdOptions
from megahour.learn.params import TrainParams

OUTPUTS = ("head.", "ctc.", "joiner.", "tagger.", "simple_encoder.", "simple_predictor.", "decoder.out.")
"""Beginnings of the names of output layers. An encoder's `encoder.head.` is none if heads follow."""
STATE = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")
"""Names of the state that optimisers keep per parameter, as stored in checkpoints."""


def build(p: TrainParams, module: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of `p` for the parameters of `module`; its learning rate is 0 until a step sets it.

    On a GPU kernels are fused, and an fp16 step with an overflow is skipped on the device, unknown to the host.
    """
    options, decay, parameters = p.step_options, p.weight_decay, list(module.parameters())
    fused = parameters[0].is_cuda or None
    if isinstance(options, SgdOptions):
        momentum, nesterov = options.momentum, options.nesterov and options.momentum > 0
        return torch.optim.SGD(
            parameters, lr=0.0, momentum=momentum, nesterov=nesterov, weight_decay=decay, fused=fused
        )
    assert isinstance(options, AdamWOptions)
    if isinstance(options, MuonOptions):
        rows = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
        inner = ((name, q) for name, q in module.named_parameters() if q.ndim == 2 and id(q) not in rows)
        matrices = [q for name, q in inner if not name.startswith(OUTPUTS)]
        return MuonAdamW(matrices, parameters, options, decay)
    return _adamw(parameters, options, decay, fused)


def _adamw(
    parameters: Sequence[nn.Parameter], options: AdamWOptions, decay: float, fused: bool | None = None
) -> torch.optim.AdamW:
    betas = (options.beta1, options.beta2)
    return torch.optim.AdamW(parameters, lr=0.0, betas=betas, eps=options.eps, weight_decay=decay, fused=fused)


class MuonAdamW(torch.optim.Optimizer):
    """torch's Muon for `matrices` and AdamW for the rest of `parameters`, as one optimiser with one state."""

    def __init__(
        self, matrices: Sequence[nn.Parameter], parameters: Sequence[nn.Parameter], options: MuonOptions, decay: float
    ) -> None:
        chosen = set(map(id, matrices))
        muon = torch.optim.Muon(
            matrices,
            lr=0.0,
            weight_decay=decay,
            momentum=options.momentum,
            ns_steps=options.iterations,
            adjust_lr_fn="match_rms_adamw",
        )
        self._parts = [muon, _adamw([q for q in parameters if id(q) not in chosen], options, decay)]
        super().__init__([settings for part in self._parts for settings in part.param_groups], {})
        for part in self._parts:
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Tensor | None:  # type: ignore[override]
        """Muon's step, then AdamW's. `closure` is not called."""
        for part in self._parts:
            part.step()
        return None
