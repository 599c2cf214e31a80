"""Tensor parallelism of a Conformer, a voice or a vocoder, by torch's `parallelize_module` (Shoeybi et al.,
"Megatron-LM", 2019).

Each worker of a group has some heads of every attention and some units of every feed-forward; all compute the same
batches, and their partial results are summed after each layer. In a block of a Conformer, for N workers:

    feed-forward     units: columns of its first matrix, rows of its second           one sum of (B, T, D)
    attention        D / heads · N columns of query, key and value each, rows of its output   one sum
    convolution      columns of the gate and rows of the mixture; the layers between are replicated    two
    head             outputs, which are gathered for the loss

Norms, the depthwise convolution and the subsampling are on every worker, with equal gradients. Blocks of voices and
vocoders have one feed-forward each, with one sum; the flow's time is shared out, too. Their other layers, a vocoder's
discriminators among them, are on every worker.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from megahour.batches.loader import Batch
from megahour.core.errors import ConfigError
from megahour.learn import criteria
from megahour.models.build import skeleton
from megahour.models.conformer import Conformer
from megahour.models.joint_chain import JointChain
from megahour.models.vocoder import VocoderModel
from megahour.models.voice import VoiceBlock, VoiceModel
from megahour.parallel.parts import dimension
from megahour.parallel.shared_batches import NumberedBatch, SharedBatchesTrainer

JOINED = "attention.inputs."
"""The matrix (3 · D, D) that holds query, key and value: each worker has rows of all three."""


class TensorTrainer(SharedBatchesTrainer):
    """One worker of a group that holds a Conformer, a voice or a vocoder by columns and rows.

    Raises ConfigError: another model, or heads or units that cannot be split evenly.
    """

    def _made(self) -> nn.Module:
        module, workers = skeleton(self.config), self.shards.size
        if isinstance(module, VoiceModel | VocoderModel):
            if module.width % workers:
                raise ConfigError(
                    f"parallel.mode tensor: {module.width} units for {workers} workers",
                    remedy=f"make `hidden` a multiple of {workers}, or use mode fsdp",
                )
            parallelize_module(module, self.mesh, _plan_of_blocks(module), src_data_rank=None)
            return self._filled(module)
        if not isinstance(module, Conformer):
            raise ConfigError(
                f"parallel.mode tensor supports only a Conformer, a voice or a vocoder, not {type(module).__name__}",
                remedy="use mode fsdp",
            )
        heads = module.heads
        if heads % workers:
            raise ConfigError(
                f"parallel.mode tensor: {heads} heads of attention for {workers} workers",
                remedy=f"make `hidden` a multiple of {64 * workers}, or use mode fsdp",
            )
        parallelize_module(module, self.mesh, _plan(module), src_data_rank=None)
        module.share_heads(workers)
        return self._filled(module)

    def _arranged(self, name: str, values: Tensor) -> Tensor:
        """Rows ordered by worker, so that each worker's are contiguous."""
        if JOINED not in name:
            return values
        return _turned(values, 3, self.shards.size)

    def _shown(self, name: str, part: Tensor) -> Tensor:
        return part.view(3, -1, *part.shape[1:]) if JOINED in name else part

    def _place(self, name: str, parameter: Tensor) -> list[int]:
        place = super()._place(name, parameter)
        return [0, place[0] // 3, *place[1:]] if JOINED in name else place

    def _everywhere(self, parameter: Tensor) -> bool:
        return not isinstance(parameter, DTensor) or dimension(parameter) is None

    def _train(self, everyone: Sequence[NumberedBatch], weight: int) -> Tensor:
        found = []
        for each in everyone:
            loss = self._loss(each.batch, each.number)
            torch.autograd.backward(loss.total / weight)
            found.append(_numbers(loss))
            self._count_sums(each.batch)
        return torch.stack(found).cpu()

    def _score_all(self, everyone: Sequence[NumberedBatch]) -> Tensor:
        return torch.stack([_numbers(self._score(each.batch, 0)) for each in everyone]).cpu()

    def _count_sums(self, batch: Batch) -> None:
        """Count the traffic of a batch in forward and backward.

        Each block of a Conformer has four all-reduces of (B, T', D), which send every value twice, and gathers
        (B, T', 2 D); the head's outputs are gathered too. Each block of a voice or a vocoder has two all-reduces.
        """
        module, shape = self.module, batch.features.shape
        if isinstance(module, Conformer):
            rows = shape[0] * (shape[1] // module.subsample)
            values = rows * (2 * len(module.blocks) * (4 * 2 + 2) * module.head.in_features + module.head.out_features)
        else:
            assert isinstance(module, JointChain)
            targets = {name: torch.from_numpy(array) for name, array in batch.targets.items()}
            passed = sum(module.rows(link, shape[1], targets) for link in range(1, len(module.chain()) - 1))
            values = shape[0] * passed * 2 * 2 * module.width
        sent = round(4 * values * (1 - 1 / self.shards.size))
        self._count(sent, sent)

    def model(self) -> dict[str, Tensor]:
        """The whole model, on the first worker; the others have none. A collective call."""
        found: dict[str, Tensor] = {}
        if self.replica:
            return found
        for name, tensor in self.module.state_dict().items():
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if JOINED in name:
                whole = _turned(whole, self.shards.size, 3)
            if self.shards.rank == 0:
                found[name] = whole.cpu().contiguous()
        return found


def _numbers(loss: criteria.Loss) -> Tensor:
    return torch.stack([loss.total.detach().double(), loss.correct.double()])


def _turned(values: Tensor, outer: int, inner: int) -> Tensor:
    """Transpose rows that form `outer` × `inner` runs, keeping each run."""
    return values.view(outer, inner, -1, *values.shape[1:]).transpose(0, 1).reshape(values.shape)


def _plan(module: Conformer) -> dict[str, ParallelStyle]:
    """torch's parallel styles, by layer name."""
    block: dict[str, ParallelStyle] = {
        **{f"{part}.1": ColwiseParallel() for part in ("first", "second")},
        **{f"{part}.3": RowwiseParallel() for part in ("first", "second")},
        "attention.inputs": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "gate": ColwiseParallel(output_layouts=Replicate()),
        "mix": RowwiseParallel(input_layouts=Replicate()),
    }
    plan = {f"blocks.{i}.{name}": style for i in range(len(module.blocks)) for name, style in block.items()}
    return plan | {"head": ColwiseParallel(output_layouts=Replicate())}


def _plan_of_blocks(module: VoiceModel | VocoderModel) -> dict[str, ParallelStyle]:
    """torch's parallel styles, by layer name: columns of each block's first matrix, rows of its second."""
    names = [name for name, part in module.named_modules() if isinstance(part, VoiceBlock)]
    plan: dict[str, ParallelStyle] = {f"{name}.up": ColwiseParallel() for name in names}
    plan |= {f"{name}.down": RowwiseParallel() for name in names}
    if isinstance(module, VoiceModel) and module.flow:
        plan |= {"decoder.time.0": ColwiseParallel(), "decoder.time.2": RowwiseParallel()}
        shifts = range(len(module.decoder.shifts))
        plan |= {f"decoder.shifts.{i}": ColwiseParallel(output_layouts=Replicate()) for i in shifts}
    return plan
