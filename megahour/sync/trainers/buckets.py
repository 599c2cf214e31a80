"""Sends gradients in a few messages, which are summed while backward computes the other gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from megahour.core.errors import ConfigError
from megahour.sync.group.base import Group, Work
from megahour.sync.trainers.flat import check_real, gather_gradients, scatter_gradients


class Bucket:
    """Consecutive parameters, and their gradients as one fp32 vector."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        counts = [parameter.numel() for parameter in parameters]
        self.vector = torch.zeros(sum(counts), dtype=torch.float32, device=parameters[0].device)
        parts = torch.split_with_sizes(self.vector, counts)
        self.views = [part.view(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]
        self.missing = len(self.parameters)
        self.work: Work | None = None

    def send(self, group: Group, scale: float | Tensor) -> None:
        """Begin the sum over workers of scale · gradient."""
        gather_gradients(self.parameters, self.views, scale)
        self.work = group.all_reduce(self.vector)

    def receive(self, scale: float) -> None:
        """Set the parameters' gradients to scale · sum."""
        assert self.work is not None
        self.work.wait()
        if scale != 1.0:
            self.vector.mul_(scale)
        scatter_gradients(self.parameters, self.views)

    def rest(self) -> None:
        """Reset for the next step."""
        self.missing, self.work = len(self.parameters), None


class Buckets:
    """All buckets, last parameters first as in backward; with `backwards`, sent during it."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], group: Group, backwards: int | None, size_bytes: int
    ) -> None:
        check_real(parameters)
        self._group, self._backwards = group, backwards
        self.buckets = [Bucket(part) for part in _parts(parameters, size_bytes)]
        self._next = 0
        self._calls: dict[nn.Parameter, int] = {}
        self._hooks: list[RemovableHandle] = []
        if backwards is not None:
            for bucket in self.buckets:
                for parameter in bucket.parameters:
                    hook = self._hook(bucket)
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    @property
    def begun(self) -> bool:
        """Whether a bucket of this step has been sent."""
        return self._next > 0

    def send(self, scale: float | Tensor) -> None:
        """Begin the sums of buckets that have not been sent."""
        for bucket in self.buckets[self._next :]:
            bucket.send(self._group, scale)
        self._next = len(self.buckets)

    def receive(self, scale: float) -> None:
        """Set the parameters' gradients to scale · sums."""
        for bucket in self.buckets:
            bucket.receive(scale)

    def rest(self) -> None:
        """Reset for the next step."""
        self._next = 0
        self._calls.clear()
        for bucket in self.buckets:
            bucket.rest()

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, bucket: Bucket) -> Callable[[nn.Parameter], None]:
        def arrived(parameter: nn.Parameter) -> None:
            calls = self._calls[parameter] = self._calls.get(parameter, 0) + 1
            assert self._backwards is not None
            if calls > self._backwards:
                raise ConfigError(
                    f"backward call {calls} since the last step", remedy=f"set backwards={calls}, or backwards=None"
                )
            if calls == self._backwards:
                bucket.missing -= 1
                self._advance()

        return arrived

    def _advance(self) -> None:
        """Send ready buckets in the same order on all workers: each waits for those before it."""
        while self._next < len(self.buckets) and not self.buckets[self._next].missing:
            self.buckets[self._next].send(self._group, 1.0)
            self._next += 1


def _parts(parameters: Sequence[nn.Parameter], size_bytes: int) -> list[list[nn.Parameter]]:
    """Group parameters from last to first, at most `size_bytes` in fp32 or one parameter each."""
    parts: list[list[nn.Parameter]] = []
    filled = 0
    for parameter in reversed(parameters):
        if not parts or filled + parameter.numel() * 4 > size_bytes:
            parts.append([])
            filled = 0
        parts[-1].append(parameter)
        filled += parameter.numel() * 4
    return parts
