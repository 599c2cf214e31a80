"""A model that several workers hold in parts, by torch's `fully_shard` (FSDP2).

The workers of a job are groups of `parallel.shard` consecutive ranks:

    rank      0  1 | 2  3 | 4  5        shard: 2, three groups
    shard     0  1 | 0  1 | 0  1        parts of one model: FSDP2 inside a group, fast
    trainer   0, 2 and 4 agree on part 0; 1, 3 and 5 on part 1: thin

A group is one worker to the trainer. Its gradient is the mean over all frames of its workers' batches, clipped as one;
what each of its workers holds of it goes, as plain tensors, through optimiser and synchroniser with the workers that
hold the same part. Sums are over equal numbers of forward and backward passes: who has fewer batches than another of
its group takes part with an empty one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from megahour.batches.loader import Batch
from megahour.core.errors import ConfigError
from megahour.sync.group.base import Group, WorkerLostError
from megahour.sync.group.mesh import of_transport
from megahour.sync.trainers.base import Synchroniser, reading
from megahour.train import criteria
from megahour.train.params import TrainParams
from megahour.train.step import Gradients, Trainer


class ShardedTrainer(Trainer):
    """One worker of a group that holds a model in parts. Forward is a collective call of the group, everywhere.

    `synchronise`, of a group of workers, makes the synchroniser of a module and its optimiser. `module` takes features
    of `inputs` values. On a CPU one replica computes with `threads` torch threads. A lost worker raises
    `WorkerLostError` on all of its group.

    Raises ConfigError: `group` is not one of processes.
    """

    def __init__(
        self,
        p: TrainParams,
        module: nn.Module,
        synchronise: Callable[[Group], Callable[[nn.Module, torch.optim.Optimizer], Synchroniser]],
        group: Group,
        device: torch.device = criteria.CPU,
        *,
        inputs: int,
    ) -> None:
        # The encoders change nothing in place, of which FSDP warns for each layer whose output is a view.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
        self._inputs = inputs
        self._bytes = sum(q.numel() * q.element_size() for q in module.parameters())
        shard, whole = p.parallel.shard, p.parallel.mode == "zero"
        mesh = _mesh(group, shard, p.timeout_s, device)
        for part in [*_units(module), module]:
            fully_shard(part, mesh=mesh, reshard_after_forward=not whole)
        self._modules = [part for part in module.modules() if isinstance(part, FSDPModule)]
        for part in self._modules:  # gradients are sums, of losses that are divided by the group's frames
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        self._sharded = [_sharded(parameter) for parameter in module.parameters()]
        self.shards = _split(group, [range(i, i + shard) for i in range(0, group.size, shard)])
        peers = _split(group, [range(i, group.size, shard) for i in range(shard)])
        held = nn.ParameterList([nn.Parameter(parameter.to_local().detach()) for parameter in self._sharded])
        super().__init__(p, module, synchronise(peers), device, held)
        self._replicas = 1
        self._weight = 0  # frames of the group in the step whose backward passes were last
        if device.type == "cpu":
            torch.set_num_threads(p.threads)

    def backward(self, batches: Sequence[Batch], numbers: Sequence[int]) -> Gradients | None:
        """The group's gradient, of which each worker keeps its part; loss and weight are of its own batches."""
        own = sum(map(criteria.weight, batches))
        said = self.shards.all_gather(torch.tensor([own, len(batches)])).wait()
        rounds = int(said[:, 1].max())
        self._weight = weight = max(1, int(said[:, 0].sum())) if rounds else 0
        for sharded in self._sharded:
            sharded.grad = None
        with _lost_peers(self.shards):
            losses = [self._accumulate(batch, n, weight) for batch, n in zip(batches, numbers, strict=True)]
            for _ in range(rounds - len(batches)):
                torch.autograd.backward(self._idle())
        self._count(rounds)
        if not losses:
            return None
        loss = torch.stack([found.total.detach().double() for found in losses]).sum()
        return Gradients([], loss, max(1, own), torch.stack([found.correct for found in losses]).sum())

    def _accumulate(self, batch: Batch, number: int, weight: int) -> criteria.Loss:
        loss = self._loss(batch, number)
        torch.autograd.backward(loss.total / weight)
        return loss

    def _idle(self) -> Tensor:
        """0, from a forward pass on one frame: what a worker without a batch computes beside the others."""
        frame = torch.zeros(1, 1, self._inputs, device=self.device)
        return self._forward(frame, torch.ones(1, dtype=torch.int64, device=self.device), None).sum() * 0.0

    def apply(self, gradients: Gradients | None, learning_rate: float, number: int) -> None:
        """Clips the group's gradient, agrees with the other groups on this worker's part of it, and steps."""
        for settings in self.optimiser.param_groups:
            settings["lr"] = learning_rate
        for parameter, sharded in zip(self.parameters, self._sharded, strict=True):
            parameter.grad = sharded.grad.to_local() if isinstance(sharded.grad, DTensor) else None
        norm = torch.zeros((), device=self.device)
        if self._weight:
            own = nn.utils.get_total_norm([q.grad for q in self.parameters if q.grad is not None])
            norm = torch.linalg.vector_norm(self.shards.all_gather(own).wait())
            if norm.device.type == "cpu":
                self.check_finite(0.0, float(norm), number, learning_rate)
            nn.utils.clip_grads_with_norm_(self.parameters, self.p.clip, norm)
        self.synchroniser.step(weight=float(self._weight))
        self.synchroniser.metrics["gradient_norm"] = reading(norm)

    def evaluate(self, batches: Iterable[Batch]) -> tuple[float, int, int]:
        """Summed loss, weight and correct frames of this worker's batches. A collective call of the group."""
        with _lost_peers(self.shards):
            found = super().evaluate(self._together(batches))
        for part in self._modules:
            part.reshard()  # without a backward pass no one has
        return found

    def _together(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """This worker's batches, and beside them passes without one for as long as others of the group have some."""
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

    def offsets(self) -> dict[str, list[int]]:
        """Where this worker's parts begin in the whole: torch shares out the rows of each parameter evenly, the last
        workers have fewer."""
        found: dict[str, list[int]] = {}
        for name, part, sharded in zip(self.names, self.parameters, self._sharded, strict=True):
            rows = sharded.shape[0]
            first = min(rows, self.shards.rank * -(-rows // self.shards.size))
            place = [first] + [0] * (sharded.dim() - 1)
            for kept, tensor in [("weights", part), *self.optimiser.state.get(part, {}).items()]:
                if isinstance(tensor, Tensor) and tensor.shape == part.shape:
                    found[f"{kept}.{name}"] = place
        return found

    def model(self) -> dict[str, Tensor]:
        """The whole model, on the first worker; the others have none. A collective call."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        with _lost_peers(self.shards):
            gathered = get_model_state_dict(self.module, options=options)
        return {name: tensor.contiguous() for name, tensor in gathered.items() if isinstance(tensor, Tensor)}

    def restore(self, tensors: Mapping[str, Tensor], states: Sequence[Mapping[str, Tensor]]) -> None:
        """As `Trainer.restore`; the synchroniser's states are of the workers that held the same part."""
        super().restore(tensors, states[self.shards.rank :: self.shards.size])

    def _count(self, rounds: int) -> None:
        """Payload bytes of a step: weights come together before forward and (fsdp) backward, gradients are summed."""
        sweeps = 2 if self.p.parallel.mode == "zero" else 3
        sent = round(rounds * sweeps * self._bytes * (1 - 1 / self.shards.size))
        self.shards.traffic.sent_bytes += sent
        self.shards.traffic.received_bytes += sent


def _units(module: nn.Module) -> list[nn.Module]:
    """Layers whose weights come together on their own; what is small (norms) comes with the whole."""
    return [
        part
        for part in module.modules()
        if part is not module and any(q.dim() > 1 for q in part.parameters(recurse=False))
    ]


def _sharded(parameter: nn.Parameter) -> DTensor:
    assert isinstance(parameter, DTensor)
    return parameter


def _mesh(group: Group, shard: int, timeout_s: float, device: torch.device) -> DeviceMesh:
    world = getattr(group, "process_group", None)
    if world is None:
        raise ConfigError("a model in parts needs processes of torch.distributed", remedy="leave `parallel` out")
    everyone = dist.get_process_group_ranks(world)
    first = group.rank - group.rank % shard
    own = dist.new_group(
        everyone[first : first + shard], timeout=timedelta(seconds=timeout_s), use_local_synchronization=True
    )
    return DeviceMesh.from_group(own, device.type)


def _split(group: Group, parts: Sequence[range]) -> Group:
    found = group.split(parts)
    assert found is not None
    return found


@contextmanager
def _lost_peers(shards: Group) -> Iterator[None]:
    """torch's errors of connections and time limits inside a group are those of a lost worker."""
    try:
        yield
    except RuntimeError as error:
        if not of_transport(error):
            raise
        raise WorkerLostError(
            f"a worker that holds a part of the model does not answer: {str(error).splitlines()[0]}",
            where=f"shard {shards.rank} of {shards.size}",
            remedy="start all workers again from the last checkpoint",
        ) from error
