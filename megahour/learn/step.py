"""One worker's step: gradients of its batches, agreed with the other workers, and the optimiser's update.

On a CPU a batch is split over `threads` replicas. Each replica is one Python thread with one torch thread that runs
forward and backward of its share through the same parameters, and the gradients are added in order. Two replicas are
much faster than two OpenMP threads inside each small matrix product, and the sum does not depend on timing. On a GPU
there is one replica, and no part of a step waits for the device: losses and norms stay there as scalars.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from megahour.batches.loader import Batch
from megahour.core import freed_memory
from megahour.core.errors import StageError
from megahour.core.records import key_of
from megahour.learn import criteria, optimisers
from megahour.learn.device import moved, scaler_of
from megahour.learn.options import CtcOptions, TransducerOptions
from megahour.learn.params import TrainParams
from megahour.models.encoders import Lstm
from megahour.models.precision import autocast
from megahour.sync.trainers.base import Synchroniser, reading

T = TypeVar("T")

LEAST_SCALE = 1e-4  # of an fp16 loss; also fairseq's limit


class Gradients(NamedTuple):
    """Gradients of the mean loss, the summed loss and correct frames as scalars of the device, and the weight.

    without_path: as in `criteria.Loss`.
    """

    values: list[Tensor]
    loss: Tensor
    weight: int
    correct: Tensor
    without_path: Tensor | None = None


def _given(logits: Tensor, *_: Any) -> Tensor:
    return logits


class Trainer:
    """One worker: module, optimiser, synchroniser, and the replicas that compute gradients. Use as a context manager.

    `module` is on `device`. `synchronise` makes the synchroniser of module and optimiser (`sync.build`). `held`: module
    with the parameters that this worker updates, if not all of `module` (`sharded`). `sequence`: of sequence training.
    """

    def __init__(
        self,
        p: TrainParams,
        module: nn.Module,
        synchronise: Callable[[nn.Module, torch.optim.Optimizer], Synchroniser],
        device: torch.device = criteria.CPU,
        held: nn.Module | None = None,
        sequence: criteria.SequenceGoal | None = None,
    ) -> None:
        self.p, self.module, self.device = p, module, device
        self._held = held = module if held is None else held
        self.names = [name for name, _ in module.named_parameters()]
        self.parameters = list(held.parameters())
        self.optimiser = optimisers.build(p, held)
        self.synchroniser = synchronise(held, self.optimiser)
        self.scaler = self._new_scaler()
        module.recompute = p.recompute  # type: ignore[assignment]
        if isinstance(encoder := getattr(module, "encoder", module), Lstm):
            encoder.truncate = p.truncate
        self._run = torch.compile(module, dynamic=True) if p.compile else module
        consistency = p.goal.consistency if isinstance(p.goal, CtcOptions) else 0.0
        self._sequence = sequence
        self._criterion = partial(
            criteria.loss,
            self._forward,
            joint=bool(getattr(module, "joint", False)),
            consistency=consistency,
            sequence=sequence,
        )
        self._replicas = p.threads if device.type == "cpu" else 1
        self._average: list[Tensor] = []
        self._averaged = 0
        torch.set_num_threads(1)
        if device.type == "cpu" and p.parallel.shard == 1:
            freed_memory.keep()
        self._pool = ThreadPoolExecutor(self._replicas, initializer=torch.set_num_threads, initargs=(1,))

    def regroup(self, synchronise: Callable[[nn.Module, torch.optim.Optimizer], Synchroniser]) -> None:
        """Change the group of workers: keep model and optimiser, and build a new synchroniser.

        An interrupted step may have unscaled its gradients, which a scaler allows once between two updates.
        """
        self.synchroniser = synchronise(self._held, self.optimiser)
        if self.scaler is not None:
            before, self.scaler = self.scaler.state_dict(), self._new_scaler()
            assert self.scaler is not None
            self.scaler.load_state_dict(before)

    def _new_scaler(self) -> GradScaler | None:
        scaler = scaler_of(self.device, self.p.precision)
        if scaler is not None:
            scaler.scale(torch.zeros((), device=self.device))  # creates the scale before replicas use it
        return scaler

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def prune_after(self, done: float) -> None:
        """Switch on a pruned transducer's pruning once the share `done` of the training reaches `prune_after`."""
        if isinstance(self.p.goal, TransducerOptions) and self.p.goal.prune:
            self.module.prunes = done >= self.p.goal.prune_after  # type: ignore[assignment]

    def backward(self, batches: Sequence[Batch], numbers: Sequence[int]) -> Gradients | None:
        """`gradients` of this worker's part of a step; None if it has no batch."""
        return self.gradients(batches, numbers) if batches else None

    def gradients(self, batches: Sequence[Batch], numbers: Sequence[int]) -> Gradients:
        """Gradients of the mean loss over `batches`; dropout is drawn from (seed, the batch's number, replica)."""
        weight = max(1, sum(map(criteria.weight, batches)))
        values: list[Tensor] = []
        losses, correct, without_path = [], [], []
        for batch, number in zip(batches, numbers, strict=True):
            for share in self._shared(batch, partial(self._share, weight, number)):
                if values:
                    torch._foreach_add_(values, share.values)
                else:
                    values = share.values
                losses.append(share.loss)
                correct.append(share.correct)
                if share.without_path is not None:
                    without_path.append(share.without_path)
        lacking = torch.stack(without_path).sum() if without_path else None
        return Gradients(values, torch.stack(losses).sum(), weight, torch.stack(correct).sum(), lacking)

    def _shared(self, batch: Batch, work: Callable[[Batch, int], T]) -> list[T]:
        """`work` of each replica's part of a batch, in order."""
        replicas = min(self._replicas, len(batch.keys))
        parts = [batch.part(r, replicas) for r in range(replicas)]
        if replicas == 1:
            return [work(parts[0], 0)]
        return list(self._pool.map(work, parts, range(replicas)))

    def _share(self, weight: int, number: int, batch: Batch, replica: int) -> Gradients:
        values: list[Tensor] = []
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        without_path = None
        for loss in self._losses_in_time(batch, number, replica):
            mean = loss.total / weight
            added = torch.autograd.grad(mean if self.scaler is None else self.scaler.scale(mean), self.parameters)
            if values:
                torch._foreach_add_(values, added)
            else:
                values = list(added)
            total, correct = total + loss.total.detach().double(), correct + loss.correct
            without_path = loss.without_path  # sequence training has one loss for a whole batch
        return Gradients(values, total, weight, correct, without_path)

    def _losses_in_time(self, batch: Batch, number: int, replica: int) -> Iterator[criteria.Loss]:
        """The loss, or the losses of consecutive time chunks; a chunk's graph can be freed before the next one's."""
        if not self.p.truncate or self.p.criterion != "ce":  # such a loss needs the whole utterance
            yield self._loss(batch, number, replica)
            return
        assert isinstance(self.module, Lstm)
        features, lengths = (moved(torch.from_numpy(each), self.device) for each in (batch.features, batch.lengths))
        parts = self.module.parts(features, lengths, self.p.truncate, self._generator(number, replica))
        while True:
            with autocast(self.device, self.p.precision):
                logits, first = next(parts, (None, 0))
            if logits is None:
                return
            part = criteria.on_device(batch.frames(first, logits.shape[1]), self.device)
            yield criteria.loss(partial(_given, logits), part)

    def _loss(self, batch: Batch, number: int, replica: int = 0) -> criteria.Loss:
        return self._criterion(self._moved(batch), self._generator(number, replica))

    def _generator(self, number: int, replica: int) -> torch.Generator | None:
        if getattr(self.module, "dropout", 0.0) or getattr(self.module, "draws", False):
            return torch.Generator(self.device).manual_seed(key_of("dropout", self.p.seed, number, replica))
        return None

    def _moved(self, batch: Batch) -> criteria.DeviceBatch:
        subsample, sentences = getattr(self.module, "subsample", 1), self._sequence is not None
        return criteria.on_device(batch, self.device, subsample, sentences=sentences)

    def _forward(self, *inputs: Any) -> Tensor:
        with autocast(self.device, self.p.precision):
            outputs: Tensor = self._run(*inputs)
        return outputs

    def apply(self, gradients: Gradients | None, learning_rate: float, number: int) -> None:
        """One step of the synchroniser: clip, agree, update. None: this worker had no batch.

        number: of the step, from 1, as in the curves and the meters.

        Raises
        ------
        StageError: loss or gradient is not finite; on a GPU `check_finite` finds out later.
        WorkerLostError: see `Synchroniser.step`.
        """
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        for i, parameter in enumerate(self.parameters):
            parameter.grad = gradients.values[i] if gradients else None
        loss = 0.0 if gradients is None else reading(gradients.loss / gradients.weight)
        if isinstance(loss, Tensor) or math.isfinite(loss):
            self.synchroniser.step(weight=gradients.weight if gradients else 0.0, scaler=self.scaler)
        norm = self.synchroniser.metrics.get("gradient_norm", 0.0)
        if not isinstance(loss, Tensor) and not isinstance(norm, Tensor):
            self.check_finite(loss, norm, number, learning_rate)

    def add_to_average(self) -> None:
        """Add the current weights to the average that `take_average` uses."""
        self._averaged += 1
        if self._averaged == 1:
            self._average = [parameter.detach().clone() for parameter in self.parameters]
        else:
            torch._foreach_lerp_(self._average, [each.detach() for each in self.parameters], 1 / self._averaged)

    def take_average(self) -> None:
        """Replace the weights by their average, if there is one."""
        with torch.no_grad():
            for parameter, mean in zip(self.parameters, self._average, strict=False):
                parameter.copy_(mean)

    def check_finite(self, loss: float, norm: float, number: int, learning_rate: float) -> None:
        """Raises StageError unless loss and gradient norm of step `number` are finite.

        With fp16 an infinite norm means that the scale was too large: the step was skipped, and the scale is halved.
        """
        if not math.isfinite(loss) or (self.scaler is None and not math.isfinite(norm)):
            what = f"loss {loss} with gradient norm {norm}" if math.isfinite(loss) else f"loss {loss}"
            raise StageError(
                f"{what} at step {number}, learning rate {learning_rate:.2g}",
                where="train",
                remedy="lower learning_rate or clip; at step 1, look for NaN in the features",
            )

    def loss_scale(self) -> dict[str, float | Tensor]:
        """The scale of fp16's losses, as `loss_scale`; empty for other precisions."""
        if self.scaler is None:
            return {}
        return {"loss_scale": reading(self.scaler.scale(torch.ones((), device=self.device)))}

    def check_scale(self, scale: float, number: int) -> None:
        """Raises StageError if fp16's scale of the loss, halved by each step left out, is below `LEAST_SCALE`."""
        if scale < LEAST_SCALE:
            raise StageError(
                f"fp16 gradients are infinite or NaN at any scale of the loss, now {scale:.1g} at step {number}, and "
                "their steps are left out",
                where="train",
                remedy="set precision: fp32 to see whether the gradients themselves are broken; if they are not, bf16",
            )

    def evaluate(self, batches: Iterable[Batch]) -> tuple[float, int, int]:
        """Summed loss, weight and correct frames, without dropout."""
        losses = [torch.zeros((), dtype=torch.float64, device=self.device)]
        weight, correct = 0, torch.zeros((), dtype=torch.int64, device=self.device)
        for batch in batches:
            shares = list(self._shared(batch, self._score))
            losses += [share.total.double() for share in shares]
            weight += criteria.weight(batch)
            for share in shares:
                correct += share.correct
        return float(torch.stack(losses).sum()), weight, int(correct)

    def _score(self, batch: Batch, replica: int) -> criteria.Loss:
        with torch.no_grad():
            return self._criterion(self._moved(batch))

    def tensors(self) -> dict[str, Tensor]:
        """Weights, state of optimiser, synchroniser and loss scale, by name."""
        return self.model_tensors() | {f"sync.{name}": tensor for name, tensor in self.synchroniser.state().items()}

    def model_tensors(self) -> dict[str, Tensor]:
        """`tensors` without the synchroniser's."""
        tensors = named_tensors(self.names, self.parameters, self.optimiser)
        tensors |= {f"average.{name}": mean for name, mean in zip(self.names, self._average, strict=False)}
        if self._average:
            tensors["averaged"] = torch.tensor([self._averaged])
        if self.scaler is not None:
            state = self.scaler.state_dict()
            tensors["scaler"] = torch.tensor([state["scale"], state["_growth_tracker"]], dtype=torch.float64)
        return tensors

    def offsets(self) -> dict[str, list[int]]:
        """Offsets of `tensors` that are parts of larger ones; there are none here."""
        return {}

    def model(self) -> dict[str, Tensor]:
        """The whole model's weights and buffers, on the CPU."""
        return {name: tensor.cpu().contiguous() for name, tensor in self.module.state_dict().items()}

    def restore(self, tensors: Mapping[str, Tensor], states: Sequence[Mapping[str, Tensor]]) -> None:
        """Restore `tensors`, and the synchroniser's `states` of all workers."""
        self.restore_model(tensors)
        self.synchroniser.restore(states)

    def restore_model(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore `model_tensors`."""
        # Only fused kernels count steps on the device; other optimisers would wait for the number in every step.
        fused = {id(q) for group in self.optimiser.param_groups if group.get("fused") for q in group["params"]}
        with torch.no_grad():
            for name, parameter in zip(self.names, self.parameters, strict=True):
                parameter.copy_(tensors[f"weights.{name}"])
                kept = {part: tensors[f"{part}.{name}"] for part in optimisers.STATE if f"{part}.{name}" in tensors}
                if kept:
                    self.optimiser.state[parameter] = {
                        part: tensor if part == "step" and id(parameter) not in fused else tensor.to(parameter.device)
                        for part, tensor in kept.items()
                    }
        if "averaged" in tensors:
            self._averaged = int(tensors["averaged"])
            self._average = [tensors[f"average.{name}"].to(self.device, copy=True) for name in self.names]
        if self.scaler is not None and "scaler" in tensors:
            scale, tracker = tensors["scaler"].tolist()
            self.scaler.load_state_dict(self.scaler.state_dict() | {"scale": scale, "_growth_tracker": int(tracker)})


def named_tensors(
    names: Sequence[str], parameters: Sequence[nn.Parameter], optimiser: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """Weights and the optimiser's state, by name, as they are and not as copies."""
    tensors = {f"weights.{name}": parameter.detach() for name, parameter in zip(names, parameters, strict=True)}
    for name, parameter in zip(names, parameters, strict=True):
        for part, tensor in optimiser.state.get(parameter, {}).items():
            if isinstance(tensor, Tensor):
                tensors[f"{part}.{name}"] = tensor
    return tensors
