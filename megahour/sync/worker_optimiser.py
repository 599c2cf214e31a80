"""Wraps a worker as a torch optimiser, for frameworks that call `optimizer.step()` themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from megahour.core.errors import ConfigError
from megahour.sync.trainers.base import Synchroniser

_OWN, _PLACE = "worker", "rank and size"


def _wrapped(name: str) -> Any:
    """The wrapped optimiser's attribute, which its `load_state_dict` replaces; torch's constructor sets another first.

    A property, since Lightning looks for the name in the class on Python 3.12 and newer.
    """

    def get(self: WorkerOptimiser) -> Any:
        inner = getattr(self, "optimiser", None)
        return self.__dict__[name] if inner is None else getattr(inner, name)

    def put(self: WorkerOptimiser, value: Any) -> None:
        inner = getattr(self, "optimiser", None)
        if inner is None:
            self.__dict__[name] = value
        else:
            setattr(inner, name, value)

    return property(get, put)


class WorkerOptimiser(torch.optim.Optimizer):
    """`optimiser`, with the step of `worker`, which was built from it; see `as_optimiser`."""

    param_groups, state = _wrapped("param_groups"), _wrapped("state")

    def __init__(self, worker: Synchroniser, optimiser: torch.optim.Optimizer) -> None:
        super().__init__(optimiser.param_groups, optimiser.defaults)
        del self.__dict__["param_groups"], self.__dict__["state"]
        self.worker, self.optimiser = worker, optimiser

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """`worker.step()`; a closure is called first, and its result is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.worker.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimiser's, with the state of this worker: its residual, its block's start, its weights.

        Each worker has its own, so that each has to keep its own checkpoint. Call it at equal steps on all workers.
        """
        found, own = self.optimiser.state_dict(), self.worker.state()
        group = self.worker.group
        return found | ({_OWN: own | {_PLACE: torch.tensor([group.rank, group.size])}} if own else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load into the wrapped optimiser and the worker, after the model has been loaded. Call it on all workers.

        Raises ConfigError for the state of another worker, of another number of them, or of an optimiser alone.
        """
        group, own = self.worker.group, dict(state_dict.get(_OWN, {}))
        here = [group.rank, group.size]
        if not own and self.worker.state():
            raise ConfigError(
                "the checkpoint has the state of an optimiser, but none of the trainer",
                remedy="load it into the optimiser itself, before making the trainer",
            )
        if own and (there := own.pop(_PLACE).tolist()) != here:
            raise ConfigError(
                "the checkpoint is of worker {} of {}, not {} of {}".format(*there, *here),
                remedy="give each worker its own checkpoint, and start as many workers as have written them; to change "
                "their number, keep `worker.state()` of all in a loop of your own",
            )
        self.optimiser.load_state_dict({name: value for name, value in state_dict.items() if name != _OWN})
        if own:
            self.worker.restore([own] * group.size)


def as_optimiser(worker: Synchroniser, optimiser: torch.optim.Optimizer) -> WorkerOptimiser:
    """An optimiser that steps with the other workers, for Lightning, Accelerate, a Trainer or another framework's loop.

    Parameters
    ----------
    worker: built from `optimiser`. Keep it: at the end all workers call `worker.finish()`.

    Its `state_dict` has the state of this worker, too: let each worker write its checkpoints to its own folder.
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
