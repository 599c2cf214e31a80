"""Pipeline parallelism: each worker of a group holds some layers, and batches pass through them in parts.

torch.distributed.pipelining sends activations to the next worker, and gradients back. A worker's batch is split into
`microbatches` parts (utterances 0, m, 2 m, … are the first); all parts of a step are padded to one shape, which the
connections need. Padding has no effect: the loss covers the original frames and utterances only.

    worker 0      entry, layers 0 … a     parts 0 1 2 3 …     features
    worker 1      layers a … b              parts 0 1 2 3 …
    worker 2      layers b … L, head          parts 0 1 2 3 … losses

A voice's activations are those of phones up to the first layer of its decoder, and those of frames from there on, since
true durations are known in training; its loss so far passes with them.

Dropout and a Conformer's contexts are those of one process with `threads` equal to `microbatches`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from megahour.core.errors import ConfigError
from megahour.core.records import key_of
from megahour.models.build import skeleton
from megahour.models.encoders import Encoder
from megahour.models.joint_chain import JointChain
from megahour.parallel.in_parts import build_in_parts, without
from megahour.parallel.parts import lost_peers
from megahour.parallel.pipeline_stages import ChainStage, EncoderStage, PipelinePart, PipelineStageOf
from megahour.parallel.shared_batches import NumberedBatch, SharedBatchesTrainer

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class PipelineTrainer(SharedBatchesTrainer):
    """One worker of a pipeline.

    Raises ConfigError: the model is not an encoder with a chain of layers, or has fewer layers than workers.
    """

    def _made(self) -> nn.Module:
        whole = skeleton(self.config)
        if not isinstance(whole, Encoder | JointChain):
            raise ConfigError(
                f"parallel.mode pipeline: {type(whole).__name__} is not a chain of layers with one head for its loss",
                remedy="use mode fsdp",
            )
        self._whole = whole
        chain, workers = whole.chain(), self.shards.size
        names = {id(module): name for name, module in whole.named_modules()}
        self._starts = balanced([sum(map(_size, link)) for link in chain], workers)
        own = range(self._starts[self.shards.rank], self._starts[self.shards.rank + 1])
        dropped = [names[id(module)] for i, link in enumerate(chain) if i not in own for module in link]
        module = build_in_parts(self.config, self.p.seed, without(dropped)).to(self.device)
        made: type[EncoderStage | ChainStage] = EncoderStage if isinstance(whole, Encoder) else ChainStage
        self._stage = made(module, whole, own, self.config["inputs"], self.p.precision)  # type: ignore[arg-type]
        self._shape: tuple[bool, int, int, tuple[int, ...]] | None = None
        return module

    def _train(self, everyone: Sequence[NumberedBatch], weight: int) -> Tensor:
        return self._run_through(everyone, weight, training=True)

    def _score_all(self, everyone: Sequence[NumberedBatch]) -> Tensor:
        return self._run_through(everyone, 1, training=False)

    def _run_through(self, everyone: Sequence[NumberedBatch], weight: int, *, training: bool) -> Tensor:
        parts = list(self._parts(everyone, training))
        losses = _Losses(parts, weight, self._stage)
        lengths = self._stage.lengths(parts)
        self._schedule_for(training, len(parts), len(parts[0].lengths), lengths)
        self._stage.parts, self._losses = parts, losses
        step = self._schedule.step if training else self._schedule.eval
        numbers, ends = torch.arange(len(parts)), self._stage
        given = (ends.entry(parts, lengths).to(self.device),) if ends.is_first else ()
        step(*given, number=numbers, target=numbers if ends.is_last else None, return_outputs=False)
        self._pipe.clear_runtime_states()
        if training:
            self._count(self._sent, self._sent)
        found = torch.stack(losses.found).cpu() if losses.found else torch.zeros(len(parts), 2, dtype=torch.float64)
        self.shards.broadcast(found, self.shards.size - 1)
        owners = torch.tensor([part.owner for part in parts])
        return torch.zeros(len(everyone), 2, dtype=torch.float64).index_add_(0, owners, found)

    def _parts(self, everyone: Sequence[NumberedBatch], training: bool) -> Iterator[PipelinePart]:
        count = self.p.parallel.microbatches
        rows = max(-(-len(each.batch.keys) // count) for each in everyone)
        for owner, each in enumerate(everyone):
            for r in range(count):
                batch = each.batch.part(r, count)
                lengths = torch.zeros(rows, dtype=torch.int64)
                lengths[: len(batch.keys)] = torch.from_numpy(batch.lengths)
                seed = key_of("dropout", self.p.seed, each.number, r) if training else None
                yield PipelinePart(owner, len(batch.keys), batch, lengths.to(self.device), seed)

    def _schedule_for(self, training: bool, count: int, rows: int, lengths: tuple[int, ...]) -> None:
        """Rebuild torch's schedule if the step's shape differs from the last one's: its connections fix the shape."""
        shape = (training, count, rows, lengths)
        if shape == self._shape:
            return
        self._shape = shape
        given, made = self._stage.shapes(rows, lengths, training)
        self._pipe = PipelineStage(
            self._stage,
            self.shards.rank,
            self.shards.size,
            self.device,
            input_args=given,
            output_args=made,
            group=self.mesh.get_group(),
        )
        name = self.p.parallel.schedule if training and count >= self.shards.size else "gpipe"
        self._schedule = SCHEDULES[name](self._pipe, count, loss_fn=self._loss_of, scale_grads=False)
        edges = [*([] if self._stage.is_first else [given]), *([] if self._stage.is_last else [made])]
        # each carries activations one way, gradients the other
        self._sent = count * sum(edge.numel() * edge.element_size() for edge in edges)

    def _loss_of(self, logits: Tensor, number: Tensor) -> Tensor:
        return self._losses.of(logits, int(number))

    def model(self) -> dict[str, Tensor]:
        """The whole model, on the first worker; the others have none. A collective call."""
        if self.replica:
            return {}
        own, tensors = self.module.state_dict(), {}
        with lost_peers(self.shards):
            shapes = self._whole.state_dict()
            for name, owner in self._owners().items():
                if self.shards.rank == owner:
                    tensor = own[name].contiguous()
                    if owner:
                        dist.send(tensor, group=self.mesh.get_group(), group_dst=0)
                elif self.shards.rank == 0:
                    tensor = torch.empty_like(shapes[name], device=self.device)
                    dist.recv(tensor, group=self.mesh.get_group(), group_src=owner)
                if self.shards.rank == 0:
                    tensors[name] = tensor.cpu()
        return tensors

    def _owners(self) -> dict[str, int]:
        """The worker that holds each tensor, by name."""
        owner_of: dict[int, int] = {}
        for i, link in enumerate(self._whole.chain()):
            stage = max(s for s in range(self.shards.size) if self._starts[s] <= i)
            owner_of |= {id(tensor): stage for module in link for tensor in module.state_dict(keep_vars=True).values()}
        return {name: owner_of[id(tensor)] for name, tensor in self._whole.state_dict(keep_vars=True).items()}


class _Losses:
    """The last worker's losses: `found` has the summed loss and the correct frames of each part."""

    def __init__(self, parts: Sequence[PipelinePart], weight: int, stage: PipelineStageOf) -> None:
        self._parts, self._weight, self._stage = parts, weight, stage
        self.found: list[Tensor] = []

    def of(self, output: Tensor, number: int) -> Tensor:
        """The part's share of the group's mean loss."""
        part = self._parts[number]
        if not part.rows:
            self.found.append(torch.zeros(2, dtype=torch.float64, device=output.device))
            return output.sum() * 0.0
        loss = self._stage.loss(output, part)
        self.found.append(torch.stack([loss.total.detach().double(), loss.correct.double()]))
        return loss.total / self._weight


def balanced(sizes: Sequence[int], workers: int) -> list[int]:
    """Where each worker's links begin, and the end: minimises the largest sum, with at least one layer per worker.

    `sizes` are those of entry, layers and head; entry and head stay with the adjacent layer.

    Raises ConfigError: there are fewer layers than workers.

    >>> balanced([1, 4, 4, 4, 9], 2)
    [0, 3, 5]
    """
    layers = [*sizes[1:-1]]
    if len(layers) < workers:
        raise ConfigError(
            f"parallel.mode pipeline: {len(layers)} layers for {workers} workers", remedy="lower `shard`, or use fsdp"
        )
    layers[0] += sizes[0]
    layers[-1] += sizes[-1]
    until = [0, *accumulate(layers)]
    best: list[tuple[int, list[int]]] = [(until[end], [0]) for end in range(len(until))]
    for worker in range(1, workers):
        best = [
            min((max(best[cut][0], until[end] - until[cut]), [*best[cut][1], cut]) for cut in range(worker, end))
            if end > worker
            else (until[-1] + 1, [])
            for end in range(len(until))
        ]
    cuts = best[-1][1]
    return [0, *(cut + 1 for cut in cuts[1:]), len(sizes)]


def _size(module: nn.Module) -> int:
    return sum(q.numel() for q in module.parameters())
