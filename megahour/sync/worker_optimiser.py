"""Wraps a worker as a torch optimiser, for frameworks that call `optimizer.step()` themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from megahour.sync.trainers.base import Synchroniser


class WorkerOptimiser(torch.optim.Optimizer):
    """`optimiser`, with the step of `worker`, which was built from it; see `as_optimiser`."""

    def __init__(self, worker: Synchroniser, optimiser: torch.optim.Optimizer) -> None:
        super().__init__(optimiser.param_groups, optimiser.defaults)
        self.worker, self.optimiser = worker, optimiser
        del self.param_groups, self.state

    def __getattr__(self, name: str) -> Any:
        """The optimiser's own groups and state, which its `load_state_dict` replaces."""
        if name in ("param_groups", "state"):
            return getattr(self.optimiser, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """`worker.step()`; a closure is called first, and its result is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.worker.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load into the wrapped optimiser."""
        self.optimiser.load_state_dict(state_dict)


def as_optimiser(worker: Synchroniser, optimiser: torch.optim.Optimizer) -> WorkerOptimiser:
    """An optimiser that steps with the other workers, for Lightning, Accelerate, a Trainer or another framework's loop.

    Parameters
    ----------
    worker: built from `optimiser`. Keep it: at the end all workers call `worker.finish()`.

    Every call of `step` counts with weight 1, so give all workers equally many batches. Do not use a GradScaler:
    workers would skip different steps. Use bf16, or `worker.step(scaler=…)` in your own loop.

    >>> from megahour import sync
    >>> model = torch.nn.Linear(2, 1)
    >>> inner = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> optimiser = sync.as_optimiser(sync.dense(model, inner), inner)
    >>> schedule = torch.optim.lr_scheduler.StepLR(optimiser, step_size=1, gamma=0.5)
    >>> optimiser.step(); schedule.step(); inner.param_groups[0]["lr"]
    0.05
    """
    return WorkerOptimiser(worker, optimiser)
