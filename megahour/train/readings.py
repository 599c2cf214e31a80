"""Reads a step's measurements asynchronously: the host queues copies from the device and does not wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass
class _Step(Generic[T]):
    about: T
    values: dict[str, float]
    names: list[str]
    copy: Tensor | None = None
    arrived: torch.cuda.Event | None = None


class StepReadings(Generic[T]):
    """Scalars of steps, in order: on the CPU at once, from a GPU when their copies have arrived.

    `about` is returned unchanged with the numbers.
    """

    def __init__(self) -> None:
        self._steps: deque[_Step[T]] = deque()

    def add(self, about: T, values: Mapping[str, float | Tensor]) -> None:
        """Add one step's numbers and scalars of any device."""
        far = {name: value for name, value in values.items() if isinstance(value, Tensor) and value.is_cuda}
        near = {name: float(value) for name, value in values.items() if name not in far}
        step = _Step(about, near, list(far))
        if far:
            step.copy = torch.empty(len(far), dtype=torch.float64, pin_memory=True)
            step.copy.copy_(torch.stack([v.detach().to(torch.float64) for v in far.values()]), non_blocking=True)
            step.arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            step.arrived.record()
        self._steps.append(step)

    def ready(self, *, wait: bool = False) -> Iterator[tuple[T, dict[str, float]]]:
        """Readings that have arrived since the last call; with `wait`, all."""
        while self._steps:
            step = self._steps[0]
            if step.arrived is not None and wait:
                step.arrived.synchronize()
            elif step.arrived is not None and not step.arrived.query():  # type: ignore[no-untyped-call]
                return
            self._steps.popleft()
            if step.copy is not None:
                step.values |= dict(zip(step.names, step.copy.tolist(), strict=True))
            yield step.about, step.values


@dataclass
class SparseCount:
    """A count that is due for a warning when it has doubled: a few times in a long training, not in each step.

    >>> count = SparseCount()
    >>> [count.add(n) for n in (3, 1, 1, 1, 1)], count.total
    ([True, False, False, True, False], 7)
    """

    total: int = 0
    _due: int = 1

    def add(self, n: int) -> bool:
        """Whether the total is due."""
        self.total += n
        if self.total < self._due:
            return False
        self._due = 2 * self.total
        return True
