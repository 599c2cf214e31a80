"""Sharded training: several workers hold a model in parts, by torch's `fully_shard` (FSDP2); see `parts`.

Each worker has its own batches. All workers of a group need equal numbers of forward and backward passes: one with
fewer batches takes part with an empty batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard

from megahour.batches.loader import Batch
from megahour.learn import criteria
from megahour.learn.step import Gradients
from megahour.models.build import skeleton
from megahour.models.precision import autocast
from megahour.models.vocoder import VocoderModel
from megahour.parallel.parts import PartsTrainer, lost_peers


class ShardedTrainer(PartsTrainer):
    """One worker of a group that holds a model in parts. Forward is a collective call of the group, everywhere."""

    def _made(self) -> nn.Module:
        # FSDP warns about in-place changes for each layer whose output is a view; the encoders make none.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
        module = skeleton(self.config)
        if isinstance(module, VocoderModel):
            module.judges_in_parts = True
        self._bytes = sum(q.numel() * q.element_size() for q in module.parameters())
        for part in [*_units(module), module]:
            fully_shard(part, mesh=self.mesh, reshard_after_forward=self.p.parallel.mode == "fsdp")
        self._modules = [part for part in module.modules() if isinstance(part, FSDPModule)]
        for part in self._modules:  # gradients are sums of losses divided by the group's frames
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        return self._filled(module)

    def backward(self, batches: Sequence[Batch], numbers: Sequence[int]) -> Gradients | None:
        """The group's gradient, of which each worker keeps its part; loss and weight are those of its own batches."""
        own = sum(map(criteria.weight, batches))
        counts = self.shards.all_gather(torch.tensor([own, len(batches)])).wait()
        rounds = int(counts[:, 1].max())
        self._weight = weight = max(1, int(counts[:, 0].sum())) if rounds else 0
        self._no_gradients()
        with lost_peers(self.shards):
            losses = [self._accumulate(batch, n, weight) for batch, n in zip(batches, numbers, strict=True)]
            for _ in range(rounds - len(batches)):
                torch.autograd.backward(self._idle(torch.Generator(self.device).manual_seed(0)))
        # weights are gathered before forward and (fsdp) backward, gradients are summed
        sweeps = 2 if self.p.parallel.mode == "zero" else 3
        sent = round(rounds * sweeps * self._bytes * (1 - 1 / self.shards.size))
        self._count(sent, sent)
        if not losses:
            return None
        loss = torch.stack([each.total.detach().double() for each in losses]).sum()
        return Gradients([], loss, max(1, own), torch.stack([each.correct for each in losses]).sum())

    def _accumulate(self, batch: Batch, number: int, weight: int) -> criteria.Loss:
        loss = self._loss(batch, number)
        torch.autograd.backward(loss.total / weight)
        return loss

    def _forward(self, *inputs: Any) -> Tensor:
        with autocast(self.device, self.p.precision, keep=False):  # a cache would end up with all weights
            outputs: Tensor = self.module(*inputs)
        return outputs

    def _idle(self, generator: torch.Generator | None = None) -> Tensor:
        """0, from a forward pass on one frame: the share of a worker without a batch.

        generator: in training, where a vocoder's discriminators compute, too.
        """
        frames = getattr(self.module, "subsample", 1)
        silence = torch.zeros(1, frames, self.config["inputs"], device=self.device)
        lengths = torch.full((1,), frames, device=self.device)
        if not getattr(self.module, "joint", False):
            return self._forward(silence, lengths, None).sum() * 0.0
        shortest = self.module.shortest()  # type: ignore[operator]
        return self._forward(silence, lengths, generator, shortest).sum() * 0.0

    def evaluate(self, batches: Iterable[Batch]) -> tuple[float, int, int]:
        """Summed loss, weight and correct frames of this worker's batches. A collective call of the group."""
        with lost_peers(self.shards):
            scores = super().evaluate(self._together(batches))
        for part in self._modules:
            part.reshard()  # there is no backward pass that does it
        return scores

    def _together(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """This worker's batches; then empty passes for as long as other workers of the group have batches."""
        left = iter(batches)
        while True:
            batch = next(left, None)
            here = torch.tensor([int(batch is not None)])
            if not self.shards.all_gather(here).wait().any():
                return
            if batch is not None:
                yield batch
            else:
                with torch.no_grad():
                    self._idle()

    def model(self) -> dict[str, Tensor]:
        """The whole model, on the first worker; the others have none. A collective call."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        with lost_peers(self.shards):
            gathered = get_model_state_dict(self.module, options=options)
        return {name: tensor.contiguous() for name, tensor in gathered.items() if isinstance(tensor, Tensor)}


def _units(module: nn.Module) -> list[nn.Module]:
    """Layers whose weights are gathered separately; small ones (norms) are gathered with the whole module."""
    return [
        part
        for part in getattr(module, "encoder", module).modules()  # heads read each other's weights
        if part is not module and any(q.dim() > 1 for q in part.parameters(recurse=False))
    ]
