"""The base of trainers that split a model over workers (`sharded`, `pipeline`, `tensor_parallel`).

The workers of a job are groups of `parallel.shard` consecutive ranks:

    rank      0  1 | 2  3 | 4  5        shard: 2, three groups
    shard     0  1 | 0  1 | 0  1        parts of one model: needs a fast network inside a group
    trainer   0, 2 and 4 agree on part 0; 1, 3 and 5 on part 1: a slow network will do

The trainer treats a group as one worker. Its gradient is the mean over all frames of its workers' batches, clipped as
one.
Each worker passes its part of the gradient, as plain tensors, through optimiser and synchroniser together with the
workers that hold the same part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from megahour.core import freed_memory
from megahour.core.errors import ConfigError
from megahour.learn import criteria
from megahour.learn.params import TrainParams
from megahour.learn.step import Gradients, Trainer
from megahour.parallel.in_parts import build_in_parts, only_copied
from megahour.sync.group.base import Group, WorkerLostError
from megahour.sync.group.mesh import of_transport
from megahour.sync.trainers.base import Synchroniser, reading


class PartsTrainer(Trainer):
    """One worker of a group that holds the model of `config` in parts.

    `synchronise` makes, for a group of workers, the synchroniser of a module and its optimiser. On a CPU one replica
    computes with `threads` torch threads. The loss of a worker raises `WorkerLostError` on all of its group.

    Raises ConfigError: `group` is not a group of processes, or the model cannot be split this way.
    """

    def __init__(
        self,
        p: TrainParams,
        config: Mapping[str, Any],
        synchronise: Callable[[Group], Callable[[nn.Module, torch.optim.Optimizer], Synchroniser]],
        group: Group,
        device: torch.device = criteria.CPU,
    ) -> None:
        shard = p.parallel.shard
        self.p, self.config, self.device, self.replica = p, config, device, group.rank // shard
        if device.type == "cpu":
            freed_memory.give_back()
        self.mesh = _mesh(group, shard, p.timeout_s, device)
        self.shards = _split(group, [range(i, i + shard) for i in range(0, group.size, shard)])
        self.peers = _split(group, [range(i, group.size, shard) for i in range(shard)])
        module = self._made()
        self._sharded = list(module.parameters())
        held: nn.Module = module
        if any(isinstance(parameter, DTensor) for parameter in self._sharded):
            named = module.named_parameters()
            held = nn.ParameterList([nn.Parameter(self._shown(name, local(q.detach()))) for name, q in named])
        super().__init__(p, module, synchronise(self.peers), device, held)
        self._replicas = 1
        self._weight = 0  # frames of the group in the last step
        if device.type == "cpu":
            torch.set_num_threads(p.threads)

    def leave(self) -> None:
        """Let go of the process group, as before its workers leave it; this trainer takes no more steps.

        torch caches what it knows of sharded tensors with their mesh, and the mesh would keep the connections.
        """
        self.mesh._pg_registry.clear()

    def _made(self) -> nn.Module:
        """The module on the device, with this worker's part of the weights."""
        raise NotImplementedError

    def _shown(self, name: str, part: Tensor) -> Tensor:
        """A view of a part, as seen by optimiser and checkpoints."""
        return part

    def _filled(self, module: nn.Module) -> nn.Module:
        """Move a `module` of shapes to the device, filled with this worker's parts of the values that `build` draws."""
        tables = {name: buffer for name, buffer in module.named_buffers() if not buffer.is_meta}
        module.to_empty(device=self.device)
        for name, table in tables.items():  # of a vocoder's transforms, which have values already
            module.get_buffer(name).copy_(table)
        targets = dict(module.named_parameters())

        def copy(name: str, values: Tensor) -> None:
            target, values = targets[name].detach(), self._arranged(name, values)
            if isinstance(target, DTensor) and (dim := dimension(target)) is not None:
                values = values.narrow(dim, _first(target, dim, self.shards.rank), target.to_local().shape[dim])
            local(target).copy_(values)

        build_in_parts(self.config, self.p.seed, only_copied(copy))
        return module

    def _arranged(self, name: str, values: Tensor) -> Tensor:
        """A parameter's values, ordered so that each worker's part is contiguous."""
        return values

    def _no_gradients(self) -> None:
        for sharded in self._sharded:
            sharded.grad = None

    def apply(self, gradients: Gradients | None, learning_rate: float, number: int) -> None:
        """Clip the group's gradient, agree with other groups on this worker's part, and step."""
        for settings in self.optimiser.param_groups:
            settings["lr"] = learning_rate
        for parameter, sharded in zip(self.parameters, self._sharded, strict=True):
            if parameter is not sharded:
                found = sharded.grad
                if isinstance(sharded, DTensor) and isinstance(found, DTensor):
                    found = local(found.redistribute(placements=sharded.placements))
                parameter.grad = None if found is None else found.view(parameter.shape)
        norm = torch.zeros((), device=self.device)
        if self._weight:
            norm = torch.linalg.vector_norm(self.shards.all_gather(self._own_norm()).wait())
            if norm.device.type == "cpu":
                self.check_finite(0.0, float(norm), number, learning_rate)
            nn.utils.clip_grads_with_norm_(self.parameters, self.p.clip, norm)
        self.synchroniser.step(weight=float(self._weight))
        self.synchroniser.metrics["gradient_norm"] = reading(norm)

    def _own_norm(self) -> Tensor:
        """Squared norm of this worker's gradients; parameters that all hold are counted by the first worker."""
        pairs = zip(self.parameters, self._sharded, strict=True)
        first = self.shards.rank == 0
        counted = [q.grad for q, whole in pairs if q.grad is not None and (first or not self._everywhere(whole))]
        return nn.utils.get_total_norm(counted).to(self.device)

    def _everywhere(self, parameter: Tensor) -> bool:
        """Whether every worker of the group holds the whole parameter."""
        return False

    def offsets(self) -> dict[str, list[int]]:
        """Offsets of this worker's parts in the whole tensors."""
        result: dict[str, list[int]] = {}
        for name, part, sharded in zip(self.names, self.parameters, self._sharded, strict=True):
            place = self._place(name, sharded)
            for kept, tensor in [("weights", part), *self.optimiser.state.get(part, {}).items()]:
                if isinstance(tensor, Tensor) and tensor.shape == part.shape:
                    result[f"{kept}.{name}"] = place
        return result

    def _place(self, name: str, parameter: Tensor) -> list[int]:
        place = [0] * parameter.dim()
        if isinstance(parameter, DTensor) and (dim := dimension(parameter)) is not None:
            place[dim] = _first(parameter, dim, self.shards.rank)
        return place

    def restore(self, tensors: Mapping[str, Tensor], states: Sequence[Mapping[str, Tensor]]) -> None:
        """Like `Trainer.restore`, with the synchroniser's states of the workers that held the same part."""
        super().restore(tensors, states[self.shards.rank :: self.shards.size])

    def _count(self, sent: int, received: int) -> None:
        """Count payload bytes that torch sends inside the group."""
        self.shards.traffic.sent_bytes += sent
        self.shards.traffic.received_bytes += received


def local(tensor: Tensor) -> Tensor:
    """This worker's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def dimension(tensor: DTensor) -> int | None:
    """The dimension that is split; None: every worker has all of it."""
    (placement,) = tensor.placements
    return placement.dim if isinstance(placement, Shard) else None


def _first(tensor: DTensor, dim: int, rank: int) -> int:
    """Where the part of `rank` begins: torch splits evenly, and the last workers get less."""
    size = int(tensor.shape[dim])
    return min(size, rank * -(-size // tensor.device_mesh.size()))


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
def lost_peers(shards: Group) -> Iterator[None]:
    """Turn torch's connection errors and timeouts inside a group into WorkerLostError."""
    try:
        yield
    except RuntimeError as error:
        if not of_transport(error):
            raise
        raise WorkerLostError(
            f"a worker with a part of the model does not respond: {str(error).splitlines()[0]}",
            where=f"shard {shards.rank} of {shards.size}",
            remedy="start all workers again from the last checkpoint",
        ) from error
