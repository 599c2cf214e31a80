"""A worker in the place of an optimiser, for frameworks that call `optimizer.step()` themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from megahour.sync.trainers.base import Synchroniser


class WorkerOptimiser(torch.optim.Optimizer):
    """`optimiser`, but its step is that of `worker`, which was made of it; see `as_optimiser`."""

    def __init__(self, worker: Synchroniser, optimiser: torch.optim.Optimizer) -> None:
        super().__init__(optimiser.param_groups, optimiser.defaults)
        self.worker, self.optimiser = worker, optimiser
        self._share()

    def _share(self) -> None:
        """Schedulers and checkpoints see the optimiser's own groups and state."""
        self.param_groups, self.state = self.optimiser.param_groups, self.optimiser.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """`worker.step()`; a closure is called first, and what it returns is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.worker.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the optimiser does."""
        self.optimiser.load_state_dict(state_dict)
        self._share()


def as_optimiser(worker: Synchroniser, optimiser: torch.optim.Optimizer) -> WorkerOptimiser:
    """An optimiser that steps with the other workers, for Lightning, Accelerate, a Trainer or a loop that is not yours.

    Parameters
    ----------
    worker: made of `optimiser`. Keep it: at the end all call `worker.finish()`.

    Every call of `step` counts with weight 1, so give all workers equally many batches. A GradScaler must not step it:
    workers would leave out different steps. Use bf16 there, or `worker.step(scaler=…)` in a loop of your own.

    >>> from megahour import sync
    >>> model = torch.nn.Linear(2, 1)
    >>> inner = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> optimiser = sync.as_optimiser(sync.dense(model, inner), inner)
    >>> schedule = torch.optim.lr_scheduler.StepLR(optimiser, step_size=1, gamma=0.5)
    >>> optimiser.step(); schedule.step(); inner.param_groups[0]["lr"]
    0.05
    """
    return WorkerOptimiser(worker, optimiser)
