"""The training loop: an ordinary one, a pure function of its plan, that can be killed at any moment.

A step splits its batch over `threads` replicas. Each replica is one Python thread with one torch thread that runs
forward and backward of its share through the same parameters, and the gradients are added in order. Two replicas beat
two OpenMP threads inside every small matrix product by far, and the sum does not depend on timing.
Gradients pass through one place, `apply`, where a synchroniser agrees on them with the other workers (`megahour.sync`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor, nn

from megahour.batches.loader import Batch
from megahour.core.errors import StageError
from megahour.core.records import key_of
from megahour.sync.base import Synchroniser
from megahour.train import criteria


class Gradients(NamedTuple):
    """Gradients of the mean loss, and the batch's summed loss, weight and correct frames."""

    values: list[Tensor]
    loss: float
    weight: int
    correct: int


class Trainer:
    """One worker: module, optimiser, synchroniser, and the replicas that compute gradients. Use as a context manager.

    `synchronise` makes the synchroniser of module and optimiser (`sync.build` with its options).
    """

    def __init__(
        self,
        module: nn.Module,
        synchronise: Callable[[nn.Module, torch.optim.Optimizer], Synchroniser],
        *,
        threads: int,
        seed: int,
        weight_decay: float = 0.0,
    ) -> None:
        self.module, self.threads, self.seed = module, threads, seed
        self.names, self.parameters = zip(*module.named_parameters(), strict=True)
        self.optimiser = torch.optim.AdamW(self.parameters, lr=0.0, weight_decay=weight_decay)
        self.synchroniser = synchronise(module, self.optimiser)
        torch.set_num_threads(1)
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def gradients(self, batch: Batch, step: int) -> Gradients:
        """Gradients of the mean loss of `batch`; dropout is drawn from (seed, step, replica)."""
        weight = max(1, criteria.weight(batch))
        replicas = min(self.threads, len(batch.keys))
        work = [self._pool.submit(self._share, batch.part(r, replicas), weight, step, r) for r in range(replicas)]
        shares = [future.result() for future in work]
        values = list(shares[0].values)
        for share in shares[1:]:
            torch._foreach_add_(values, share.values)
        loss, correct = math.fsum(share.loss for share in shares), sum(share.correct for share in shares)
        return Gradients(values, loss, weight, correct)

    def _share(self, batch: Batch, weight: int, step: int, replica: int) -> Gradients:
        generator = torch.Generator().manual_seed(key_of("dropout", self.seed, step, replica))
        loss = criteria.loss(self.module, batch, generator)
        values = torch.autograd.grad(loss.total / weight, self.parameters)
        return Gradients(list(values), float(loss.total.detach()), weight, loss.correct)

    def apply(self, gradients: Gradients | None, learning_rate: float, step: int) -> None:
        """One step of the synchroniser: clip, agree, update. None: there was no batch for this worker.

        Raises
        ------
        StageError: loss or gradient is not finite.
        WorkerLostError: see `Synchroniser.step`.
        """
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        for number, parameter in enumerate(self.parameters):
            parameter.grad = gradients.values[number] if gradients else None
        loss = gradients.loss / gradients.weight if gradients else 0.0
        if math.isfinite(loss):
            self.synchroniser.step(weight=gradients.weight if gradients else 0.0)
        norm = self.synchroniser.metrics.get("gradient_norm", 0.0)
        if not math.isfinite(loss) or not math.isfinite(norm):
            what = f"loss {loss} with gradient norm {norm}" if math.isfinite(loss) else f"loss {loss}"
            raise StageError(
                f"{what} at step {step}, learning rate {learning_rate:.2g}",
                where="train",
                remedy="lower learning_rate or clip; if it happens at step 0, look for NaN in the features",
            )

    def evaluate(self, batches: Iterable[Batch]) -> tuple[float, int, int]:
        """Summed loss, weight and correct frames, without dropout."""
        loss, weight, correct = 0.0, 0, 0
        for batch in batches:
            replicas = min(self.threads, len(batch.keys))
            shares = list(self._pool.map(self._score, [batch.part(r, replicas) for r in range(replicas)]))
            loss += math.fsum(share.total.item() for share in shares)
            weight += criteria.weight(batch)
            correct += sum(share.correct for share in shares)
        return loss, weight, correct

    def _score(self, batch: Batch) -> criteria.Loss:
        with torch.no_grad():
            return criteria.loss(self.module, batch)

    def tensors(self) -> dict[str, Tensor]:
        """Weights, optimiser and synchroniser state by name."""
        found = {f"weights.{name}": p.detach() for name, p in zip(self.names, self.parameters, strict=True)}
        for name, parameter in zip(self.names, self.parameters, strict=True):
            for part, tensor in self.optimiser.state.get(parameter, {}).items():
                found[f"{part}.{name}"] = tensor
        return found | {f"sync.{name}": tensor for name, tensor in self.synchroniser.state().items()}

    def restore(self, tensors: Mapping[str, Tensor], states: Sequence[Mapping[str, Tensor]]) -> None:
        """Put back what `tensors` gave, and the synchroniser's `states` of all workers."""
        with torch.no_grad():
            for name, parameter in zip(self.names, self.parameters, strict=True):
                parameter.copy_(tensors[f"weights.{name}"])
                state = {part: tensors[f"{part}.{name}"] for part in _ADAM if f"{part}.{name}" in tensors}
                if state:
                    self.optimiser.state[parameter] = state
        self.synchroniser.restore(states)


_ADAM = ("step", "exp_avg", "exp_avg_sq")
